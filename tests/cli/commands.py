"""Commands run in this process, on a ledger of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.settings import load
from tests.support.sqlite import with_empty_ledger

MODEL = {"provider": "tera", "price": {"input": 1, "output": 2}, "cost": {"input": 1, "output": 1}}

CONFIG: dict[str, Any] = {
    "providers": {"tera": {"base_url": "http://127.0.0.1:1/v1"}},
    "models": {"tera-large": MODEL},
}


class Commands:
    """Runs them; what they print is read as JSON lines."""

    def __init__(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.config = config
        data_dir = config.parent / "data"
        if not data_dir.exists() and "ledger:" not in config.read_text():
            with_empty_ledger(data_dir)  # quicker than the first command's migrations
        self._capsys = capsys
        self.err = ""
        self.out = ""

    def __call__(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        assert main([*arguments, "--config", str(self.config)]) == code, self._capsys.readouterr().err
        printed = self._capsys.readouterr()
        self.out, self.err = printed.out, printed.err
        return [json.loads(line) for line in printed.out.splitlines() if line.startswith("{")]

    def ledger(self, work: Callable[[LedgerStores], Any]) -> Any:
        """Something by hand."""
        store = LedgerStores.open(load(self.config, {}))
        try:
            return work(store)
        finally:
            store.close()
