"""Carries what the journal has into the ledger. Law: a record is acknowledged only after its transaction has
committed; nothing stops the settler but its owner; a record that cannot become an entry never holds up another.

Reading, pricing and writing happen on one thread of its own: the event loop, which relays streams, only hands over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import perf_counter
from typing import Protocol

from proxy.billing.entries import LedgerEntry
from proxy.billing.record import UsageRecord
from proxy.ledger.store import DeadLetter, LedgerStore, Settled

# Larger batches are hardly cheaper per entry (27 µs at 100, 21 at 500), and taking one from the journal holds up the
# event loop for a few µs per record.
BATCH_RECORDS_MAX = 250

# A transaction costs as much as a dozen entries: wait this long for others to share it. An entry of a proxy at rest
# is in the ledger after this and a few milliseconds.
LINGER_S = 0.04

# How often to look at the source by itself, should a wake-up ever be missing.
LOOK_S = 1.0

# A database comes back within seconds of a restart or minutes of a failover; asking more often than this helps nobody.
RETRY_S_MIN, RETRY_S_MAX = 0.05, 5.0


class PendingRecord(Protocol):
    """A record on its way to the ledger."""

    @property
    def seq(self) -> int:
        """Its name towards the source."""

    @property
    def payload(self) -> bytes:
        """The record as it was written down."""

    @property
    def record(self) -> UsageRecord:
        """The record. Raises ValueError if this version cannot read it."""


class RecordSource(Protocol):
    """The journal, as the settler sees it. Called on the event loop's thread."""

    def pending(self, limit: int) -> Sequence[PendingRecord]:
        """The oldest records that are not settled, at most `limit`; the same ones until they are."""

    def settled(self, seqs: Iterable[int]) -> None:
        """The ledger has these for good."""


class Observer(Protocol):
    """Who wants to know how it goes: metrics. Called on the event loop's thread."""

    def committed(self, settled: Settled, *, unreadable: int, duration_s: float) -> None:
        """One transaction: `settled.inserted` are the new entries; `unreadable` records became dead letters."""

    def failed(self, error: Exception) -> None:
        """A transaction failed and will be tried again: LedgerUnavailable, or else a bug of ours."""


class Settler:
    """One task and one thread. `run` it, `wake` it, `close` it."""

    def __init__(
        self,
        source: RecordSource,
        store: LedgerStore,
        *,
        to_entry: Callable[[UsageRecord], LedgerEntry],
        observer: Observer,
        linger_s: float = LINGER_S,
    ) -> None:
        """`to_entry`: pure; whatever it raises makes its record a dead letter."""
        self._source = source
        self._store = store
        self._to_entry = to_entry
        self._observer = observer
        self._linger_s = linger_s
        self._woken = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = False

    def wake(self) -> None:
        """Something is pending. Cheap; only on the event loop's thread."""
        self._woken.set()

    async def run(self) -> None:
        """Settle until `close`, and then until nothing is pending. Cancel it to stop at once: nothing is lost."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="settler")
        try:
            await self._settle_until_closed(thread)
        finally:
            thread.shutdown(wait=False)  # a transaction under way ends by itself, and will be found repeated
            self._ended.set()

    async def close(self, deadline_s: float) -> bool:
        """Settle what is pending; True if all of it is in the ledger within `deadline_s`.

        If not, cancel `run`: the rest stays where it is, for the next start.
        """
        self._closing = True
        self._woken.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._ended.wait()
        return self._ended.is_set()

    async def _settle_until_closed(self, thread: ThreadPoolExecutor) -> None:
        while True:
            self._woken.clear()
            batch = self._source.pending(BATCH_RECORDS_MAX)
            if batch:
                await self._settle(thread, batch)
                self._source.settled([pending.seq for pending in batch])
            elif self._closing:
                return
            if len(batch) < BATCH_RECORDS_MAX and not self._closing:
                await self._gather()

    async def _gather(self) -> None:
        """Wait for a record, and then for others to share its transaction."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._woken.wait()
        if not self._closing:
            await asyncio.sleep(self._linger_s)

    async def _settle(self, thread: ThreadPoolExecutor, batch: Sequence[PendingRecord]) -> None:
        """Try until it is done."""
        loop = asyncio.get_running_loop()
        retry_s = RETRY_S_MIN
        while True:
            began = perf_counter()
            try:
                settled, unreadable = await loop.run_in_executor(thread, self._write, batch)
            except Exception as error:  # noqa: BLE001  the database is away, or a bug: to be seen, not to end all billing
                self._observer.failed(error)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_S_MAX)
            else:
                self._observer.committed(settled, unreadable=unreadable, duration_s=perf_counter() - began)
                return

    def _write(self, batch: Sequence[PendingRecord]) -> tuple[Settled, int]:
        """On the settler's thread: read, price, write. → what became of it, and how many could not be read."""
        entries: list[LedgerEntry] = []
        letters: list[DeadLetter] = []
        for pending in batch:
            made = self._entry(pending)
            if isinstance(made, LedgerEntry):
                entries.append(made)
            else:
                letters.append(made)
        return self._store.settle(entries, letters), len(letters)

    def _entry(self, pending: PendingRecord) -> LedgerEntry | DeadLetter:
        try:
            return self._to_entry(pending.record)
        except Exception as error:  # noqa: BLE001  one record that trips a bug must not stop the billing of all others
            text = pending.payload.decode("utf-8", "backslashreplace").replace("\0", "\\0")
            return DeadLetter(reason=f"unreadable: {type(error).__name__}", payload=text)
