"""The queue of one machine: the journal itself, read by a settler in the same process.

Law: what was taken comes again until it is settled. Nothing here waits for a disk longer than the journal does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from proxy.delivery.delivery import DeliveredRecord
from proxy.journal.journal import Journal

# A transaction costs as much as a dozen entries: wait this long for others to share it. An entry of a proxy at rest
# is in the ledger after this and a few milliseconds.
LINGER_S = 0.04

# How often to look at the journal by itself, should a wake-up ever be missing.
LOOK_S = 1.0


class LocalQueue:
    """A journal as a source of records. Called on the event loop's thread, by one settler."""

    def __init__(self, journal: Journal, *, linger_s: float = LINGER_S) -> None:
        self._journal = journal
        self._node = journal.node.node_id
        self._linger_s = linger_s
        self._woken = asyncio.Event()
        self._more = True
        """there was more than the last take could carry; at the start, what the last run left"""
        self._draining = False

    def wake(self) -> None:
        """Something is pending. Cheap; only on the event loop's thread."""
        self._woken.set()

    def drain(self) -> None:
        """From now on `take` waits for nothing: the end is near."""
        self._draining = True
        self._woken.set()

    async def take(self, limit: int) -> Sequence[DeliveredRecord]:
        """The oldest records that are not settled, at most `limit`. Waits up to a second for the first one, and then
        for others to share its transaction; may be empty. It can be cancelled at any time."""
        if not (self._more or self._draining):
            await self._gather()
        self._woken.clear()
        pending = self._journal.pending(limit)
        self._more = len(pending) >= limit
        return [DeliveredRecord(self._node, one.seq, one.payload) for one in pending]

    async def settled(self, taken: Sequence[DeliveredRecord]) -> None:
        """The ledger has these for good."""
        self._journal.settled([one.seq for one in taken])

    async def hold(self, taken: Sequence[DeliveredRecord]) -> None:
        """These take their time. Nobody else could take them: there is nothing to do."""

    async def _gather(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._woken.wait()
        if not self._draining:
            await asyncio.sleep(self._linger_s)
