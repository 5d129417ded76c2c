"""What the ledger has confirmed is kept for a while, beside what waits for it; what is lost becomes pending again."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.doctor.machine import read
from proxy.journal import log as journal_log
from proxy.journal.journal import Journal, Pending
from proxy.journal.reader import settled_records, unsettled_exchanges
from proxy.journal.segment import Segment
from tests.journal.journals import numbers_of, run_through
from tests.journal.records import ROOMY, exchange_id

SEGMENT = 20_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen exchanges fill a segment."""
    monkeypatch.setattr(journal_log, "SEGMENT_BYTES", SEGMENT)


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[..., Journal]]:
    """Opens the journal of the test; the last one is closed."""
    journals: list[Journal] = []

    def open_(*, keep_s: float = 60.0, bytes_max: int = ROOMY) -> Journal:
        if journals:
            journals.pop().close()
        journals.append(Journal.open(folder, bytes_max=bytes_max, keep_settled_s=keep_s))
        return journals[0]

    yield open_
    journals.pop().close()


def settle(journal: Journal, count: int) -> None:
    """So many exchanges, settled a few at a time."""
    for number in range(count):
        run_through(journal, range(number, number + 1))
        journal.settled([one.seq for one in journal.pending(10)])
    journal.sync()


def settled(folder: Path) -> list[Pending]:
    return sorted((one for page in settled_records(folder) for one in page), key=lambda one: one.seq)


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "settled").glob("*.log"))


def test_settled_records_are_kept_and_not_read_at_start(opened: Callable[..., Journal], folder: Path) -> None:
    journal = opened()
    settle(journal, 100)
    assert len(kept(folder)) > 3
    assert [one.exchange_id for one in settled(folder)] == [exchange_id(n) for n in range(100)]
    assert (journal.depth, journal.unsettled_bytes) == (0, 0)
    again = opened()
    assert (again.depth, again.damage, again.open_count) == (0, [], 0)
    assert len(settled(folder)) == 100
    assert read(folder)[0] == 0


def test_a_record_that_waits_is_not_named(opened: Callable[..., Journal], folder: Path) -> None:
    journal = opened()
    run_through(journal, range(1))
    first = journal.pending(1)
    for number in range(1, 60):
        run_through(journal, range(number, number + 1))
        journal.settled([one.seq for one in journal.pending(10, first[0].seq)])
    journal.sync()
    assert kept(folder)
    assert [one.exchange_id for one in settled(folder)] == [exchange_id(n) for n in range(1, 60)]


def test_lost_records_are_pending_again_and_settle_again(opened: Callable[..., Journal], folder: Path) -> None:
    journal = opened()
    settle(journal, 60)
    lost = [one for one in settled(folder) if one.seq % 3 == 0]
    assert journal.revive(lost) == [one.seq for one in lost]
    assert journal.revive(lost) == []
    assert journal.pending(1_000) == lost
    assert unsettled_exchanges(folder) == {one.exchange_id for one in lost}
    assert read(folder)[0] == len(lost)

    journal = opened()
    assert journal.pending(1_000) == lost, "a restart finds them"
    journal.settled([one.seq for one in lost])
    assert journal.depth == 0
    assert len(settled(folder)) == 60
    assert journal.revive(lost[:1]) == [lost[0].seq], "of an earlier run, in this one"
    assert [one.seq for one in journal.pending(10)] == [lost[0].seq]


def test_the_old_go_and_the_disk_and_the_limit_have_the_last_word(
    opened: Callable[..., Journal], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(bytes_max=4 * SEGMENT)
    settle(journal, 200)
    assert 2 <= len(kept(folder)) <= 4, "as much as the journal may have, less what is live"
    oldest, *_ = kept(folder)
    os.utime(oldest, (0, time.time() - 61))
    journal.prune_kept()
    assert oldest not in kept(folder)
    assert journal.keeps_segments
    assert len(kept(folder)) >= 1

    attempts: list[int] = []
    append = Segment.append

    def full(segment: Segment, frame: bytes) -> int:
        attempts.append(1)
        if journal.keeps_segments:
            raise OSError(errno.ENOSPC, "full")
        return append(segment, frame)

    monkeypatch.setattr(Segment, "append", full)
    run_through(journal, range(500, 501))
    assert not kept(folder), "they make room"
    assert numbers_of(journal) == [500]
    monkeypatch.undo()


def test_nothing_is_kept_if_it_is_off(opened: Callable[..., Journal], folder: Path) -> None:
    settle(opened(), 60)
    assert kept(folder)
    journal = opened(keep_s=0.0)
    journal.prune_kept()
    settle(journal, 60)
    assert not (kept(folder))
