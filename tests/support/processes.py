"""Holds a test to its word that it starts no process and opens no socket or database; and processes for those that do.

Most of what a process of ours does in a short test is to import, and a copy of one that has imported need not.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from multiprocessing import forkserver, process, util
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Protocol, cast

# Children start clean: no thread, no connection and no event loop of the tests. They are copies of one process that has
# imported what they need and nothing else.
CLEAN = multiprocessing.get_context("forkserver")
CLEAN.set_forkserver_preload(
    [
        "tests.support.uncollected", "pytest", "tests.ledger.entries", "proxy.budgets.redis.store",
        "proxy.budgets.sqlite.store", "proxy.cli", "proxy.runtime.worker", "proxy.runtime.proxy.process", "psycopg",
        "uvloop", "tests.support.frozen",
    ]
)  # fmt: skip


def begin_copying() -> None:
    """Start the process that others are copies of: this process and its own copies then use one."""
    forkserver.ensure_running()
    os.register_at_fork(after_in_child=_use_the_started_one)


def _use_the_started_one() -> None:
    # Whether it runs, only its parent can see; and it is its parent that ends it.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
    forkserver._forkserver._forkserver_pid = None  # type: ignore[attr-defined]


def end_copying() -> None:
    """End the process that others are copies of, and reap it: only then are its CPU-seconds, and theirs, counted."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


class Running(Protocol):
    """A process of a test: a part of the interface of subprocess.Popen."""

    pid: int
    stdout: IO[str] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


class Copied:
    """A process that runs `tokenweir …` as a copy of one that has imported it.

    It differs from one that was started by its command in what ps shows, and in what a test says of importing: such
    tests start theirs themselves.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> None:
        """The parent reads the output at `stdout`; the other output is appended to the file."""
        read, write = os.pipe()
        self.stdout: IO[str] | None = os.fdopen(read)
        try:
            # A daemon: it ends with the tests, whatever becomes of them.
            self._process = CLEAN.Process(
                target=_run, args=(list(arguments), folder, dict(environment), log, DupFd(write)), daemon=True
            )
            self._process.start()
        finally:
            os.close(write)
        self.pid = cast("int", self._process.pid)

    def poll(self) -> int | None:
        """Its exit code: negative is the signal that ended it, None is that it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("tokenweir", cast("float", timeout))
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended: its id may be reused."""
        # One that has just ended runs, for `poll`, until its parent has written its exit code.
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.Signals(sig))


class Handed(Protocol):
    """A file that a copy inherits."""

    def detach(self) -> int: ...


def _run(arguments: list[str], folder: Path, environment: dict[str, str], log: Path, out: Handed) -> None:
    from proxy.cli import main

    process.current_process().daemon = False  # it may have children of its own
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR may be another
    for given, number in ((out.detach(), 1), (os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), 2)):
        os.dup2(given, number)
        os.close(given)
    raise SystemExit(main(arguments))


# What a test without the mark must not do.
_DEEDS: Mapping[str, tuple[str, Sequence[tuple[object, str]]]] = {
    "process": (
        "starts a process",
        [
            (subprocess.Popen, "_execute_child"), (util, "spawnv_passfds"), (forkserver, "connect_to_new_process"),
            (os, "fork"),
        ],
    ),
    "io": (
        "listens on a socket or opens a database",
        [(socket.socket, "listen"), (sqlite3, "connect"), (sqlite3.dbapi2, "connect")],
    ),
}  # fmt: skip


class Refusals:
    """Functions that start processes, listen and open databases, replaced in this process by ones that raise
    AssertionError while their mark is in `now`."""

    def __init__(self, replace: Callable[[object, str, object], None]) -> None:
        self.now: frozenset[str] = frozenset()
        for mark, (deed, functions) in _DEEDS.items():
            why = f"a test that {deed} is marked `{mark}` (pytest.mark.{mark})"
            for owner, name in functions:
                replace(owner, name, self._refusing(getattr(owner, name), mark, why))

    def _refusing(self, function: Callable[..., object], mark: str, why: str) -> Callable[..., object]:
        @wraps(function)
        def unless_refused(*args: object, **named: object) -> object:
            assert mark not in self.now, why
            return function(*args, **named)

        return unless_refused
