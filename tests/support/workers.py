"""What pytest's workers send: of a test that passes one report, not six messages.

xdist sends the start, the end and three reports of each test, which costs as much as half of the tests.
"""

from __future__ import annotations

from typing import Any

import pytest


def send_less(config: pytest.Config) -> None:
    """Replace the plugin that sends everything. In a worker, when pytest is configured."""
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
