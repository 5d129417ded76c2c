"""Deployments for tests: processes of Tokenweir, started and queried by its commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import yaml
from sqlalchemy import Engine, PoolProxiedConnection

from proxy.cli import main
from proxy.ledger.dimensions.values import DimensionValues
from proxy.reports.entry_reader import EntryFilter, EntryReader, entry_json
from proxy.storage.database import is_shared, open_engine, sqlite_url
from tests.support.processes import Copied, Running
from tests.support.sqlite import with_empty_ledger

ROOT = Path(__file__).parents[2]
# As a user starts it.
COMMAND = ("-m", "proxy")
# A cold start on a loaded machine; usually under a second.
START_S_MAX = 30.0
STOP_S_MAX = 20.0
# Between two looks at a ledger: a query, and a look at a file.
POLL_S, FILE_POLL_S = 0.02, 0.004
# Rates of every test model: odd numbers, so that a mistake shows in the sum.
PRICE = {"input": 0.13, "cached_input": 0.07, "output": 0.41}
COST = {"input": 0.11, "cached_input": 0.05, "output": 0.37}
# No vocabulary is loaded, which takes longer than the rest of a start.
COUNTERS_ALONE = {"answer_bytes_max": 0}
# To read the system's certificates takes longer than the rest of a start.
TRUSTING_NOBODY = {"SSL_CERT_FILE": os.devnull}


def provider_section(base_url: str, **settings: Any) -> dict[str, Any]:
    return {"base_url": base_url, "api_key": "${TEST_PROVIDER_KEY}", **settings}


class Listening:
    """A process of Tokenweir that prints its address; tests start, kill and stop it."""

    def __init__(self, folder: Path, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.folder = folder
        self.environment = dict(environment)
        self.program: Sequence[str] | None = None  # Python's arguments; without, a copy of what has imported it
        self.child: Running | None = None
        self.url = ""
        self.console_url = ""
        self.port = 0
        self.log = log
        self._arguments = arguments

    def launch(self) -> Running:
        """Start without waiting."""
        self.child = self._began(self._arguments, self.log)
        return self.child

    def _began(self, arguments: Sequence[str], log: Path) -> Running:
        """One process of ours, its errors in a file."""
        if self.program is None:
            return Copied(arguments, self.folder, self.environment, log)
        with log.open("a") as errors:
            return subprocess.Popen(
                [sys.executable, *self.program, *arguments],
                cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def start(self) -> Self:
        """Start; returns when it listens."""
        self.child = self.launch()
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if "console at http://" in line:
                self.console_url = line.split()[-1].strip()
            if "listening on http://" in line:
                self.url = line.split()[-1].strip()
                self.port = int(self.url.rsplit(":", 1)[1])
                return self
        raise AssertionError(f"it did not start: {self.log_tail()}")

    def kill(self) -> None:
        """kill -9, now."""
        self.signal(signal.SIGKILL)
        self._wait()

    def signal(self, number: signal.Signals) -> None:
        assert self.child is not None
        self.child.send_signal(number)

    def stop(self, timeout_s: float = STOP_S_MAX) -> int:
        """SIGTERM, and wait for the end. The exit code."""
        assert self.child is not None
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        return self._wait(timeout_s)

    def close(self) -> None:
        """End the process in any state."""
        if self.child is not None and self.child.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()
        elif self.child is not None:
            self._wait()

    def log_tail(self) -> str:
        return self.log.read_text()[-2000:]

    def _wait(self, timeout_s: float = STOP_S_MAX) -> int:
        assert self.child is not None
        code = self.child.wait(timeout_s)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code


class Tokenweir(Listening):
    """One deployment in a folder of its own: started, killed and started again on the same data.

    Embedded, unless it is given the URLs of a ledger and a queue; then `worker` makes its workers.
    """

    PROVIDER_KEY = "sk-canary-provider-secret-7d1f"
    PEPPER = "5e" * 32

    def __init__(
        self,
        folder: Path,
        *,
        providers: Mapping[str, Any],
        models: Mapping[str, Any] | None = None,
        ledger_url: str | None = None,
        queue_url: str | None = None,
        options: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """`options`: more arguments of `serve`."""
        folder.mkdir(parents=True, exist_ok=True)
        first = next(iter(providers))
        config = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "worker": {"port": 0},
            "data_dir": str(folder / "data"),
            "exchanges_max": 2_048,  # the default's slots take 16 MB of disk at each start
            "providers": dict(providers),
            "models": models or {"*": {"provider": first, "price": PRICE, "cost": COST}},
            "estimates": COUNTERS_ALONE,
            **settings,
        }
        environment = {**os.environ, **TRUSTING_NOBODY, "TEST_PROVIDER_KEY": self.PROVIDER_KEY, "PYTHONPATH": str(ROOT)}
        if ledger_url is not None:
            config |= {"ledger": "${TEST_LEDGER}", "key_pepper": "${TEST_PEPPER}"}
            environment |= {"TEST_LEDGER": ledger_url, "TEST_PEPPER": self.PEPPER}
        if queue_url is not None:
            config |= {"queue": "${TEST_QUEUE}"}
            environment["TEST_QUEUE"] = queue_url
        self.config = folder / "tokenweir.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.ledger_url = ledger_url or sqlite_url(folder / "data" / "ledger.db")
        arguments = ("serve", "--config", str(self.config), *options)
        super().__init__(folder, arguments, environment, folder / "proxy.log")
        self._workers = 0
        self._engine: Engine | None = None
        self._reader: EntryReader | None = None
        self._read: list[dict[str, Any]] = []
        self._watch: PoolProxiedConnection | None = None
        self._version = -1

    def launch(self) -> Running:
        self._with_ledger()
        return super().launch()

    def _with_ledger(self) -> None:
        """Copy a migrated ledger: its creation takes longer than the rest of a first start."""
        data = self.folder / "data"
        if self.ledger_url == sqlite_url(data / "ledger.db") and not data.exists():
            with_empty_ledger(data)

    def alone(self) -> Tokenweir:
        """Use one process from the next start on."""
        self._arguments = self._arguments[:3]
        return self

    def worker(self) -> Listening:
        """Another worker of this deployment, not started yet."""
        self._workers += 1
        arguments = ("worker", "--config", str(self.config))
        one = Listening(self.folder, arguments, self.environment, self.folder / f"worker-{self._workers}.log")
        one.program = self.program
        return one

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def close(self) -> None:
        super().close()
        self._close_files()
        self._engine = self._reader = None

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `tokenweir …` during the deployment."""
        told = [*arguments, "--config", str(self.config)]
        with tempfile.NamedTemporaryFile(dir=self.folder) as errors:
            child = self._began(told, Path(errors.name))
            assert child.stdout is not None
            with child.stdout as printed:
                text = printed.read()
            done = subprocess.CompletedProcess(told, child.wait(60), text, Path(errors.name).read_text())
        assert not check or done.returncode == 0, done.stderr
        return done

    def said(self, *arguments: str) -> str:
        """What `tokenweir …` prints, run in this process: to start one for each takes a second."""
        printed = io.StringIO()
        self._with_ledger()
        with patch.dict(os.environ, self.environment), contextlib.redirect_stdout(printed):
            assert main([*arguments, "--config", str(self.config)]) == 0, printed.getvalue()
        return printed.getvalue()

    def found(self, *arguments: str) -> tuple[int, str]:
        """The exit code of a check, and what it prints, run in a thread of this process: it may have an event loop. A
        deployment with a program of its own starts a process."""
        if self.program is not None:
            done = self.command(*arguments, check=False)
            return done.returncode, done.stdout + done.stderr
        printed = io.StringIO()
        command = [*arguments, "--config", str(self.config)]
        with (
            patch.dict(os.environ, self.environment),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            ThreadPoolExecutor(1) as thread,
        ):
            code = thread.submit(main, command).result()
        return code, printed.getvalue()

    def change(self, *arguments: str) -> dict[str, Any]:
        """The object that a command prints."""
        answer: dict[str, Any] = json.loads(self.said(*arguments))
        return answer

    def key(self, alias: str = "test", *options: str) -> str:
        """A new key's secret."""
        secret: str = self.change("keys", "create", "--alias", alias, *options)["key"]
        return secret

    def ledger(self, *options: str) -> list[dict[str, Any]]:
        """The ledger's entries, as its own command prints them."""
        printed = self.command("ledger", "--json", *options).stdout
        return [json.loads(line) for line in printed.split("\n") if line]

    def read_ledger(self) -> list[dict[str, Any]]:
        """The ledger's entries, read without a process (`ledger` takes a second): for polling."""
        if self._engine is None or self._reader is None:
            self._engine = open_engine(self.ledger_url)
            self._reader = EntryReader(self._engine, EntryFilter())
            self._read = []
        version = self._ledger_version(self._engine)
        if version is None or version != self._version:
            self._read += map(entry_json, self._reader.new_entries())
            self._version = version or 0
        return list(self._read)

    def dimensions(self, entry: dict[str, Any]) -> dict[str, str]:
        """The values of an entry's dimensions."""
        ids: dict[str, str] = entry["details"].get("dimensions", {})
        engine = open_engine(self.ledger_url)
        names = DimensionValues(engine).names(list(ids.values()))
        engine.dispose()
        return {name: names.get(value_id, value_id) for name, value_id in ids.items()}

    def _ledger_version(self, engine: Engine) -> int | None:
        """A number that another connection's commit changes, for a hundredth of what a query costs. None on
        Postgres."""
        if is_shared(engine):
            return None
        if self._watch is None:
            self._watch, self._version = engine.raw_connection(), -1
        version: int = self._watch.cursor().execute("PRAGMA data_version").fetchone()[0]
        return version

    def _close_files(self) -> None:
        """Close the ledger's file in this process, which gives up the locks that SQLite has on it."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._engine is not None:
            self._engine.dispose()

    def entries(self, count: int, *, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """The ledger's entries once there are at least `count`."""
        return self.until(lambda entries: len(entries) >= count, timeout_s=timeout_s)

    def entries_of(self, model: str, count: int = 1, *, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """The entries of a model once there are at least `count`."""
        entries = self.until(lambda all_: sum(one["model"] == model for one in all_) >= count, timeout_s=timeout_s)
        return [entry for entry in entries if entry["model"] == model]

    def until(self, holds: Callable[[list[dict[str, Any]]], bool], *, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """The ledger's entries as soon as `holds` of them."""
        deadline = time.monotonic() + timeout_s
        while not holds(entries := self.read_ledger()):
            assert time.monotonic() < deadline, f"the ledger is not as expected: {entries}\n{self.log_tail()}"
            time.sleep(POLL_S if self._watch is None else FILE_POLL_S)
        return entries

    def unreconciled(self) -> list[str]:
        """What `tokenweir reconcile` complains of, where nothing is on its way any more. Empty: nothing."""
        code, printed = self.found("reconcile", "--grace", "1s")
        return [f"reconcile: {printed}"] if code else []

    def outputs(self) -> bytes:
        """All bytes of the deployment on disk: logs, journal, ledger, progress table."""
        self._close_files()
        return b"".join(path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file())
