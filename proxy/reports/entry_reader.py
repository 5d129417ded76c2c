"""Reads ledger entries in the order of their settlement.

Invariants:
- A reader returns every matching entry once, also entries settled after it was created. It reads up to the ledger's
  time, behind which no entry can appear.
- A read transaction lasts for one page: a slow consumer does not block SQLite's WAL checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, func, select, tuple_
from sqlalchemy.sql import operators

from proxy.billing.entries import ENTRY_FIELDS, STORED_NAMES, LedgerEntry
from proxy.billing.money import usd_text
from proxy.foundation.times import iso_utc
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.clock import settled_until
from proxy.reports.dimensions import DimensionFilter, ExchangePairs
from proxy.storage.database import reading

# A page takes about 1 MB of memory and a few milliseconds.
PAGE_ENTRIES = 500

# An entry is settled after its exchange began; this allows for clock skew between machines.
CLOCKS_DIFFER_S_MAX = 86_400


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Selects entries that meet every condition that is not None. Times: Unix seconds."""

    key_alias: str | None = None
    model: str | None = None
    """the model name in the client's request"""
    since: float | None = None
    """exchange began at or after this time"""
    until: float | None = None
    """exchange began before this time"""
    key_ids: tuple[str, ...] | None = None
    settled_by: float | None = None
    """settled at or before this time; up to the ledger's clock, the set of entries is final"""
    dimensions: DimensionFilter = field(default_factory=dict)


class EntryReader:
    """Iterates over the ledger from its beginning; a later call continues after the last entry returned."""

    def __init__(self, engine: Engine, entry_filter: EntryFilter, after: tuple[float, str] | None = None) -> None:
        """`after`: settled_at and entry_id of an entry; reading starts behind it."""
        self._engine = engine
        self._query = _filtered(entry_filter)
        self._dimensions = entry_filter.dimensions
        begin = 0.0 if entry_filter.since is None else max(0.0, entry_filter.since - CLOCKS_DIFFER_S_MAX)
        self._after = (begin, "") if after is None else after
        """settled_at and entry_id of the last entry read"""

    def new_entries(self) -> Iterator[LedgerEntry]:
        """All entries not read yet. Raises LedgerUnavailable."""
        return (entry for entry, _ in self.settled())

    def settled(self) -> Iterator[tuple[LedgerEntry, float]]:
        """All entries not read yet, each with its settled_at (Unix seconds). Raises LedgerUnavailable."""
        while True:
            page = self._page()
            for row in page:
                self._after = (row.settled_at, row.entry_id)
                yield _entry(row), row.settled_at
            if len(page) < PAGE_ENTRIES:
                return

    def page(self) -> list[tuple[LedgerEntry, float]]:
        """Up to PAGE_ENTRIES entries not read yet, with settled_at; does not advance. Raises LedgerUnavailable."""
        return [(_entry(row), row.settled_at) for row in self._page()]

    def _page(self) -> list[Row[Any]]:
        cursor = tuple_(ledger_entries.c.settled_at, ledger_entries.c.entry_id)
        with reading(self._engine) as connection:
            final = ledger_entries.c.settled_at <= settled_until(connection)
            query = self._query.where(cursor > self._after, final)
            return list(connection.execute(_of_dimensions(connection, query, self._dimensions)))


def _entry(row: Row[Any]) -> LedgerEntry:
    return LedgerEntry(**dict(zip(ENTRY_FIELDS, row, strict=False)))


def count_entries(engine: Engine, entry_filter: EntryFilter) -> int:
    """The number of matching entries; scans all of them (ten million take seconds). Raises LedgerUnavailable."""
    with reading(engine) as connection:
        query = _of_dimensions(connection, _matching(select(1), entry_filter), entry_filter.dimensions)
        return connection.execute(select(func.count()).select_from(query.subquery())).scalar_one()


def entry_json(entry: LedgerEntry) -> dict[str, Any]:
    """The entry's public fields in their order; money as decimal strings of USD, time as ISO 8601 in UTC."""
    shown = {STORED_NAMES[name]: getattr(entry, name) for name in ENTRY_FIELDS if name != "seq"}
    for name in ("cost_usd", "charge_usd"):
        shown[name] = None if shown[name] is None else usd_text(shown[name])
    shown["started_at"] = iso_utc(entry.started_at)
    return shown


def _filtered(entry_filter: EntryFilter) -> Select[Any]:
    columns = ledger_entries.c
    query = _matching(select(*(columns[name] for name in ENTRY_FIELDS), columns.settled_at), entry_filter)
    return query.order_by(columns.settled_at, columns.entry_id).limit(PAGE_ENTRIES)


def _of_dimensions(connection: Connection, query: Select[Any], wanted: DimensionFilter) -> Select[Any]:
    return query.where(*ExchangePairs(connection).of_entries(wanted)) if wanted else query


def _matching(query: Select[Any], entry_filter: EntryFilter) -> Select[Any]:
    columns = ledger_entries.c
    conditions = (
        (operators.eq, columns.key_alias, entry_filter.key_alias),
        (operators.eq, columns.model, entry_filter.model),
        (operators.ge, columns.started_at, entry_filter.since),
        (operators.lt, columns.started_at, entry_filter.until),
        (operators.in_op, columns.key_id, entry_filter.key_ids),
        (operators.le, columns.settled_at, entry_filter.settled_by),
    )
    conditions_met = (column.operate(operator, value) for operator, column, value in conditions if value is not None)
    return query.select_from(ledger_entries).where(*conditions_met)
