"""Less work of pytest's workers for each test.

xdist sends the start, the end and three reports of each test, which costs as much as half of the tests: of a test that
passes, one report is sent. pytest looks six times a test at all loggers of all modules for ones that do not propagate,
and finds none: the root alone gets its handlers.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from _pytest.logging import catching_logs


def work_less(config: pytest.Config) -> None:
    """Replace what does all this. In a worker, when pytest is configured."""
    catching_logs.__enter__ = _at_the_root  # type: ignore[assignment, method-assign]
    manager = config.pluginmanager
    for plugin in list(manager.get_plugins()):
        if type(plugin).__name__ == "WorkerInteractor":
            manager.unregister(plugin)
            _narrow(type(plugin))
            manager.register(plugin)


def _narrow(kind: Any) -> None:
    sends_all = kind.pytest_runtest_logreport

    @pytest.hookimpl
    def pytest_runtest_logreport(self: object, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed or report.user_properties:
            sends_all(self, report)

    kind.pytest_runtest_logreport = pytest_runtest_logreport
    for name in ("pytest_runtest_logstart", "pytest_runtest_logfinish"):
        delattr(kind, name)


def _at_the_root(self: catching_logs[logging.Handler]) -> logging.Handler:
    assert self.level is None, "no option sets the level of what is captured"
    root = logging.getLogger()
    root.addHandler(self.handler)
    self.attached_loggers.append(root)
    return self.handler
