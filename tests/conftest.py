"""Fixtures that many tests share, and the tiers.

Invariant: a test that starts a process has the mark `process`, one that listens on a socket or opens a database the
mark `io`, one that needs a program or a language's packages that pip does not install the mark `external`. So
`make test-fast` is what has none of them, `make test` what is not `external`, and `make check-deploy` what is.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.deployment import deployment, deployment_process
from tests.support import cost
from tests.support.browser import browser
from tests.support.examples import load_profile
from tests.support.ledgers import (
    database_url,
    engine,
    fresh_ledger_url,
    kept_engines,
    kept_on_postgres,
    kept_on_sqlite,
    ledger_url,
    migrated,
    postgres_ledger_url,
    postgres_url,
    store,
)
from tests.support.made_once import share
from tests.support.postgres import postgres, postgres_cluster
from tests.support.processes import no_io, no_processes
from tests.support.provider import ScriptedProvider, provider, provider_process
from tests.support.tokenweir import Tokenweir, provider_section
from tests.support.valkey import cluster_url, prefix, redis_url, shared_valkey, valkey
from tests.support.workers import send_less

__all__ = [
    "browser",
    "cluster_url",
    "database_url",
    "deployment",
    "deployment_process",
    "engine",
    "fresh_ledger_url",
    "kept_engines",
    "kept_on_postgres",
    "kept_on_sqlite",
    "ledger_url",
    "migrated",
    "postgres",
    "postgres_cluster",
    "postgres_ledger_url",
    "postgres_url",
    "prefix",
    "provider",
    "provider_process",
    "redis_url",
    "shared_valkey",
    "store",
    "valkey",
]


# Who uses one of these fixtures, or a fixture in one of these kinds, uses a process.
PROCESS_FIXTURES = frozenset(
    ("cluster_url", "postgres_cluster", "postgres", "provider_process", "redis_url", "shared_valkey", "valkey")
)
PROCESS_KINDS = ("cluster", "postgres", "redis")
# Likewise: a program that pip does not install.
EXTERNAL_FIXTURES = frozenset(("browser", "curl", "node"))
TIERS = ("process", "external", "slow", "real")
IO_FIXTURES = frozenset(("engine", "store", "ledger_url", "database_url", "fresh_ledger_url"))

load_profile()


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
    # At the end no worker should wait for another's.
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with _held_to_its_marks(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with _held_to_its_marks(item):
        return (yield)


@contextmanager
def _held_to_its_marks(item: pytest.Item) -> Iterator[None]:
    """Fail a test that starts a process without the mark `process`, or opens a socket or database without `io`. Not in
    its teardown: the last test of a run ends the fixtures of all."""
    if any(item.get_closest_marker(name) for name in TIERS):
        yield
        return
    with no_processes(), nullcontext() if item.get_closest_marker("io") else no_io():
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is there now stays to the end: the collector need not look at it again and again while tests run. What a
    test makes, it looks at as ever."""
    gc.collect()
    gc.freeze()


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


def pytest_configure(config: pytest.Config) -> None:
    """Collect the reports of workers in the controller."""
    cost.register(config)
    if hasattr(config, "workerinput"):
        send_less(config)
    if os.environ.get("CI") == "true" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Promised(), "promised")


@pytest.fixture(autouse=True, scope="session")
def _made_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share(patch.setattr)
        yield


@pytest.fixture
def tokenweir(tmp_path: Path, provider: ScriptedProvider) -> Iterator[Callable[..., Tokenweir]]:
    """Makes deployments in front of the scripted provider (named `scripted`); all are ended after the test."""
    made: list[Tokenweir] = []

    def make(*, provider_settings: dict[str, Any] | None = None, start: bool = True, **settings: Any) -> Tokenweir:
        settings.setdefault("providers", {"scripted": provider_section(provider.base_url, **(provider_settings or {}))})
        one = Tokenweir(tmp_path / f"deployment{len(made)}", **settings)
        made.append(one)
        return one.start() if start else one

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The recorded exchanges of real providers; tests that need them skip where they are absent."""
    folder = Path(__file__).parents[2] / "shared" / "corpus"
    if not (folder / "open.jsonl").exists():
        pytest.skip("the corpus of recorded exchanges (../shared/corpus) is not on this machine")
    return folder
