"""Commands run in this process, on a ledger of the test's own."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import Executable

from proxy.billing.entries import LedgerEntry
from proxy.cli import FAILED, NOT_FOUND, WRONG_USAGE, main
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.settings import load
from proxy.sinks.kinds import SINKS
from proxy.storage.database import writing
from tests.ledger.entries import arriving
from tests.support.sqlite import with_empty_ledger

MODEL = {"provider": "tera", "price": {"input": 1, "output": 2}, "cost": {"input": 1, "output": 1}}

CONFIG: dict[str, Any] = {
    "providers": {"tera": {"base_url": "http://127.0.0.1:1/v1"}},
    "models": {"tera-large": MODEL},
}


class Terminal(io.StringIO):
    """Standard input of somebody who types this."""

    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> None:
    """Print for somebody who reads lines of so many columns."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


class Commands:
    """Runs them; what they print is read as JSON lines."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any] = CONFIG) -> None:
        self.config = folder / "tokenweir.yaml"
        self.configure(settings)
        if "ledger" not in settings:
            with_empty_ledger(folder / "data")  # quicker than the first command's migrations
        self.entries: tuple[LedgerEntry, ...] = ()
        """those that were settled last by `settle`"""
        self._capsys = capsys
        self.err = ""
        self.out = ""

    def __call__(self, *arguments: str, code: int | tuple[int, ...] = 0) -> list[dict[str, Any]]:
        codes = code if isinstance(code, tuple) else (code,)
        try:
            ended = main([*arguments, "--config", str(self.config)])
        except SystemExit as wrong:
            ended = int(wrong.code or 0)
        assert ended in codes, self._capsys.readouterr().err
        printed = self._capsys.readouterr()
        self.out, self.err = printed.out, printed.err
        return [json.loads(line) for line in printed.out.splitlines() if line.startswith("{")]

    def refused(self, *arguments: str) -> str:
        """What a command prints that fails, or knows no such name or value: one line, after the usage if there is one,
        and nothing for programs."""
        assert self(*arguments, code=(FAILED, WRONG_USAGE, NOT_FOUND)) == [], arguments
        *usage, said = self.err.splitlines()
        assert not usage or usage[0].startswith("usage: tokenweir ")
        return said

    def configure(self, settings: dict[str, Any]) -> None:
        self.config.write_text(yaml.safe_dump(settings))

    def ledger(self, work: Callable[[LedgerStores], Any]) -> Any:
        store = LedgerStores.open(load(self.config, os.environ, sinks=SINKS))
        try:
            return work(store)
        finally:
            store.close()

    def settle(self, *entries: LedgerEntry, node: str | None = None, seq: int = 0) -> None:
        """With receipts numbered from `seq` on if there is a node."""
        self.entries = entries
        self.ledger(lambda store: store.ledger.settle(arriving(*entries, node=node, seq=seq)))

    def execute(self, statement: Executable) -> list[Any]:
        """A statement on the ledger; its rows."""

        def execute(store: LedgerStores) -> list[Any]:
            with writing(store.engine) as connection:
                result = connection.execute(statement)
                return [tuple(row) for row in result] if result.returns_rows else []

        found: list[Any] = self.ledger(execute)
        return found
