"""Tokenweir as tests use it: its own process, started by its own command, asked by its own commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import Engine

from proxy.ledger.database import open_engine, sqlite_url
from proxy.ledger.reports import EntryFilter, EntryReader, entry_json

ROOT = Path(__file__).parents[2]
# A cold start on a loaded machine; usually under a second.
START_S_MAX = 30.0
STOP_S_MAX = 20.0
# Rates of every test model: odd numbers, so that a mistake shows in the sum.
PRICE = {"input": 0.13, "cached_input": 0.07, "output": 0.41}
COST = {"input": 0.11, "cached_input": 0.05, "output": 0.37}


def provider_section(base_url: str, **settings: Any) -> dict[str, Any]:
    """A provider of the configuration."""
    return {"base_url": base_url, "api_key": "${TEST_PROVIDER_KEY}", **settings}


class Tokenweir:
    """One deployment in a folder of its own: started, killed and started again on the same data."""

    PROVIDER_KEY = "sk-canary-provider-secret-7d1f"

    def __init__(
        self,
        folder: Path,
        *,
        providers: Mapping[str, Any],
        models: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        first = next(iter(providers))
        config = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "data_dir": str(folder / "data"),
            "providers": dict(providers),
            "models": models or {"*": {"provider": first, "price": PRICE, "cost": COST}},
            **settings,
        }
        self.config = folder / "tokenweir.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.environment = {
            **os.environ,
            "TEST_PROVIDER_KEY": self.PROVIDER_KEY,
            "PYTHONPATH": str(ROOT),
        }
        self.child: subprocess.Popen[str] | None = None
        self.url = ""
        self.port = 0
        self.log = folder / "proxy.log"
        self._engine: Engine | None = None
        self._reader: EntryReader | None = None
        self._read: list[dict[str, Any]] = []

    def launch(self) -> subprocess.Popen[str]:
        """Begin to serve, and wait for nothing."""
        with self.log.open("a") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "proxy", "serve", "--config", str(self.config)],
                cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        return self.child

    def start(self) -> Tokenweir:
        """Serve; returns when it listens."""
        self.child = self.launch()
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if "listening on http://" in line:
                self.url = line.split()[-1].strip()
                self.port = int(self.url.rsplit(":", 1)[1])
                return self
        raise AssertionError(f"it did not start: {self.log.read_text()[-3000:]}")

    @property
    def base_url(self) -> str:
        """As an SDK takes it."""
        return f"{self.url}/v1"

    def kill(self) -> None:
        """kill -9, now."""
        assert self.child is not None
        self.child.send_signal(signal.SIGKILL)
        self._wait()

    def stop(self, timeout_s: float = STOP_S_MAX) -> int:
        """SIGTERM, and wait for the end. The exit code."""
        assert self.child is not None
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        return self._wait(timeout_s)

    def close(self) -> None:
        """End it whatever it does."""
        if self.child is not None and self.child.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()
        elif self.child is not None:
            self._wait()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = self._reader = None

    def _wait(self, timeout_s: float = STOP_S_MAX) -> int:
        assert self.child is not None
        code = self.child.wait(timeout_s)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `tokenweir …` beside it."""
        done = subprocess.run(
            [sys.executable, "-m", "proxy", *arguments, "--config", str(self.config)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done

    def key(self, alias: str = "test", *options: str) -> str:
        """A new key's secret."""
        made = json.loads(self.command("keys", "create", "--alias", alias, *options).stdout)
        secret: str = made["key"]
        return secret

    def ledger(self, *options: str) -> list[dict[str, Any]]:
        """The ledger's entries, as its own command prints them."""
        printed = self.command("ledger", "--json", *options).stdout
        return [json.loads(line) for line in printed.split("\n") if line]

    def read_ledger(self) -> list[dict[str, Any]]:
        """The same entries, read without starting a process (`ledger` costs a second): for polling."""
        if self._reader is None:
            self._engine = open_engine(sqlite_url(self.folder / "data" / "ledger.db"))
            self._reader = EntryReader(self._engine, EntryFilter())
            self._read = []
        self._read += map(entry_json, self._reader.new_entries())
        return list(self._read)

    def entries(self, count: int, *, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """The ledger's entries once there are at least `count`."""
        return self.until(lambda entries: len(entries) >= count, timeout_s=timeout_s)

    def until(self, holds: Callable[[list[dict[str, Any]]], bool], *, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """The ledger's entries as soon as `holds` of them."""
        deadline = time.monotonic() + timeout_s
        while not holds(entries := self.read_ledger()):
            assert time.monotonic() < deadline, (
                f"the ledger is not as expected: {entries}\n{self.log.read_text()[-2000:]}"
            )
            time.sleep(0.02)
        return entries

    def outputs(self) -> bytes:
        """Every byte it left on disk: logs, journal, ledger, progress table."""
        if self._engine is not None:  # closing a file gives up the locks that SQLite has on it in this process
            self._engine.dispose()
        return b"".join(path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file())
