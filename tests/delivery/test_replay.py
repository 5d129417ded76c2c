"""A ledger that went back gets again what it has lost: what the journal keeps, no more and no less."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.delivery import replay as under_test
from proxy.delivery.replay import Replayer, lost_records
from proxy.journal.journal import Journal, Pending
from proxy.ledger.settling.history import LedgerState, went_back
from tests.journal.records import ROOMY, exchange_id, opened, record
from tests.support.recorder import Recorder


class Ledger:
    """Receipts, in a history."""

    def __init__(self) -> None:
        self.has: dict[int, str | None] = {}
        self.at = LedgerState("1", 100)
        self.away = False
        self.asked = 0

    def state(self) -> LedgerState:
        return self.at

    def receipts(self, node: str, low: int, high: int) -> set[tuple[int, str | None]]:
        if self.away:
            raise OSError("it is away")
        self.asked += 1
        return {(seq, one) for seq, one in self.has.items() if low <= seq <= high}


async def in_thread(work: Any, *arguments: Any) -> Any:
    return work(*arguments)


class Stage:
    """A journal whose records the ledger has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal.open(folder, bytes_max=ROOMY, keep_settled_s=60.0)
        self.ledger = Ledger()
        self.again: list[int] = []

    def settle(self, *numbers: int, started_at: float | None = None) -> None:
        for number in numbers:
            began = opened(number, started_at=time.time() if started_at is None else started_at)
            self.journal.begin(began)
            self.journal.finish(record(began))
            for one in self.journal.pending(10):
                self.ledger.has[one.seq] = one.exchange_id
                self.journal.settled([one.seq])

    def lose(self, *numbers: int) -> list[int]:
        """Their receipts; their seqs."""
        names = {exchange_id(number) for number in numbers}
        lost = [seq for seq, one in self.ledger.has.items() if one in names]
        for seq in lost:
            del self.ledger.has[seq]
        return lost

    def replayer(self) -> Replayer:
        return Replayer(
            self.folder, self.journal, self.ledger, observer=Recorder(), in_thread=in_thread, revived=self._revived
        )

    def _revived(self, lost: Sequence[Pending], seqs: Sequence[int]) -> None:
        assert {one.seq for one in lost} >= set(seqs)
        self.again += seqs


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "j")
    yield made
    made.journal.close()


def test_a_timeline_or_an_earlier_clock_says_that_it_went_back() -> None:
    before = LedgerState("1", 100)
    assert not went_back(before, LedgerState("1", 100))
    assert not went_back(before, LedgerState("1", 101))
    assert went_back(before, LedgerState("1", 99))
    assert went_back(before, LedgerState("2", 500))


async def test_nothing_is_compared_while_the_ledger_goes_on(stage: Stage) -> None:
    stage.settle(1, 2)
    replayer = stage.replayer()
    await replayer.check()
    stage.ledger.at = LedgerState("1", 200)
    await replayer.check()
    assert (stage.ledger.asked, stage.again) == (0, [])


async def test_what_is_lost_is_pending_again(stage: Stage) -> None:
    stage.settle(1, 2, 3, 4)
    replayer = stage.replayer()
    await replayer.check()
    lost = stage.lose(2, 4)
    stage.ledger.at = LedgerState("2", 300)
    await replayer.check()
    assert stage.again == lost
    assert [one.seq for one in stage.journal.pending(10)] == lost
    assert stage.journal.depth == 2


async def test_a_restart_in_between_changes_nothing(stage: Stage) -> None:
    stage.settle(1, 2)
    await stage.replayer().check()
    lost = stage.lose(2)
    stage.ledger.at, stage.ledger.away = LedgerState("2", 300), True
    with pytest.raises(OSError, match="away"):
        await stage.replayer().check()
    stage.ledger.away = False
    await stage.replayer().check()
    assert stage.again == lost


async def test_it_is_compared_once_more_for_answers_on_their_way(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "AGAIN_S", 0.02)
    replayer = stage.replayer()
    await replayer.check()
    stage.ledger.at = LedgerState("2", 300)
    await replayer.check()
    stage.settle(7)  # by the old server
    lost = stage.lose(7)
    await asyncio.sleep(0.03)
    await replayer.check()
    assert stage.again == lost
    asked = stage.ledger.asked
    await replayer.check()
    assert stage.ledger.asked == asked


def test_other_exchanges_under_the_number_and_unreadable_letters(stage: Stage) -> None:
    stage.settle(1, 2, 3)
    first, second, _ = stage.ledger.has
    stage.ledger.has[first] = exchange_id(99)  # of a copy of this folder
    stage.ledger.has[second] = None  # a dead letter that could not be read
    node = stage.journal.node.node_id
    assert [one.seq for page in lost_records(stage.folder, node, stage.ledger) for one in page] == [first]


def test_what_a_ledger_may_have_archived_is_not_lost(stage: Stage) -> None:
    stage.settle(1, started_at=time.time() - under_test.AGE_S_MAX - 60)
    stage.lose(1)
    assert [*lost_records(stage.folder, "n", stage.ledger)] == [[]]
