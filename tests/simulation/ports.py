"""The queue and the ledger in memory, and what goes wrong on the way to them.

Law: they keep the promises of the real ones, and nothing more. Faults strike
on the way there and on the way back: a caller that hears of a failure never knows whether it was done.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from proxy.billing.adjustment import ContradictionError, restated
from proxy.billing.entries import LedgerEntry
from proxy.billing.settlement import content_hash
from proxy.delivery.delivery import DeliveredRecord
from proxy.journal.journal import Pending
from proxy.ledger.settling.store import Arrival, DeadLetter, Settled
from proxy.storage.database import LedgerUnavailable
from proxy.storage.redis_client import QueueUnavailable
from tests.support.leases import LocalLeases

_T = TypeVar("_T")

CLAIM_AFTER_S = 30.0
# As long as an answer takes at most, mostly.
_SLOW_S = 1.0
Name = tuple[str, str, int]


class Faults:
    """What can happen to a call, by the seed."""

    def __init__(self, rng: Random, share: float) -> None:
        """`share` of all calls go wrong."""
        self._rng = rng
        self.share = share
        self.struck = 0

    async def call(self, unavailable: type[OSError], work: Callable[[], _T]) -> _T:
        """Do `work`; or not; or do it and lose the answer; or take long."""
        rng = self._rng
        await asyncio.sleep(rng.random() * 0.004)
        if rng.random() >= self.share:
            return work()
        self.struck += 1
        kind = rng.randrange(3)
        if kind == 0:
            raise unavailable("the request was lost")
        if kind == 1:
            work()
            await asyncio.sleep(rng.random() * _SLOW_S)
            raise unavailable("the answer was lost")
        await asyncio.sleep(rng.random() * _SLOW_S * (6 if rng.random() < 0.1 else 1))
        return work()


@dataclass(slots=True)
class _Message:
    node: str
    seq: int
    payload: bytes
    holder: str | None = None
    held_at: float = 0.0
    deliveries: int = 0


@dataclass(slots=True)
class Stream:
    """The server's side: what is there, and who holds it."""

    messages: OrderedDict[bytes, _Message] = field(default_factory=OrderedDict)
    count: int = 0

    def flush(self) -> None:
        """FLUSHALL."""
        self.messages.clear()

    def lose_last(self, share: float) -> None:
        """A failover that did not know the last writes."""
        for ticket in list(self.messages)[int(len(self.messages) * (1 - share)) :]:
            del self.messages[ticket]


class MemoryQueue:
    """One client of a stream, as RedisQueue is."""

    def __init__(self, stream: Stream, faults: Faults, *, consumer: str) -> None:
        self._stream = stream
        self._faults = faults
        self._consumer = consumer
        self._draining = False
        self._owed: list[bytes] = []
        """settled, and the server was not told"""

    async def add(self, records: Sequence[Pending], node: str) -> list[bytes]:
        def work() -> list[bytes]:
            tickets = []
            for one in records:
                self._stream.count += 1
                ticket = b"%d" % self._stream.count
                self._stream.messages[ticket] = _Message(node, one.seq, one.payload)
                tickets.append(ticket)
            return tickets

        return await self._faults.call(QueueUnavailable, work)

    async def missing(self, tickets: Sequence[bytes]) -> list[bytes]:
        return await self._faults.call(
            QueueUnavailable, lambda: [ticket for ticket in tickets if ticket not in self._stream.messages]
        )

    def drain(self) -> None:
        self._draining = True

    async def take(self, limit: int) -> Sequence[DeliveredRecord]:
        """See RedisQueue: what a lost answer gave us, what the dead held, what is new."""
        if self._draining:
            return []
        taken = await self._faults.call(QueueUnavailable, lambda: self._take(limit))
        for one in taken:  # a try is counted when the messages have arrived: an answer that was lost is none
            if (message := self._stream.messages.get(one.message_id)) is not None:
                message.deliveries = one.deliveries
        if not taken:
            await asyncio.sleep(0.25)
        return taken

    def _take(self, limit: int) -> list[DeliveredRecord]:
        now = asyncio.get_running_loop().time()
        messages = self._stream.messages
        self._acknowledge()
        free = [(t, m) for t, m in messages.items() if m.holder is None][:limit]
        stale = [
            (t, m)
            for t, m in messages.items()
            if m.holder is not None and (m.holder == self._consumer or now - m.held_at >= CLAIM_AFTER_S)
        ]
        chosen = [(t, m) for t, m in stale if m.deliveries < 2][:limit] or stale[:1] or free
        for _, message in chosen:
            message.holder, message.held_at = self._consumer, now
        return [DeliveredRecord(m.node, m.seq, m.payload, m.deliveries + 1, t) for t, m in chosen]

    async def extend_claim(self, taken: Sequence[DeliveredRecord]) -> None:
        now = asyncio.get_running_loop().time()
        for one in taken:
            if (message := self._stream.messages.get(one.message_id)) is not None:
                message.holder, message.held_at = self._consumer, now

    async def settled(self, taken: Sequence[DeliveredRecord]) -> None:
        """See RedisQueue: never raises; what the server was not told is told with the next take."""
        self._owed += [one.message_id for one in taken]
        with suppress(QueueUnavailable):
            await self._faults.call(QueueUnavailable, self._acknowledge)

    def _acknowledge(self) -> None:
        for ticket in self._owed:
            self._stream.messages.pop(ticket, None)
        self._owed.clear()


