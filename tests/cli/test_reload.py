"""`reload`, from the command line: the result of each process, as the processes write them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from proxy.cli import reload
from proxy.foundation.files import replace_text
from proxy.runtime.machine.configuration_file import (
    ConfigurationFile,
    ConfigurationStatus,
    process_start,
    running_status,
    status_file,
)
from proxy.settings.variables import not_set
from tests.cli.commands import Commands

pytestmark = pytest.mark.io


class Processes:
    """What several processes write, of which this one is the parent. `become`: their statuses after the signal."""

    def __init__(self, run: Commands, count: int) -> None:
        self.data = run.config.parent / "data"
        pid = os.getpid()
        digest = ConfigurationFile(run.config).read()[1]
        self.before = [
            ConfigurationStatus(
                pid=pid, started=process_start(pid), file=str(run.config), digest="old", applied_at=time.time(),
                processes=count, process=100 + number,
            )
            for number in range(count)
        ]  # fmt: skip
        self.become = [msgspec.structs.replace(one, attempts=1, digest=digest) for one in self.before]
        self.write(self.before)

    def change(self, number: int, **fields: object) -> None:
        self.become[number] = msgspec.structs.replace(self.become[number], **fields)

    def write(self, statuses: list[ConfigurationStatus]) -> None:
        for number, status in enumerate(statuses):
            replace_text(status_file(self.data, number), msgspec.json.encode(status).decode())


@pytest.fixture
def three(run: Commands) -> Iterator[Processes]:
    processes = Processes(run, 3)
    earlier = signal.signal(signal.SIGHUP, lambda *_: processes.write(processes.become))
    yield processes
    signal.signal(signal.SIGHUP, earlier)


def test_each_process_has_a_line(run: Commands, three: Processes) -> None:
    three.change(1, need_restart=["exchanges_max"])
    run("reload")
    assert run.out == "".join(
        f"tokenweir: process {number}: reloaded {run.config} (1 provider, 1 model)\n" for number in range(3)
    )
    assert run.err == "tokenweir: only a restart applies: exchanges_max\n"
    three.write(three.before)
    results = run("reload", "--json")
    assert [(one["process"], one["pid"], one["error"]) for one in results] == [(n, 100 + n, None) for n in range(3)]
    assert [one["need_restart"] for one in results] == [[], ["exchanges_max"], []]


def test_one_that_fails_is_a_failure(run: Commands, three: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "RELOAD_S", 0.0)
    three.change(0, error=not_set("STRIPE_KEY"))
    three.change(1, error="models.x: is wrong", need_restart=["of the last one"])
    three.change(2, attempts=0)  # it does not answer
    run("reload", code=1)
    assert run.out == ""
    assert run.err.splitlines() == [
        f"tokenweir: process 0: nothing has changed: {not_set('STRIPE_KEY')}",
        "tokenweir: a process keeps the environment of its start: restart it",
        "tokenweir: process 1: nothing has changed: models.x: is wrong",
        "tokenweir: process 2: nothing has changed: no answer within 0 s: see the log",
    ]


def test_one_that_was_started_since_needs_no_reload_with_the_same_file(run: Commands, three: Processes) -> None:
    three.change(2, attempts=0, process=7)
    assert run("reload", "--json")[2]["pid"] == 7
    three.before.pop()  # it has not started yet
    status_file(three.data, 2).unlink()
    three.write(three.before)
    assert [one["pid"] for one in run("reload", "--json")] == [100, 101, 7]


def test_the_status_of_another_run_is_not_read(run: Commands, three: Processes, tmp_path: Path) -> None:
    three.write([msgspec.structs.replace(one, started="earlier") for one in three.before])
    assert running_status(three.data, 1) is None
    assert "no proxy runs" in run.refused("reload")
