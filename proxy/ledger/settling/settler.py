"""Moves records from a queue into the ledger.

Invariants: a record is acknowledged only after its transaction has committed; only `close` and cancellation stop the
settler; a record that cannot become an entry never delays another.

Records are read, priced and written on a thread of their own, because the event loop may be relaying streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

from proxy.billing.entries import LedgerEntry
from proxy.billing.record import InvalidRecordError, UsageRecord, exchange_id_in, validate_record
from proxy.billing.settlement import record_hash
from proxy.ledger.settling.store import Arrival, DeadLetter, LedgerStore, Settled
from proxy.storage.database import LedgerUnavailable
from proxy.storage.executor import BoundedExecutor, InThread

# Larger batches are hardly cheaper per entry (27 µs at 100, 21 at 500), and taking one from the journal blocks the
# event loop for a few µs per record.
BATCH_RECORDS_MAX = 250

# A restart of a database takes seconds and a failover minutes; more frequent retries do not help.
RETRY_S_MIN, RETRY_S_MAX = 0.05, 5.0

# Tries of a batch that fails while the database is available: after that, one of its records is the cause.
TRIES_MAX = 3

# A record delivered more often than this has crashed that many workers and is not tried again.
DELIVERIES_MAX = 5

# A fraction of the shortest time after which another worker would claim a batch.
EXTEND_CLAIM_S = 5.0


class PendingRecord(Protocol):
    """A record on its way to the ledger."""

    node: str
    """id of the journal that the record is in"""
    seq: int
    """the record's number in the journal"""
    payload: bytes
    """the record's bytes in the journal"""
    deliveries: int
    """number of attempts to settle the record, including this one"""

    @property
    def record(self) -> UsageRecord:
        """The decoded record. Raises ValueError if this version cannot read it."""


class RecordSource(Protocol):
    """The queue, as the settler uses it."""

    async def take(self, limit: int) -> Sequence[Any]:
        """The oldest unsettled records, at most `limit`. Waits up to a second for the first; may return none.
        Raises OSError if the queue is unavailable."""

    async def extend_claim(self, taken: Sequence[Any]) -> None:
        """Extend the claim on records that are still being settled. Never raises."""

    async def settled(self, taken: Sequence[Any]) -> None:
        """Acknowledge records that the ledger has durably. Never raises: an unacknowledged record is delivered
        again."""

    def drain(self) -> None:
        """From now on `take` does not wait, and returns only records that no other process would settle."""


class SettlerListener(Protocol):
    """Receives the results of a settler, for metrics and the log. Called on the event loop's thread."""

    def committed(self, settled: Settled, *, unreadable: int, duration_s: float) -> None:
        """A transaction committed: `settled.inserted` are the new entries; `unreadable` records became dead letters."""

    def failed(self, error: Exception) -> None:
        """A try failed and will be repeated: LedgerUnavailable, an OSError of the queue, or a bug."""


