"""Reports of the ledger, read on the console's threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy import Engine

from proxy.reports.exchanges import ExchangeFilter, SettledExchange, read_exchange, read_exchanges
from proxy.reports.usage import UsageFilter, UsageTotals, read_usage
from proxy.storage.executor import BoundedExecutor


class LedgerReports:
    """Reads settled exchanges and usage. Every method raises OSError."""

    def __init__(
        self, engine: Engine, threads: BoundedExecutor, key_of_unsettled: Callable[[str], Awaitable[str | None]]
    ) -> None:
        """`key_of_unsettled`: exchange id → the key of an exchange that runs or has just ended; None: unknown."""
        self._engine = engine
        self._threads = threads
        self.key_of_unsettled = key_of_unsettled

    async def one(self, exchange_id: str) -> SettledExchange | None:
        """One settled exchange; None if the ledger has no entry of the exchange."""
        return await self._threads.run(read_exchange, self._engine, exchange_id)

    async def listed(
        self, wanted: ExchangeFilter, limit: int
    ) -> tuple[list[SettledExchange], tuple[float, str] | None]:
        """A page of settled exchanges, newest first, and the cursor of the next page."""
        return await self._threads.run(read_exchanges, self._engine, wanted, limit)

    async def usage(self, wanted: UsageFilter, rows_max: int) -> tuple[list[UsageTotals], int]:
        """Usage by time bucket and group; see `read_usage`."""
        return await self._threads.run(read_usage, self._engine, wanted, rows_max)
