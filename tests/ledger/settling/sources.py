"""A queue in memory that a settler takes records from, and what it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.billing.entries import LedgerEntry
from proxy.billing.record import UsageRecord
from proxy.journal.frames import record_payload
from proxy.ledger.settling.settler import Settler
from proxy.ledger.settling.store import LedgerStore, Settled
from tests.ledger.entries import a_record, an_entry, number_of
from tests.support.recorder import Recorder
from tests.support.waiting import beside, until


@dataclass(frozen=True)
class Kept:
    """A record in a source; None cannot be read."""

    seq: int
    made: UsageRecord | None
    deliveries: int = 1
    node: str = "node"

    @property
    def payload(self) -> bytes:
        return b'{"seq": %d, "broken": "\xff\0' % self.seq if self.made is None else record_payload(self.made)

    @property
    def record(self) -> UsageRecord:
        if self.made is None:
            raise ValueError("cannot be read")
        return self.made


@dataclass
class Source:
    """A queue in memory."""

    waiting: dict[int, Any] = field(default_factory=dict)
    """by seq"""
    acknowledged: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    largest: int = 0
    trouble: list[OSError] = field(default_factory=list)
    drained: bool = False

    @classmethod
    def of(cls, numbers: Iterable[int], **differences: Any) -> Source:
        """With the records of these numbers, as for `add`."""
        source = cls()
        source.add(numbers, **differences)
        return source

    def add(self, numbers: Iterable[int], *, unreadable: Sequence[int] = (), deliveries: int = 1) -> None:
        for n in numbers:
            self.waiting[n] = Kept(n, None if n in unreadable else a_record(n), deliveries)

    async def take(self, limit: int) -> Sequence[Any]:
        if self.trouble:
            raise self.trouble.pop()
        if not self.waiting and not self.drained:
            await asyncio.sleep(0.005)
        found = list(self.waiting.values())[:limit]
        self.largest = max(self.largest, len(found))
        return found

    async def extend_claim(self, taken: Sequence[Any]) -> None:
        self.held += [one.seq for one in taken]

    async def settled(self, taken: Sequence[Any]) -> None:
        for one in taken:
            del self.waiting[one.seq]
            self.acknowledged.append(one.seq)

    def drain(self) -> None:
        self.drained = True


@dataclass
class SettlerRecorder(Recorder):
    settled: list[Settled] = field(default_factory=list)
    """by transaction"""
    unreadable: int = 0

    @property
    def inserted(self) -> int:
        return sum(len(one.inserted) for one in self.settled)

    def committed(self, settled: Settled, *, unreadable: int, duration_s: float) -> None:
        assert 0 <= duration_s < 60
        self.settled.append(settled)
        self.unreadable += unreadable


def to_entry(record: UsageRecord) -> LedgerEntry:
    return an_entry(number_of(record))


async def settle_all(
    source: Source, store: LedgerStore, to_entry: Callable[[UsageRecord], LedgerEntry] = to_entry, **settings: Any
) -> SettlerRecorder:
    """Run a settler until nothing waits."""
    recorder = SettlerRecorder()
    async with beside(Settler(source, store, to_entry=to_entry, observer=recorder, **settings).run()):
        await until(lambda: not source.waiting)
    return recorder
