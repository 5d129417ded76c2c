"""Runs tests in several processes (`-n`), each a copy of the one that has collected them.

To import and to collect takes as long as a tenth of the tests, and is done once. A copy takes tests of one module, and
of the next module when it has run them: what a module shares is made once.

Invariant: each test is reported, or the run fails.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.config import create_terminal_writer
from _pytest.logging import catching_logs

from tests.support.processes import begin_copying, end_copying

FORKED = multiprocessing.get_context("fork")
# Tests of one module that a copy takes at once: several share a long one.
TAKEN_MAX = 100
# To end the servers of its tests.
END_S_MAX = 30.0
_NUMBER_BYTES = 4


def add_options(parser: pytest.Parser) -> None:
    parser.getgroup("workers")._addoption("-n", dest="workers", type=int, default=0, help="run tests in N processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in copies of this process, if an option wants it."""
    option = session.config.option
    if not option.workers or option.collectonly or session.testsfailed:
        return None
    _Run(session).run(option.workers)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def pytest_configure() -> None:
    """pytest looks six times a test at all loggers of all modules for ones that do not propagate, and finds none: the
    root alone gets its handlers."""
    catching_logs.__enter__ = _at_the_root  # type: ignore[assignment, method-assign]


def _at_the_root(self: catching_logs[logging.Handler]) -> logging.Handler:
    assert self.level is None, "no option sets the level of what is captured"
    root = logging.getLogger()
    root.addHandler(self.handler)
    self.attached_loggers.append(root)
    return self.handler


def takes(items: Sequence[pytest.Item]) -> list[range]:
    """What a copy takes at once: the positions of consecutive tests of one module."""
    found: list[range] = []
    for _, positions in groupby(range(len(items)), lambda position: items[position].path):
        first, *rest = positions
        end = first + 1 + len(rest)
        found += (range(start, min(start + TAKEN_MAX, end)) for start in range(first, end, TAKEN_MAX))
    return found


class _Takes:
    """What no copy has taken yet: a pipe with the number of each, and who reads one has it."""

    def __init__(self, found: Sequence[range]) -> None:
        self._found = found
        self._read, write = os.pipe()
        with os.fdopen(write, "wb") as file:  # 16,000 numbers fit into a pipe
            file.write(b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in range(len(found))))

    def positions(self) -> Iterator[int]:
        """Of the tests that the process which asks has taken."""
        while number := os.read(self._read, _NUMBER_BYTES):
            yield from self._found[int.from_bytes(number, "big")]


class _Shared:
    """Memory of all copies: which test each runs, and whether they stop."""

    def __init__(self, copies: int) -> None:
        self._memory = memoryview(mmap.mmap(-1, (copies + 1) * _NUMBER_BYTES)).cast("i")

    def __getitem__(self, copy: int) -> int:
        return self._memory[copy]

    def __setitem__(self, copy: int, position: int) -> None:
        self._memory[copy] = position

    @property
    def stops(self) -> bool:
        return bool(self._memory[-1])

    def stop(self) -> None:
        """After the test that each runs."""
        self._memory[-1] = 1


class _Reports:
    """In a copy: sends the reports of each test. Of a test that passes, one is enough."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._unsent: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed or report.user_properties:
            sent = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
            self._unsent.append(sent)

    def send(self) -> None:
        """Those of one test."""
        self._connection.send(self._unsent)
        self._unsent = []


class _Run:
    """The process that has collected the tests, and its copies."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._config = session.config
        self._folder = _folders(session.config).getbasetemp()
        self._not_run = len(session.items)

    def run(self, copies: int) -> None:
        """Run and report all tests."""
        assert threading.active_count() == 1, "a copy has no thread but this one"
        if not self._config.option.cost and any(item.get_closest_marker("process") for item in self._session.items):
            begin_copying()  # with --cost each has its own, whose CPU-seconds are those of its tests
        takes_left, shared = _Takes(takes(self._session.items)), _Shared(copies)
        processes, numbers = [], {}
        for number in range(copies):
            received, sent = FORKED.Pipe(duplex=False)
            processes.append(FORKED.Process(target=self._copy, args=(number, takes_left, shared, sent)))
            processes[-1].start()
            sent.close()  # so that its end is the end of the pipe
            numbers[received] = number
        try:
            while numbers:
                for ready in wait(list(numbers)):
                    assert isinstance(ready, Connection)
                    try:
                        self._report(ready.recv())
                    except EOFError:
                        number = numbers.pop(ready)
                        processes[number].join()
                        self._ended(processes[number].exitcode, shared[number])
                if self._session.shouldfail:
                    shared.stop()
        finally:
            shared.stop()
            for process in processes:
                process.join(END_S_MAX)
                process.kill()
                process.join()
        if self._not_run and not self._session.shouldfail:
            self._session.shouldfail = f"{self._not_run} tests have not been run"

    def _report(self, sent: list[dict[str, Any]]) -> None:
        self._not_run -= 1
        hook = self._config.hook
        for one in sent:
            report = hook.pytest_report_from_serializable(config=self._config, data=one)
            hook.pytest_runtest_logreport(report=report)

    def _ended(self, code: int | None, position: int) -> None:
        if code:
            self._not_run -= 1
            item = self._session.items[position]
            why = f"the process that ran it has ended with exit code {code}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
            self._config.hook.pytest_runtest_logreport(report=report)

    def _copy(self, number: int, takes_left: _Takes, shared: _Shared, sent: Connection) -> None:
        """All that a copy does."""
        self._begin(number)
        reports = _Reports(self._config, sent)
        self._config.pluginmanager.register(reports)
        items, positions = self._session.items, takes_left.positions()
        try:
            with suppress(KeyboardInterrupt):
                position = next(positions, None)
                while position is not None and not shared.stops:
                    shared[number] = position
                    following = next(positions, None)
                    self._run(items[position], None if following is None else items[following])
                    reports.send()
                    position = following
        finally:
            self._session._setupstate.teardown_exact(None)
            end_copying()

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _begin(self, number: int) -> None:
        """In a copy: capture into files of its own, print nothing but stacks, have a folder of its own."""
        manager = self._config.pluginmanager
        capture: Any = manager.get_plugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        manager.unregister(name="terminalreporter")
        manager.register(SimpleNamespace(_tw=create_terminal_writer(self._config, sys.stderr)), "terminalreporter")
        folder = self._folder / f"copy{number}"
        folder.mkdir(mode=0o700)
        _folders(self._config)._basetemp = folder


def _folders(config: pytest.Config) -> Any:
    return config._tmp_path_factory  # type: ignore[attr-defined]


def folder_of_the_run(factory: pytest.TempPathFactory) -> Path:
    """Of all processes of one run."""
    folder = factory.getbasetemp()
    return folder.parent if multiprocessing.parent_process() else folder
