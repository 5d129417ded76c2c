"""Tests in several processes: each is reported, whatever becomes of its process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.workers import TAKEN_MAX, takes

ROOT = Path(__file__).parents[2]

CONFTEST = """
from tests.support import cost, workers

def pytest_addoption(parser):
    cost.add_options(parser)
    workers.add_options(parser)

def pytest_configure(config):
    config.pluginmanager.register(workers)
"""
TESTS = """
import os, pytest, signal

@pytest.fixture(scope="module")
def server(tmp_path_factory):
    (tmp_path_factory.mktemp("server") / str(os.getpid())).touch()
    yield
    print("the server ends")
    assert False, "its end fails"

def test_fails():
    print("what it prints")
    assert 1 == 2

@pytest.mark.skip(reason="never")
def test_is_skipped():
    pass

@pytest.mark.xfail(strict=True)
def test_is_known_to_fail():
    assert False

@pytest.mark.parametrize("number", range(3))
def test_passes(number, server):
    pass
"""
KILLED = """
import os, signal

def test_passes():
    pass

def test_kills():
    os.kill(os.getpid(), signal.SIGKILL)

def test_is_taken_with_it():
    pass
"""


def run(folder: Path, *options: str, **modules: str) -> tuple[int, str]:
    """The exit code of pytest with these modules, and what it prints."""
    for name, text in {"conftest": CONFTEST, **modules}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugins = ("-p", "no:schemathesis", "-p", "no:valkey", "-p", "no:xdist")
    command = [sys.executable, "-m", "pytest", "-ra", "-q", *plugins, *options, "--rootdir", str(folder), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_copy_takes_tests_of_one_module_and_each_test_is_taken_once() -> None:
    items: list[Any] = [SimpleNamespace(path=path) for path in ["a"] * 3 + ["b"] * (2 * TAKEN_MAX + 1) + ["a"]]
    found = takes(items)
    assert [position for take in found for position in take] == list(range(len(items)))
    assert [len(take) for take in found] == [3, TAKEN_MAX, TAKEN_MAX, 1, 1]
    assert all(len({items[position].path for position in take}) == 1 for take in found)


@pytest.mark.process
@pytest.mark.thorough
def test_reports_are_those_of_one_process(tmp_path: Path) -> None:
    modules = {"test_one": TESTS, "test_two": TESTS}
    summaries = []
    for options in ((), ("-n", "2")):
        code, printed = run(tmp_path, *options, **modules)
        assert code == 1
        assert printed.count("what it prints") == printed.count("the server ends") == 4, "in the source, and captured"
        (counts,) = re.findall(r"(?m)^\d+ failed.*(?= in )", printed)
        named = [line for line in printed.splitlines() if line.startswith(("FAILED", "ERROR", "SKIPPED", "XFAIL"))]
        summaries.append((counts, sorted(named)))
    assert summaries[0] == summaries[1]
    assert summaries[0][0] == "2 failed, 6 passed, 2 skipped, 2 xfailed, 2 errors"


@pytest.mark.process
@pytest.mark.thorough
def test_a_killed_process_fails_the_run_and_the_others_go_on(tmp_path: Path) -> None:
    code, printed = run(tmp_path, "-n", "2", test_killed=KILLED, test_other=TESTS)
    assert code == 1
    assert "the process that ran it has ended with exit code -9" in printed
    assert "1 tests have not been run" in printed
    assert "test_other.py::test_fails" in printed


@pytest.mark.process
@pytest.mark.thorough
def test_all_stop_after_the_first_failure_if_an_option_wants_it(tmp_path: Path) -> None:
    passing = (
        "import pytest, time\n\n@pytest.mark.parametrize('n', range(500))\ndef test_passes(n):\n    time.sleep(0.01)\n"
    )
    code, printed = run(tmp_path, "-n", "2", "-x", test_failing=TESTS, test_passing=passing)
    assert (code, "stopping after" in printed) == (1, True)
    (passed,) = re.findall(r"(\d+) passed", printed)
    assert int(passed) < 250
