"""Reports of the ledger, read on the console's threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from proxy.ledger.accounts.owners import Owner, owners_of
from proxy.reports.change_reading import read_charges
from proxy.reports.dimensions import DimensionFilter, ShownDimension, ValueReader
from proxy.reports.exchange_search import ExchangeFilter, read_exchanges
from proxy.reports.exchanges import SettledExchange, read_exchange
from proxy.reports.receipts import read_receipt
from proxy.reports.usage import UsageFilter, UsageTotals, read_usage
from proxy.reports.usage_change import ModelCharges
from proxy.storage.executor import BoundedExecutor


@dataclass(frozen=True, slots=True)
class LedgerReports:
    """Reads settled exchanges and usage. Every method raises OSError."""

    engine: Engine
    threads: BoundedExecutor
    key_of_unsettled: Callable[[str], Awaitable[str | None]]
    """exchange id → the key of an exchange that runs or has just ended; None: unknown"""
    end_user_pepper: bytes | None = None
    """see `ValueReader`"""

    async def one(self, exchange_id: str) -> SettledExchange | None:
        """One settled exchange; None if the ledger has no entry of the exchange."""
        return await self.threads.run(read_exchange, self.engine, exchange_id)

    async def receipt(self, exchange_id: str) -> dict[str, Any]:
        """Its lines on statements, with the proof; see `read_receipt`. Raises ValueError if no statement has it yet."""
        return await self.threads.run(read_receipt, self.engine, exchange_id)

    async def listed(
        self, wanted: ExchangeFilter, limit: int
    ) -> tuple[list[SettledExchange], tuple[float, str] | None]:
        """A page of settled exchanges, and the cursor of the next page."""
        return await self.threads.run(read_exchanges, self.engine, wanted, limit)

    async def owners(self, key_ids: Iterable[str]) -> Mapping[str, Owner]:
        """Key id → its project and organization."""
        ids = set(key_ids)
        return await self.threads.run(owners_of, self.engine, ids) if ids else {}

    async def usage(self, wanted: UsageFilter, rows_max: int) -> tuple[list[UsageTotals], int]:
        """Usage by time bucket and group; see `read_usage`."""
        return await self.threads.run(read_usage, self.engine, wanted, rows_max)

    async def charges(self, wanted: UsageFilter) -> dict[str, ModelCharges]:
        """Model → its charges in a period; see `read_charges`."""
        return await self.threads.run(read_charges, self.engine, wanted)

    async def value_ids(self, wanted: Mapping[str, Iterable[str]]) -> DimensionFilter:
        """The filter by these values: dimension → values."""

        def read() -> DimensionFilter:
            values = ValueReader(self.engine, self.end_user_pepper)
            return {name: values.ids(name, texts) for name, texts in wanted.items()}

        return await self.threads.run(read) if wanted else {}

    async def shown(self, value_ids: Iterable[str]) -> dict[str, ShownDimension]:
        """Value id → the value in the form that reports show."""
        ids = set(value_ids)
        return await self.threads.run(ValueReader(self.engine, self.end_user_pepper).shown, ids) if ids else {}
