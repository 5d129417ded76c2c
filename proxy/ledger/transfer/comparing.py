"""Compares two ledgers, table by table.

Invariants: a table is read in batches, in the order of its primary key, so memory is bounded. Rows are equal if all of
their values are, as Python has them: money in whole nano-dollars, times to the microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table, func, select, tuple_

from proxy.billing.money import usd_text
from proxy.ledger.amounts import nusd_sum, rows_of
from proxy.ledger.schema.tables import ledger_entries, metadata
from proxy.storage.database import reading
from proxy.storage.postgres import remove_time_limits

# A batch of entries takes some MB of memory, and a tenth of a second.
BATCH_ROWS = 1_000
# A copy that was interrupted has fewer rows in a batch that its source has no longer.
_EXTRA_ROWS_MAX = 1_000

Key = tuple[Any, ...]
"""the values of a primary key"""


class DifferentLedgerError(ValueError):
    """The target has other rows than the source; the message names the table."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a range of primary keys, in both ledgers."""

    source: Mapping[Key, Sequence[Any]]
    target: Mapping[Key, Sequence[Any]]

    @property
    def missing(self) -> list[Sequence[Any]]:
        """The rows of the source that the target lacks, or has with other values."""
        return [row for key, row in self.source.items() if self.target.get(key) != row]

    @property
    def wrong(self) -> list[Key]:
        """The rows of the target that the source lacks, or has with other values."""
        return [key for key, row in self.target.items() if self.source.get(key) != row]


@dataclass(frozen=True, slots=True)
class LedgerSums:
    """The totals of a ledger."""

    rows: Mapping[str, int]
    """number of rows by table"""
    charge_nusd: int
    cost_nusd: int


def batches(source: Connection, target: Engine, table: Table) -> Iterator[Batch]:
    """All rows of a table, in the order of its primary key. Raises DifferentLedgerError, LedgerUnavailable."""
    after: Key | None = None
    while True:
        ours = _rows(source, table, after, None, BATCH_ROWS)
        until = next(reversed(ours)) if len(ours) == BATCH_ROWS else None
        with reading(target) as connection:
            theirs = _rows(connection, table, after, until, BATCH_ROWS + _EXTRA_ROWS_MAX)
        if len(theirs) == BATCH_ROWS + _EXTRA_ROWS_MAX:
            raise DifferentLedgerError(f"table {table.name}: the target has more rows than the source")
        yield Batch(ours, theirs)
        if until is None:
            return
        after = until


def require_equal_rows(batch: Batch, table: Table) -> None:
    """Raises DifferentLedgerError, which names the first row that differs."""
    if batch.source == batch.target:
        return
    first = min([*map(key_of(table), batch.missing), *batch.wrong])
    ours, theirs = batch.source.get(first), batch.target.get(first)
    if ours is None or theirs is None:
        what = "is only in the target" if ours is None else "is not in the target"
    else:
        names = (column.name for column, one, other in zip(table.columns, ours, theirs, strict=True) if one != other)
        what = f"differs in {', '.join(names)}"
    raise DifferentLedgerError(f"table {table.name}: the row {', '.join(map(str, first))} {what}")


def require_equal_sums(source: Connection, target: Engine) -> LedgerSums:
    """Count the rows of each table, and add up charge and cost of each key, in both databases. Raises
    DifferentLedgerError, LedgerUnavailable."""
    with reading(target) as copy:
        remove_time_limits(copy)
        rows = {}
        for table in metadata.sorted_tables:
            count = select(func.count()).select_from(table)
            rows[table.name], copied = source.execute(count).scalar_one(), copy.execute(count).scalar_one()
            if rows[table.name] != copied:
                raise DifferentLedgerError(f"table {table.name}: {rows[table.name]} rows in the source, {copied} here")
        charge_nusd = cost_nusd = 0
        for ours, theirs in zip_longest(_sums(source), _sums(copy)):
            if ours != theirs:
                raise DifferentLedgerError(
                    f"table {ledger_entries.name}: charge and cost of a key are {_usd(ours)} in the source, "
                    f"{_usd(theirs)} in the target"
                )
            charge_nusd, cost_nusd = charge_nusd + ours[1], cost_nusd + ours[2]
    return LedgerSums(rows, charge_nusd, cost_nusd)


def key_of(table: Table) -> Callable[[Sequence[Any]], Key]:
    """The function that takes the primary key from a row of the table."""
    places = [list(table.columns).index(column) for column in table.primary_key]
    if len(places) == 1:
        return lambda row: (row[places[0]],)
    return itemgetter(*places)


def _rows(connection: Connection, table: Table, after: Key | None, until: Key | None, limit: int) -> dict[Key, Any]:
    """Up to `limit` rows with keys above `after` and up to `until`, by rising key; None: without this bound."""
    key = list(table.primary_key)
    query: Select[Any] = select(table).order_by(*key).limit(limit)
    if after is not None:
        # The first column alone, too: Postgres selects partitions by it.
        query = query.where(tuple_(*key) > after, key[0] >= after[0])
    if until is not None:
        query = query.where(tuple_(*key) <= until, key[0] <= until[0])
    of = key_of(table)
    return {of(row): tuple(row) for row in connection.execute(query)}


def _sums(connection: Connection) -> Iterator[tuple[str, int, int]]:
    """Key id, charge and cost in nUSD of each key's entries, by rising key id."""
    key_id, dialect = ledger_entries.c.key_id, connection.dialect
    sums = (func.coalesce(nusd_sum(name, dialect), 0) for name in ("charge_usd", "cost_usd"))
    for name, charge_nusd, cost_nusd in rows_of(connection, select(key_id, *sums).group_by(key_id).order_by(key_id)):
        yield name, int(charge_nusd), int(cost_nusd)


def _usd(sums: tuple[str, int, int] | None) -> str:
    return "none" if sums is None else f"{usd_text(sums[1])} and {usd_text(sums[2])} USD of {sums[0]}"
