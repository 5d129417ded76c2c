"""Carries records from a queue into the ledger. Law: a record is acknowledged only after its transaction has
committed; nothing stops the settler but its owner; a record that cannot become an entry never holds up another.

Reading, pricing and writing happen on one thread of its own: the event loop, which may relay streams, only hands over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

from proxy.billing.entries import LedgerEntry
from proxy.billing.record import UsageRecord
from proxy.ledger.settling.store import Arrival, DeadLetter, LedgerStore, Settled
from proxy.storage.database import LedgerUnavailable
from proxy.storage.executor import BoundedExecutor, InThread

# Larger batches are hardly cheaper per entry (27 µs at 100, 21 at 500), and taking one from the journal holds up the
# event loop for a few µs per record.
BATCH_RECORDS_MAX = 250

# A database comes back within seconds of a restart or minutes of a failover; asking more often than this helps nobody.
RETRY_S_MIN, RETRY_S_MAX = 0.05, 5.0

# Tries of a batch that fails though the database is well: then one of its records is to blame.
TRIES_MAX = 3

# A record that was delivered more often than this, each time to a worker that did not live to settle it, is not tried.
DELIVERIES_MAX = 5

# Several times in the shortest time after which anybody would claim a batch.
HOLD_S = 5.0


class PendingRecord(Protocol):
    """A record on its way to the ledger."""

    @property
    def node(self) -> str:
        """The journal that it comes from."""

    @property
    def seq(self) -> int:
        """Its number there."""

    @property
    def payload(self) -> bytes:
        """The record as it was written down."""

    @property
    def deliveries(self) -> int:
        """How often somebody has tried to settle it, this time included."""

    @property
    def record(self) -> UsageRecord:
        """The record. Raises ValueError if this version cannot read it."""


class RecordSource(Protocol):
    """The queue, as the settler sees it."""

    async def take(self, limit: int) -> Sequence[Any]:
        """The oldest records that are not settled, at most `limit`. Waits up to a second for the first one; may give
        none. Raises OSError if they cannot be had now."""

    async def hold(self, taken: Sequence[Any]) -> None:
        """These are still being settled. Never raises."""

    async def settled(self, taken: Sequence[Any]) -> None:
        """The ledger has these for good. Never raises: what cannot be acknowledged comes again."""

    def drain(self) -> None:
        """From now on `take` does not wait, and gives only what nobody else would carry."""


class Observer(Protocol):
    """Who wants to know how it goes: metrics. Called on the event loop's thread."""

    def committed(self, settled: Settled, *, unreadable: int, duration_s: float) -> None:
        """One transaction: `settled.inserted` are the new entries; `unreadable` records became dead letters."""

    def failed(self, error: Exception) -> None:
        """A try failed and there will be another: LedgerUnavailable, an OSError of the queue, or else a bug of ours."""