class FaultyLeases(LocalLeases):
    """The board, behind the same network."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def flush(self) -> None:
        """FLUSHALL."""
        self._beats.clear()
        self._leases.clear()

    def announced(self, node: str) -> set[str]:
        """The exchanges of a node that a sweeper would find."""
        return {name for name, parts in self._leases.get(node, {}).items() if parts.opened is not None}

    async def renew(self, *arguments: Any) -> Any:
        return await self._through(super().renew(*arguments))

    async def nodes(self) -> Any:
        return await self._through(super().nodes())

    async def ids(self, node: str) -> Any:
        return await self._through(super().ids(node))

    async def of(self, node: str) -> Any:
        return await self._through(super().of(node))

    async def _through(self, work: Awaitable[_T]) -> _T:
        # LocalLeases never waits: one step of the coroutine is all of it.
        def done() -> _T:
            try:
                work.send(None)  # type: ignore[attr-defined]
            except StopIteration as over:
                return over.value  # type: ignore[no-any-return]
            raise AssertionError("it waited")

        try:
            return await self._faults.call(QueueUnavailable, done)
        finally:
            work.close()  # type: ignore[attr-defined]


class MemoryLedger:
    """LedgerStore without SQL: entries, receipts, balances, letters; all of a batch or nothing."""

    def __init__(self) -> None:
        self.entries: dict[Name, LedgerEntry] = {}
        self.letters: list[DeadLetter] = []
        self.balance_nusd: dict[str, int] = {}
        self._books: dict[str, list[LedgerEntry]] = {}
        self._receipts: dict[str, set[tuple[int, str | None]]] = {}

    def settle(self, arrivals: Sequence[Arrival], letters: Sequence[DeadLetter] = ()) -> Settled:
        inserted: list[LedgerEntry] = []
        conflicts = 0
        for arrival in arrivals:
            entry = arrival.entry
            there = self.entries.get((entry.exchange_id, entry.kind, entry.seq))
            if there is None:
                self._put(arrival, entry, inserted)
            elif content_hash(there) != content_hash(entry):
                conflicts += not self._restate(arrival, inserted)
        for letter in letters:
            self.letters.append(letter)
            if letter.node is not None and letter.journal_seq is not None:
                self._receipts.setdefault(letter.node, set()).add((letter.journal_seq, letter.exchange_id))
        return Settled(inserted=tuple(inserted), conflicts=conflicts)

    def receipts(self, node: str, low: int, high: int) -> set[tuple[int, str | None]]:
        return {one for one in self._receipts.get(node, set()) if low <= one[0] <= high}

    def _put(self, arrival: Arrival, entry: LedgerEntry, inserted: list[LedgerEntry]) -> None:
        self.entries[entry.exchange_id, entry.kind, entry.seq] = entry
        self._books.setdefault(entry.exchange_id, []).append(entry)
        self.balance_nusd[entry.key_id] = self.balance_nusd.get(entry.key_id, 0) + (entry.charge_nusd or 0)
        self._receipt(arrival)
        inserted.append(entry)

    def _restate(self, arrival: Arrival, inserted: list[LedgerEntry]) -> bool:
        entry = arrival.entry
        try:
            change = restated(self._books[entry.exchange_id], entry, content_hash)
        except ContradictionError:
            self.letters.append(DeadLetter(reason="conflict", payload="", exchange_id=entry.exchange_id))
            self._receipt(arrival)
            return False
        if change is not None:
            self._put(arrival, change, inserted)
        return True

    def _receipt(self, arrival: Arrival) -> None:
        if arrival.node is not None and arrival.journal_seq is not None:
            self._receipts.setdefault(arrival.node, set()).add((arrival.journal_seq, arrival.entry.exchange_id))


def unavailable_ledger(faults: Faults) -> Callable[..., Awaitable[Any]]:
    """`in_thread` for whoever uses the ledger: the way there, with its faults."""

    async def in_thread(work: Callable[..., _T], *arguments: Any) -> _T:
        return await faults.call(LedgerUnavailable, lambda: work(*arguments))

    return in_thread
