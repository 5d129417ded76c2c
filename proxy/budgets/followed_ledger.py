"""The ledger as a follower reads it. Invariant: never on the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from sqlalchemy import Engine

from proxy.billing.reservation import SpendDelta, SpendTotal
from proxy.budgets.follower import SeedRequest
from proxy.ledger.settling import spend
from proxy.ledger.settling.history import timeline
from proxy.storage.executor import InThread


class FollowedLedger:
    """See `follower.Ledger`. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, in_thread: InThread = asyncio.to_thread) -> None:
        self._engine = engine
        self._in_thread = in_thread

    async def time(self) -> int:
        """The time up to which everything is settled."""
        time_us: int = await self._in_thread(spend.ledger_time, self._engine)
        return time_us

    async def timeline(self) -> str:
        """The history that the ledger's server continues."""
        known: str = await self._in_thread(timeline, self._engine)
        return known

    async def sums(self, wants: Sequence[SeedRequest]) -> list[SpendTotal]:
        """The spend totals of these counters, all at one moment."""
        totals: list[SpendTotal] = await self._in_thread(spend.sums, self._engine, wants)
        return totals

    async def changes(self, after_us: int, limit: int) -> tuple[list[SpendDelta], int, int]:
        """The spend that was settled after that time."""
        page: tuple[list[SpendDelta], int, int] = await self._in_thread(spend.changes, self._engine, after_us, limit)
        return page

    async def settled(self, exchange_ids: Collection[str], until_us: int | None = None) -> set[str]:
        """Those whose terminal entries were settled by then; None: at any time."""
        settled: set[str] = await self._in_thread(spend.settled, self._engine, exchange_ids, until_us)
        return settled
