"""The cost of a run: processes that tests start are counted, and pytest's own summary stays the last line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cost import verdict

ROOT = Path(__file__).parents[2]

CONFTEST = """
from tests.support import cost, workers

def pytest_addoption(parser):
    cost.add_options(parser)
    workers.add_options(parser)

def pytest_configure(config):
    cost.register(config)
    config.pluginmanager.register(workers)
"""
TESTS = """
import subprocess, sys

WORK = "import time\\nwhile time.process_time() < 0.4: pass"

def test_dear():
    subprocess.run([sys.executable, "-c", WORK], check=True)

def test_cheap():
    pass
"""


@pytest.mark.process
@pytest.mark.thorough
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_child_is_counted_for_its_test_and_the_last_line_is_pytests_own(tmp_path: Path, workers: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_two.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        workers,
        "-p",
        "no:schemathesis",
        "-p",
        "no:valkey",
        "-p",
        "no:xdist",
    ]
    options = ["--cost", "--asked-cpu-s", "300", "--asked-wall-s", "180", "--rootdir", str(tmp_path), str(tmp_path)]
    lines = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()  # fmt: skip
    assert re.match(r"2 passed in ", lines[-1])
    measured = re.match(r"cost: (\d+) CPU-s, \d+ s of wall time; reference loop \d+\.\d\d s, so at most", lines[-2])
    assert measured
    dear, cheap = (float(line.split()[0]) for line in lines if "::" in line)
    assert dear >= 0.35 > 0.1 > cheap  # the system counts in hundredths
    assert int(measured[1]) >= 1


def test_what_is_asked_is_in_proportion_to_the_loop() -> None:
    assert verdict(310.4, 170.6, 0.5, 300, 180) == (
        "cost: 310 CPU-s, 171 s of wall time; reference loop 0.50 s, so at most 150 CPU-s and 90 s are asked"
    )
    assert verdict(31, 17, 1, 60, 0) == (
        "cost: 31 CPU-s, 17 s of wall time; reference loop 1.00 s, so at most 60 CPU-s are asked"
    )
