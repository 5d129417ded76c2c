"""The tiers of the tests.

Invariant: a test that starts a process has the mark `process`, one that listens on a socket or opens a database the
mark `io`, one that needs a program or a language's packages that pip does not install the mark `external`. So
`make test-fast` is what has none of them, `make test` what is not `external`, and `make check-deploy` what is; what has
the mark `thorough`, `slow` or `real` is in none of these.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Generator

import pytest

from tests.support import cost, workers
from tests.support.processes import Refusals

# Who uses one of these fixtures, or a fixture in one of these kinds, uses a process.
PROCESS_FIXTURES = frozenset(
    ("cluster_url", "postgres_cluster", "postgres", "provider_process", "redis_url", "shared_valkey", "valkey")
)
PROCESS_KINDS = ("cluster", "postgres", "redis")
# Likewise: a program that pip does not install.
EXTERNAL_FIXTURES = frozenset(("browser", "curl", "node"))
TIERS = frozenset(("process", "external", "slow", "real"))
IO_FIXTURES = frozenset(("engine", "store", "ledger_url", "database_url", "fresh_ledger_url"))
REFUSALS = Refusals(setattr)
# So many more objects than at the last time before the collector looks at the new ones: a test makes many for a moment.
YOUNG_OBJECTS = 20_000


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: what is made stays, and it would look at all of it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set marks before tests of other tiers are deselected."""
    for item in items:
        kinds = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        fixtures = getattr(item, "fixturenames", ())
        if not PROCESS_FIXTURES.isdisjoint(fixtures) or any(kind in PROCESS_KINDS for kind in kinds):
            item.add_marker(pytest.mark.process)
        if not IO_FIXTURES.isdisjoint(fixtures):
            item.add_marker(pytest.mark.io)
        if not EXTERNAL_FIXTURES.isdisjoint(fixtures):
            item.add_marker(pytest.mark.external)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """First what waits, then what starts processes: at the end no worker should wait for another's. Last what needs a
    browser, which gives up its requests (ERR_NETWORK_CHANGED) when a container or a network of the tests begins."""
    if "browser" in getattr(item, "fixturenames", ()):
        return 3
    if item.get_closest_marker("waits"):
        return 0
    return 1 if item.get_closest_marker("process") else 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    REFUSALS.now = refused(item)
    try:
        return (yield)
    finally:
        REFUSALS.now = frozenset()


pytest_runtest_call = pytest_runtest_setup


def refused(item: pytest.Item) -> frozenset[str]:
    """What fails the test: to start a process without the mark `process`, or to open a socket or database without `io`.
    Not in its teardown: the last test of a run ends the fixtures of all."""
    marks = {mark.name for mark in item.iter_markers()}
    if not marks.isdisjoint(TIERS):
        return frozenset()
    return frozenset(("process", "io")) - marks


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is there now stays to the end: the collector need not look at it again and again while tests run. What a
    test makes, it looks at as ever. The garbage of the collection stays too: to free it takes half a second."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


class Promised:
    """In CI no test may be skipped: what a run promises, it does. `privileged` tests need rights that not every machine
    gives, and may."""

    def __init__(self) -> None:
        self.skipped: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and "privileged" not in report.keywords:
            self.skipped[report.nodeid] = str(report.longrepr)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            terminalreporter.section("skipped, which CI does not allow", red=True)
            for name, why in self.skipped.items():
                terminalreporter.line(f"{name}: {why}")


def pytest_addoption(parser: pytest.Parser) -> None:
    cost.add_options(parser)
    workers.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    cost.register(config)
    config.pluginmanager.register(workers)
    config.pluginmanager.import_plugin("tests.support.fixtures")
    if sys.version_info < (3, 12):
        # It parses a line for its marks. If the garbage collector has it print a traceback (a task's, for example)
        # while a test parses a file, `ast.parse` fails there: "AST constructor recursion depth mismatch".
        traceback._extract_caret_anchors_from_line_segment = lambda _: None  # type: ignore[attr-defined]
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(Promised(), "promised")
