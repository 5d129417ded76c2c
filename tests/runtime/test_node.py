"""A process's part of the data directory after crashes: on a nearly full disk, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proxy.billing.record import BackgroundRun
from proxy.gateway.outbox import Outbox
from proxy.journal.frames import FrameKind
from proxy.journal.log import JournalFull, Log
from proxy.metering.estimator.estimate import Estimator
from proxy.runtime.machine.data_folder import DataFolder
from proxy.runtime.proxy.node import Node
from proxy.settings import Settings, load
from proxy.telemetry.metrics import Metrics
from tests.journal.records import exchange_id, opened, record
from tests.support.waiting import beside, until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = tmp_path / "tokenweir.yaml"
    config.write_text(
        'providers: {p: {base_url: "http://127.0.0.1:9/v1"}}\nmodels: {"*": {provider: p}}\ndata_dir: data\n'
    )
    return load(config, os.environ)


def killed(node: Node) -> None:
    """Its files are as they are; the lock is gone."""
    node.release()


def recovered(node: Node) -> list[tuple[str, int]]:
    """Recover → the exchange and the events of each pending record."""
    node.recover(Estimator(), Metrics())
    return [(one.record.opened.exchange_id, one.record.events) for one in node.journal.pending(100)]


async def test_a_second_crash_before_the_disk_took_the_recovery(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from the code: the failed write was ignored, the progress cleared, and the second recovery billed 0."""
    folder = DataFolder(settings.data_dir)
    folder.make()
    node = Node(folder, settings)
    outbox = Outbox(node.journal, node.table, node.disk)
    for number in (1, 2):
        slot = outbox.claim(exchange_id(number))
        outbox.begin(opened(number, slot=slot.index))
        slot.deliver(10 * number, 500)
    killed(node)
    append = Log.append

    def full(log: Log, kind: int, seq: int, payload: bytes, *, live: bool) -> int:
        if kind == FrameKind.CLOSE:
            raise JournalFull("no space left")
        return append(log, kind, seq, payload, live=live)

    expected = [(exchange_id(1), 10), (exchange_id(2), 20)]
    for _ in range(2):  # and a third one
        node = Node(folder, settings)
        with monkeypatch.context() as patch:
            patch.setattr(Log, "append", full)
            assert recovered(node) == expected, "in memory"
            free = node.table.free
            assert node.table.slots - free == 2
        killed(node)
    node = Node(folder, settings)
    with monkeypatch.context() as patch:
        patch.setattr(Log, "append", full)
        left = node.recover(Estimator(), Metrics())
    outbox = Outbox(node.journal, node.table, node.disk, unwritten=left.unwritten)
    async with beside(outbox.keep_durable()):  # there is room again, and the records are written
        await until(lambda: node.table.free == node.table.slots, within_s=5)
    killed(node)
    node = Node(folder, settings)
    assert recovered(node) == expected, "once"
    killed(node)


def in_the_background(response_id: str) -> BackgroundRun:
    return BackgroundRun(response_id, "openai.responses", "proj", until=2e9)


async def test_what_runs_in_the_background_goes_on(settings: Settings) -> None:
    """With its slot, unless nobody was told its name, its progress is lost, or nobody can be asked."""
    folder = DataFolder(settings.data_dir)
    folder.make()
    node = Node(folder, settings)
    outbox = Outbox(node.journal, node.table, node.disk)
    for number, (provider, size, lost) in enumerate(
        [("p", 500, False), ("p", 0, False), ("p", 500, True), ("gone", 500, False)], start=1
    ):
        slot = outbox.claim(exchange_id(number))
        run = in_the_background(f"resp_{number}")
        outbox.begin(opened(number, slot=slot.index, provider=provider))
        outbox.reassign(opened(number, slot=slot.index, provider=provider, background=run))
        slot.deliver(0, size)
        if lost:
            slot.release()
    killed(node)
    for start in range(2):  # one that is cut off changes nothing
        node = Node(folder, settings)
        left = node.recover(Estimator(), Metrics())
        ((resumable, progress, slot),) = left.resumable
        assert (resumable.exchange_id, progress.bytes) == (exchange_id(1), 500)
        assert resumable.background == in_the_background("resp_1")
        assert node.table.slots - node.table.free == 1
        assert [one.exchange_id for one in node.journal.unfinished()] == [exchange_id(1)]
        if start == 0:
            assert left.settled == ["resp_2", "resp_3", "resp_4"]
        killed(node)
    node = Node(folder, settings)
    ((resumable, _, slot),) = node.recover(Estimator(), Metrics()).resumable
    Outbox(node.journal, node.table, node.disk).finish(record(resumable), slot)
    assert node.table.free == node.table.slots
    assert [one.record.opened.exchange_id for one in node.journal.pending(100)] == [
        exchange_id(number) for number in (2, 3, 4, 1)
    ]
    killed(node)