class Settler:
    """One task and one thread. `run` it, `close` it."""

    def __init__(
        self,
        source: RecordSource,
        store: LedgerStore,
        *,
        to_entry: Callable[[UsageRecord], LedgerEntry],
        observer: Observer,
        batch_records_max: int = BATCH_RECORDS_MAX,
        hold_s: float = HOLD_S,
    ) -> None:
        """`to_entry`: pure; whatever it raises makes its record a dead letter. `hold_s`: how often a batch that takes
        long is claimed anew, so that nobody takes its owner for dead."""
        self._source = source
        self._store = store
        self._to_entry = to_entry
        self._observer = observer
        self._batch_records_max = batch_records_max
        self._hold_s = hold_s
        self._ended = asyncio.Event()
        self._closing = False

    async def run(self) -> None:
        """Settle until `close`, and then until nothing is left. Cancel it to stop at once: nothing is lost."""
        thread = BoundedExecutor(1, name="settler")
        try:
            await self.settle_with(thread.run)
        finally:
            thread.close(wait=False)  # a transaction under way ends by itself, and will be found repeated

    async def settle_with(self, in_thread: InThread) -> None:
        """The same, wherever `in_thread` lets it write."""
        try:
            while True:
                batch = await self._taken()
                if batch:
                    await self._settle_holding(in_thread, batch)
                    await self._source.settled(batch)
                elif self._closing:
                    return
        finally:
            self._ended.set()

    async def close(self, deadline_s: float) -> bool:
        """Settle what only this process would; True if all of it is in the ledger within `deadline_s`.

        If not, cancel `run`: the rest stays where it is, for the next start.
        """
        self._closing = True
        self._source.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._ended.wait()
        return self._ended.is_set()

    async def _taken(self) -> Sequence[PendingRecord]:
        retry_s = RETRY_S_MIN
        while True:
            try:
                return await self._source.take(self._batch_records_max)
            except OSError as error:
                self._observer.failed(error)
            if self._closing:
                return ()
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_S_MAX)

    async def _settle_holding(self, in_thread: InThread, batch: Sequence[PendingRecord]) -> None:
        """Settle, however long it takes, and let nobody think that we are dead."""
        async with asyncio.TaskGroup() as group:
            holding = group.create_task(self._hold(batch))
            await self._settle(in_thread, batch)
            holding.cancel()

    async def _hold(self, batch: Sequence[PendingRecord]) -> None:
        while True:
            await asyncio.sleep(self._hold_s)
            await self._source.hold(batch)

    async def _settle(self, in_thread: InThread, batch: Sequence[PendingRecord]) -> None:
        """Try until it is done: the whole batch, or, if one of its records trips a bug, each by itself."""
        retry_s, tries = RETRY_S_MIN, 0
        while True:
            began = perf_counter()
            try:
                settled, unreadable = await in_thread(self._write, batch)
            except Exception as error:  # noqa: BLE001  the database is away, or a bug: to be seen, not to end all billing
                self._observer.failed(error)
                tries += not isinstance(error, LedgerUnavailable)
                if tries >= TRIES_MAX and not isinstance(batch[0], _RejectedRecord):
                    await self._isolate(in_thread, batch, error)
                    return
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_S_MAX)
            else:
                self._observer.committed(settled, unreadable=unreadable, duration_s=perf_counter() - began)
                return

    async def _isolate(self, in_thread: InThread, batch: Sequence[PendingRecord], error: Exception) -> None:
        """One record of the batch is to blame for `error`: bury it, settle its neighbours."""
        if len(batch) > 1:
            for pending in batch:
                await self._settle(in_thread, [pending])
        else:
            await self._settle(in_thread, [_RejectedRecord(batch[0], f"failed: {type(error).__name__}")])

    def _write(self, batch: Sequence[PendingRecord]) -> tuple[Settled, int]:
        """On the settler's thread: read, price, write. → what became of it, and how many could not be read."""
        arrivals: list[Arrival] = []
        letters: list[DeadLetter] = []
        for pending in batch:
            if pending.deliveries > DELIVERIES_MAX and self._store.receipts(pending.node, pending.seq, pending.seq):
                continue  # it is in the ledger: only its acknowledgement never arrived
            made = self._made(pending)
            if isinstance(made, LedgerEntry):
                arrivals.append(Arrival(made, pending.node, pending.seq))
            else:
                letters.append(made)
        return self._store.settle(arrivals, letters), len(letters)

    def _made(self, pending: PendingRecord) -> LedgerEntry | DeadLetter:
        if isinstance(pending, _RejectedRecord):
            return _letter(pending, pending.reason)
        if pending.deliveries > DELIVERIES_MAX:
            return _letter(pending, f"delivered {DELIVERIES_MAX} times and never settled")
        try:
            return self._to_entry(pending.record)
        except Exception as error:  # noqa: BLE001  one record that trips a bug must not stop the billing of all others
            return _letter(pending, f"unreadable: {type(error).__name__}")


class _RejectedRecord:
    """A record that will not be tried again."""

    def __init__(self, pending: PendingRecord, reason: str) -> None:
        self.node, self.seq, self.payload = pending.node, pending.seq, pending.payload
        self.deliveries = pending.deliveries
        self.reason = reason

    @property
    def record(self) -> UsageRecord:
        """Not to be read."""
        raise ValueError(self.reason)


def _letter(pending: PendingRecord, reason: str) -> DeadLetter:
    text = pending.payload.decode("utf-8", "backslashreplace").replace("\0", "\\0")
    return DeadLetter(reason=reason, payload=text, node=pending.node, journal_seq=pending.seq)
