"""What all checks of the ledger are made of: what to look at, what was found, and amounts as whole numbers.

Law: amounts are compared as whole nano-USD, never as floats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Dialect, literal_column

from proxy.billing.money import usd_text
from proxy.ledger.schema.tables import ledger_entries

# Enough to see what is wrong; how many there are is said beside them.
EXAMPLES_MAX = 10

# Rows in memory at a time.
_PAGE_ROWS = 2_000

# SQLite has whole dollars as integers and others as floats: the part after the point is exact to the nano-dollar by
# itself, though not times 1e9 with all the dollars before it.
_NUSD = {
    "sqlite": "(CAST({0} AS INTEGER) * 1000000000 + CAST(ROUND(({0} - CAST({0} AS INTEGER)) * 1e9) AS INTEGER))",
    "postgresql": "({0} * 1000000000)",
}
_SUM_NUSD = {"sqlite": f"sum{_NUSD['sqlite']}", "postgresql": "(sum({0}) * 1000000000)"}


@dataclass(frozen=True, slots=True)
class CheckScope:
    """What is looked at. Times: Unix seconds by the ledger's clock."""

    now: float
    since: float | None
    """only what was settled at or after this; None: everything"""
    grace_s: float
    """what is younger may be on its way"""


@dataclass(slots=True)
class CheckResult:
    """What a check has found so far."""

    differences: int = 0
    in_flight: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def differs(self, count: int = 1, /, **example: Any) -> None:
        """Count it, and keep the first few to show."""
        self.differences += count
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append({name: _shown(name, value) for name, value in example.items()})


@dataclass(frozen=True, slots=True)
class RecordsInFlight:
    """What is known of records on their way. Read it before the ledger: what is settled meanwhile is then there."""

    queued: Collection[tuple[str, int]] = ()
    """(node, journal seq) of the records that are in the queue"""
    oldest_age_s: float | None = None
    """how long the oldest record has been there; None: there is no queue"""
    leased: Mapping[str, Collection[str]] = field(default_factory=dict)
    """node → the exchanges that it says are running"""


def nusd(name: str, dialect: Dialect) -> ColumnElement[Any]:
    """A column of money, as a whole number of nUSD."""
    return literal_column(_NUSD[dialect.name].format(name), BigInteger)


def nusd_sum(name: str, dialect: Dialect) -> ColumnElement[Any]:
    """The sum of a column of money, as a whole number of nUSD."""
    return literal_column(_SUM_NUSD[dialect.name].format(name), BigInteger)


def settled(query: Any, scope: CheckScope) -> Any:
    """The part of a query of entries that is within the scope."""
    return query if scope.since is None else query.where(ledger_entries.c.settled_at >= scope.since)


def rows_of(connection: Connection, query: Any) -> Iterator[Any]:
    """All rows, some in memory at a time."""
    return iter(connection.execute(query, execution_options={"stream_results": True, "yield_per": _PAGE_ROWS}))


def _shown(name: str, value: Any) -> Any:
    """As JSON may hold it: money as a decimal string of USD."""
    if isinstance(value, Decimal):
        value = str(value) if value.is_nan() else int(value)
    if name.endswith("_usd") and isinstance(value, int):
        return usd_text(value)
    return str(value) if isinstance(value, date) else value
