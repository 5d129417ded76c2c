"""The ledger as a source of spend, for followers. Invariant: the ledger is never read on the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from sqlalchemy import Engine

from proxy.billing.reservation import SpendDelta, SpendTotal
from proxy.ledger.settling import spend
from proxy.ledger.settling.history import timeline
from proxy.storage.executor import InThread

SeedRequest = tuple[str, float]
"""a counter's id, and the start of its window in Unix seconds"""


class FollowedLedger:
    """Reads of the ledger's spend. Every method raises LedgerUnavailable. Times: the ledger's clock, in µs."""

    def __init__(self, engine: Engine, in_thread: InThread = asyncio.to_thread) -> None:
        self._engine = engine
        self._in_thread = in_thread

    async def time(self) -> int:
        """The time up to which all settlements are visible."""
        time_us: int = await self._in_thread(spend.ledger_time, self._engine)
        return time_us

    async def timeline(self) -> str:
        """The history that the server continues: another one after a standby was promoted, which may lack commits."""
        known: str = await self._in_thread(timeline, self._engine)
        return known

    async def sums(self, requests: Sequence[SeedRequest]) -> list[SpendTotal]:
        """The spend of each counter, all in one snapshot, in the order of `requests`."""
        totals: list[SpendTotal] = await self._in_thread(spend.sums, self._engine, requests)
        return totals

    async def changes(self, after_us: int, limit: int) -> tuple[list[SpendDelta], int, int]:
        """About `limit` entries settled after `after_us`; the time up to which they are complete; and `time`."""
        page: tuple[list[SpendDelta], int, int] = await self._in_thread(spend.changes, self._engine, after_us, limit)
        return page

    async def watched(self, counter_ids: Collection[str] | None, now: float) -> list[SeedRequest]:
        """The counters among these whose rules only alert, in the windows that contain `now`. None: one counter for
        each such rule."""
        found: list[SeedRequest] = await self._in_thread(spend.watched, self._engine, counter_ids, now)
        return found

    async def followed(self, counter_ids: Collection[str]) -> list[str]:
        """The counters without those of deleted rules."""
        found: list[str] = await self._in_thread(spend.followed, self._engine, counter_ids)
        return found

    async def settled(self, exchange_ids: Collection[str], until_us: int | None = None) -> set[str]:
        """The exchanges whose terminal entries were settled by `until_us`; None: at any time."""
        settled: set[str] = await self._in_thread(spend.settled, self._engine, exchange_ids, until_us)
        return settled
