"""Amounts of money in SQL. Invariant: amounts are compared as whole nano-USD, never as floats."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import date
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Dialect, func, literal_column

from proxy.billing.entries import STORED_NAMES
from proxy.ledger.schema.tables import balances, ledger_entries

SUMS = tuple(column.key for column in balances.columns if not column.primary_key)
"""the keys of the columns of the tables of sums"""

# Rows in memory at a time.
_PAGE_ROWS = 2_000

# SQLite stores whole dollars as integers and other amounts as floats: the fraction alone is exact to the nano-dollar,
# the whole amount times 1e9 is not.
_NUSD = {
    "sqlite": "(CAST({0} AS INTEGER) * 1000000000 + CAST(ROUND(({0} - CAST({0} AS INTEGER)) * 1e9) AS INTEGER))",
    "postgresql": "({0} * 1000000000)",
}
_SUM_NUSD = {"sqlite": f"sum{_NUSD['sqlite']}", "postgresql": "(sum({0}) * 1000000000)"}


def nusd(name: str, dialect: Dialect) -> ColumnElement[Any]:
    """A money column as a whole number of nUSD."""
    return literal_column(_NUSD[dialect.name].format(name), BigInteger)


def nusd_sum(name: str, dialect: Dialect) -> ColumnElement[Any]:
    """The sum of a money column as a whole number of nUSD."""
    return literal_column(_SUM_NUSD[dialect.name].format(name), BigInteger)


def sums_of_entries(dialect: Dialect) -> Iterator[ColumnElement[Any]]:
    """The sums over a group of entries, labelled with the keys of the columns of the tables of sums. Money: nUSD."""
    for name in SUMS:
        sum_: ColumnElement[Any]
        if name.endswith("_nusd"):
            sum_ = nusd_sum(STORED_NAMES["charge_nusd" if name == "charged_nusd" else name], dialect)
        else:
            sum_ = func.count() if name == "entries" else func.sum(ledger_entries.c[name])
        yield func.coalesce(sum_, 0).label(name)


def utc_day(column: Column[Any], dialect: Dialect) -> ColumnElement[date]:
    """The UTC day of a column's times."""
    return func.date(column if dialect.name == "sqlite" else func.timezone("UTC", column))


def rows_of(connection: Connection, query: Any) -> Generator[Any]:
    """All rows, one page in memory at a time. Close the iterator if it is not read to its end."""
    with connection.execute(query, execution_options={"stream_results": True, "yield_per": _PAGE_ROWS}) as rows:
        yield from rows
