"""The cost of a run of the tests: CPU-seconds of pytest, its workers, and all processes that these started and reaped.

CPU-seconds repeat, wall time does not. Machines differ: a fixed loop is timed beside the run, and the figures asked for
hold where the loop takes one second; elsewhere they are in proportion.

`python -m tests.support.cost NAME COMMAND…` runs a command and prints its CPU-seconds.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import cast

import pytest

from tests.support.processes import end_copying
from tests.support.reference_loop import ReferenceLoop

DEAREST = 50
_PROPERTY = "cpu_s"
_TICKS_IN_S = os.sysconf("SC_CLK_TCK")


def reaped_cpu_s() -> float:
    """CPU-seconds of this process and of all processes below it that were reaped."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def tree_cpu_s() -> float:
    """CPU-seconds of this process and of all processes below it, those that still run included."""
    total, pids = 0.0, [os.getpid()]
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / _TICKS_IN_S
            # Those that a thread has started are its own.
            for file in Path(f"/proc/{pid}/task").glob("*/children"):
                pids += map(int, file.read_text().split())
    return total


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("cost")
    group.addoption("--cost", action="store_true", help="print CPU-seconds by folder, and the dearest tests")
    group.addoption("--asked-cpu-s", type=float, default=0.0, help="CPU-seconds asked for, where the loop takes 1 s")
    group.addoption("--asked-wall-s", type=float, default=0.0, help="wall seconds asked for, where the loop takes 1 s")


def register(config: pytest.Config) -> None:
    """Measure this run if an option wants it."""
    if config.getoption("--cost"):
        config.pluginmanager.register(TestCosts(), "test_costs")
    elif not config.getoption("--asked-cpu-s"):
        return
    config.pluginmanager.register(RunCost(config), "run_cost")


class TestCosts:
    """Where tests run: the CPU-seconds of each test, its fixtures and their processes, as a property of its report.

    A fixture of a session or module counts for the first test that uses it; a server's work for the test during which
    it was done.
    """

    __test__ = False
    _last_s: Mapping[int, float]
    """At the end of the last test, by process id: one that runs tests is a copy, and begins with none"""

    def pytest_collection_finish(self) -> None:
        self._last_s = {os.getpid(): tree_cpu_s()}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            began, pid = time.process_time(), os.getpid()
            now_s = tree_cpu_s()
            report.user_properties.append((_PROPERTY, now_s - self._last_s.get(pid, 0.0)))
            self._last_s = {pid: now_s + time.process_time() - began}  # what measuring costs is no test's
        return report


@dataclass(eq=False)
class RunCost:
    """The controller's plugin: adds up the CPU-seconds, and compares them with the limit."""

    config: pytest.Config
    loop: ReferenceLoop = field(default_factory=ReferenceLoop)
    began_s: float = field(default_factory=time.monotonic)
    by_test: dict[str, float] = field(default_factory=dict)
    collection_s: float = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self.by_test[report.nodeid] = cast("float", value)

    def pytest_collection_finish(self) -> None:
        self.collection_s = tree_cpu_s()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        end_copying()

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary. Workers are reaped by then."""
        loop_s, used_s = self.loop.end()
        wall_s, cpu_s = time.monotonic() - self.began_s, reaped_cpu_s() - used_s
        terminalreporter.ensure_newline()
        for line in self._tables(cpu_s):
            terminalreporter.line(line)
        asked_cpu_s: float = self.config.getoption("--asked-cpu-s")
        asked_wall_s: float = self.config.getoption("--asked-wall-s")
        terminalreporter.line(verdict(cpu_s, wall_s, loop_s, asked_cpu_s, asked_wall_s))

    def _tables(self, cpu_s: float) -> Iterable[str]:
        if not self.by_test:
            return
        folders, tests = Counter[str](), Counter[str]()
        for name, used_s in self.by_test.items():
            folder = str(PurePosixPath(name.partition("::")[0]).parent)
            folders[folder] += used_s  # type: ignore[assignment]  # a Counter adds up whatever numbers it is given
            tests[folder] += 1
        rest_s = cpu_s - sum(self.by_test.values()) - self.collection_s
        yield f"{'CPU-s':>8} {'tests':>6}  folder"
        for folder, used_s in folders.most_common():
            yield f"{used_s:8.1f} {tests[folder]:6}  {folder}"
        yield f"{self.collection_s:8.1f} {'':6}  (imports and collection)"
        yield f"{rest_s:8.1f} {'':6}  (the rest: reports, and the ends of processes)"
        yield ""
        yield f"{'CPU-s':>8}  the {DEAREST} dearest tests"
        for name, used_s in Counter(self.by_test).most_common(DEAREST):
            yield f"{used_s:8.2f}  {name}"


def verdict(cpu_s: float, wall_s: float, loop_s: float, asked_cpu_s: float, asked_wall_s: float) -> str:
    """One line: measured CPU-seconds, and the limit for a machine with this loop time."""
    line = f"cost: {cpu_s:.0f} CPU-s, {wall_s:.0f} s of wall time; reference loop {loop_s:.2f} s"
    asked = [f"{asked_cpu_s * loop_s:.0f} CPU-s"] if asked_cpu_s else []
    asked += [f"{asked_wall_s * loop_s:.0f} s"] if asked_wall_s else []
    return line + (f", so at most {' and '.join(asked)} are asked" if asked else "")


def main(arguments: Sequence[str]) -> int:
    """Run a command, with the open files of this process (a jobserver of make); its exit code."""
    name, *command = arguments
    code = subprocess.run(command, check=False, close_fds=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{name}: {used.ru_utime + used.ru_stime:.0f} CPU-s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
