"""The queue of a single machine: the journal itself, read by a settler in the same process.

Invariant: `take` returns a record again until it is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from proxy.delivery.delivery import DeliveredRecord
from proxy.journal.journal import Journal

# A transaction costs as much as a dozen entries: wait this long for more records to share it. A single record is in the
# ledger after this and a few milliseconds.
LINGER_S = 0.04

# Polling interval of the journal, in case a wake-up is lost.
POLL_S = 1.0


class LocalQueue:
    """A journal as a source of records. Called on the event loop's thread, by one settler."""

    def __init__(self, journal: Journal, *, linger_s: float = LINGER_S) -> None:
        self._journal = journal
        self._node = journal.node.node_id
        self._linger_s = linger_s
        self._woken = journal.woken
        self._more = True
        """True if the last take was full, and at the start, because the last run may have left records"""
        self._draining = False

    def drain(self) -> None:
        """From now on `take` returns without waiting: the process is stopping."""
        self._draining = True
        self._woken.set()

    async def take(self, limit: int) -> Sequence[DeliveredRecord]:
        """The oldest unsettled records, at most `limit`; may be empty.

        Waits up to POLL_S for the first one, then `linger_s` for more to share its transaction. Can be cancelled.
        """
        if not (self._more or self._draining):
            await self._gather()
        self._woken.clear()
        pending = self._journal.pending(limit)
        self._more = len(pending) >= limit
        return [DeliveredRecord(self._node, one.seq, one.payload) for one in pending]

    async def settled(self, taken: Sequence[DeliveredRecord]) -> None:
        """Record that the ledger has committed these records."""
        self._journal.settled([one.seq for one in taken])

    async def extend_claim(self, taken: Sequence[DeliveredRecord]) -> None:
        """No-op: no other worker can claim the records."""

    async def _gather(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._woken.wait()
        if not self._draining:
            await asyncio.sleep(self._linger_s)