class Settler:
    """Settles records with one task and one thread. `run` it, then `close` it."""

    def __init__(
        self,
        source: RecordSource,
        store: LedgerStore,
        *,
        to_entry: Callable[[UsageRecord], LedgerEntry],
        observer: SettlerListener,
        batch_records_max: int = BATCH_RECORDS_MAX,
        extend_claim_s: float = EXTEND_CLAIM_S,
    ) -> None:
        """`to_entry`: pure; any exception makes the record a dead letter, and so does a number that no proxy writes.
        `extend_claim_s`: interval, in seconds, at which the claim on a slow batch is extended, so that no other worker
        takes the batch over."""
        self._source = source
        self._store = store
        self._to_entry = to_entry
        self._observer = observer
        self._batch_records_max = batch_records_max
        self._extend_claim_s = extend_claim_s
        self._ended = asyncio.Event()
        self._closing = False

    async def run(self) -> None:
        """Settle until `close`, then until no record is left. Cancel to stop at once; no record is lost."""
        thread = BoundedExecutor(1, name="settler")
        try:
            await self.settle_with(thread.run)
        finally:
            thread.close(wait=False)  # a running transaction ends by itself; its records are then found settled

    async def settle_with(self, in_thread: InThread) -> None:
        """`run`, with `in_thread` for the blocking work."""
        try:
            while True:
                batch = await self._taken()
                if batch:
                    await self._settle_claimed(in_thread, batch)
                    await self._source.settled(batch)
                elif self._closing:
                    return
        finally:
            self._ended.set()

    async def close(self, deadline_s: float) -> bool:
        """Settle the records that no other process would settle. True if all are in the ledger within `deadline_s`.

        On False, cancel `run`: the other records stay in the queue for the next start.
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

    async def _settle_claimed(self, in_thread: InThread, batch: Sequence[PendingRecord]) -> None:
        """Settle the batch and extend the claim on it meanwhile."""
        async with asyncio.TaskGroup() as group:
            claim = group.create_task(self._extend_claims(batch))
            await self._settle(in_thread, batch)
            claim.cancel()

    async def _extend_claims(self, batch: Sequence[PendingRecord]) -> None:
        while True:
            await asyncio.sleep(self._extend_claim_s)
            await self._source.extend_claim(batch)

    async def _settle(self, in_thread: InThread, batch: Sequence[PendingRecord]) -> None:
        """Retry until the batch is settled: as a whole, or record by record if one of them triggers a bug."""
        retry_s, tries = RETRY_S_MIN, 0
        while True:
            began = perf_counter()
            try:
                settled, unreadable = await in_thread(self._write, batch)
            except Exception as error:  # noqa: BLE001  an outage or a bug must be reported, and not stop all billing
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
        """Settle each record alone; one that still fails with `error` becomes a dead letter."""
        if len(batch) > 1:
            for pending in batch:
                await self._settle(in_thread, [pending])
        else:
            await self._settle(in_thread, [_RejectedRecord(batch[0], f"failed: {type(error).__name__}")])

    def _write(self, batch: Sequence[PendingRecord]) -> tuple[Settled, int]:
        """Read, price and write a batch, on the settler's thread. Returns the result and the number of unreadable
        records."""
        arrivals: list[Arrival] = []
        unreadable: list[DeadLetter] = []
        for pending in batch:
            if pending.deliveries > DELIVERIES_MAX and self._is_settled(pending):
                continue  # only its acknowledgement was lost
            entry = self._entry(pending)
            if isinstance(entry, LedgerEntry):
                arrivals.append(Arrival(entry, pending.node, pending.seq, record_hash(pending.payload)))
            else:
                unreadable.append(entry)
        return self._store.settle(arrivals, unreadable), len(unreadable)

    def _is_settled(self, pending: PendingRecord) -> bool:
        receipts = self._store.receipts(pending.node, pending.seq, pending.seq)
        return not receipts.isdisjoint({(pending.seq, exchange_id_in(pending.payload)), (pending.seq, None)})

    def _entry(self, pending: PendingRecord) -> LedgerEntry | DeadLetter:
        if isinstance(pending, _RejectedRecord):
            return _dead_letter(pending, pending.reason)
        if pending.deliveries > DELIVERIES_MAX:
            return _dead_letter(pending, f"delivered {DELIVERIES_MAX} times and never settled")
        try:
            record = pending.record
            validate_record(record)
            return self._to_entry(record)
        except InvalidRecordError as error:
            return _dead_letter(pending, f"invalid: {error}")
        except Exception as error:  # noqa: BLE001  a record that triggers a bug must not stop the billing of others
            return _dead_letter(pending, f"unreadable: {type(error).__name__}")


class _RejectedRecord:
    """A record that is not tried again."""

    def __init__(self, pending: PendingRecord, reason: str) -> None:
        self.node, self.seq, self.payload = pending.node, pending.seq, pending.payload
        self.deliveries = pending.deliveries
        self.reason = reason

    @property
    def record(self) -> UsageRecord:
        """The decoded record, with valid numbers. Raises ValueError."""
        raise ValueError(self.reason)


def _dead_letter(pending: PendingRecord, reason: str) -> DeadLetter:
    text = pending.payload.decode("utf-8", "backslashreplace").replace("\0", "\\0")
    # The reservation of the exchange waits for its letter.
    exchange_id = exchange_id_in(pending.payload)
    return DeadLetter(reason=reason, payload=text, exchange_id=exchange_id, node=pending.node, journal_seq=pending.seq)
