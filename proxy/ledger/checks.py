"""What the rows of the ledger must say of each other. Each check reads, in one snapshot, and counts what differs.

Law: amounts are compared as whole nano-USD, never as floats. A row that cannot be read is a difference, not an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import groupby
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Dialect,
    Row,
    Select,
    Table,
    Text,
    case,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    union_all,
)

from proxy.billing.adjustment import KIND as ADJUSTMENT
from proxy.billing.correction import MONEY, TERMINAL, TOKENS, pinned, unexplained
from proxy.billing.entries import ENTRY_FIELDS, LedgerEntry
from proxy.billing.money import usd_text
from proxy.billing.record import Bills, Price
from proxy.billing.settlement import amount, incurred
from proxy.ledger.tables import Money, balances, ledger_entries, usage_daily
from proxy.metering.dialects.openai_usage import violations
from proxy.metering.usage import Usage

# Enough to see what is wrong; how many there are is said beside them.
EXAMPLES_MAX = 10

# Rows in memory at a time.
_PAGE_ROWS = 2_000

# A proxy whose clock is further ahead of the ledger's than this is a fault of its own.
_SKEW_S = 86_400.0

# Distinct price lists of a ledger: some per model, for as long as they hold.
_PRICES_KEPT = 4_096

_COLUMNS = ledger_entries.c
_SUMS = [column.name for column in balances.columns if not column.primary_key]
_MONEY_SUMS = {"charged_usd": "charge_usd", "cost_usd": "cost_usd"}
"""column of a sum → column of an entry"""

# SQLite has whole dollars as integers and others as floats: the part after the point is exact to the nano-dollar by
# itself, though not times 1e9 with all the dollars before it.
_NUSD = {
    "sqlite": "(CAST({0} AS INTEGER) * 1000000000 + CAST(ROUND(({0} - CAST({0} AS INTEGER)) * 1e9) AS INTEGER))",
    "postgresql": "({0} * 1000000000)",
}
# A float's own coarseness, some times over; finer differences than this are nobody's fault.
_NOT_MONEY = {
    "sqlite": "(typeof({0}) NOT IN ('integer', 'real', 'null') OR abs({0} - {1} / 1e9) > abs({0}) * 1e-15)",
    "postgresql": "({0} = 'NaN')",
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What is looked at. Times: Unix seconds by the ledger's clock."""

    now: float
    since: float | None
    """only what was settled at or after this; None: everything"""
    grace_s: float
    """what is younger may be on its way"""


@dataclass(slots=True)
class Found:
    """What a check has found so far."""

    differences: int = 0
    in_flight: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def differs(self, count: int = 1, /, **example: Any) -> None:
        """Count it, and keep the first few to show."""
        self.differences += count
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append({name: _shown(name, value) for name, value in example.items()})


def one_terminal(connection: Connection, scope: Scope) -> Found:
    """Completeness and no second charge: each exchange has one terminal entry, and else adjustments only."""
    terminal = func.sum(case((_COLUMNS.kind == TERMINAL, 1), else_=0))
    strange = func.sum(case((_COLUMNS.kind.in_((TERMINAL, ADJUSTMENT)), 0), else_=1))
    query = select(_COLUMNS.exchange_id, terminal.label("terminal"), strange.label("of_no_known_kind"))
    found = Found()
    grouped = _of_touched(query, scope).group_by(_COLUMNS.exchange_id).having(or_(terminal != 1, strange != 0))
    for row in rows_of(connection, grouped):
        found.differs(**row._asdict())
    return found


def no_duplicate(connection: Connection, scope: Scope) -> Found:
    """(exchange, kind, seq) names one entry."""
    name = (_COLUMNS.exchange_id, _COLUMNS.kind, _COLUMNS.seq)
    query = select(*name, func.count().label("rows"))
    found = Found()
    for row in rows_of(connection, _of_touched(query, scope).group_by(*name).having(func.count() > 1)):
        found.differs(**row._asdict())
    return found


def _of_touched(query: Select[Any], scope: Scope) -> Select[Any]:
    """All entries of the exchanges of which any was settled within the scope."""
    if scope.since is None:
        return query
    again = ledger_entries.alias().c
    return query.where(_COLUMNS.exchange_id.in_(select(again.exchange_id).where(again.settled_at >= scope.since)))


def adjustments(connection: Connection, scope: Scope) -> Found:
    """Each refers to the terminal entry of its own exchange and comes to what it says."""
    again = ledger_entries.alias()
    adjusted = select(again.c.exchange_id).where(again.c.kind == ADJUSTMENT)
    if scope.since is not None:
        adjusted = adjusted.where(again.c.settled_at >= scope.since)
    order = (_COLUMNS.exchange_id, _COLUMNS.settled_at, _COLUMNS.kind.desc(), _COLUMNS.seq)
    query = _entries(connection.dialect).where(_COLUMNS.exchange_id.in_(adjusted))
    found = Found()
    for _, rows in groupby(rows_of(connection, query.order_by(*order)), key=lambda row: row.exchange_id):
        for entry, wrong in _misplaced([_entry(row) for row in rows]):
            found.differs(entry_id=entry.entry_id, exchange_id=entry.exchange_id, wrong=wrong)
    return found


def _misplaced(entries: Sequence[LedgerEntry]) -> Iterator[tuple[LedgerEntry, str]]:
    """Adjustments among an exchange's entries, in the order they were settled, and what is wrong with them."""
    terminal = next((one for one in entries if one.kind == TERMINAL), None)
    for one in entries:
        if one.kind != ADJUSTMENT:
            continue
        if terminal is None:
            yield one, "there is no terminal entry"
        elif not isinstance(one.details, dict) or one.details.get("adjusts") != terminal.entry_id:
            yield one, "refers to another entry"
        elif (one.key_id, one.model, one.started_at) != (terminal.key_id, terminal.model, terminal.started_at):
            yield one, "is of another key, model or time than its exchange"
    if terminal is not None:
        yield from ((one, "does not come to what it says") for one in unexplained(entries))


def balances_add_up(connection: Connection, _scope: Scope) -> Found:
    """Each key's balance is the sum of its days. (Cheap: it reads no entries.)"""
    names = ("key_id",)
    days = _summed(usage_daily, names, 1, connection.dialect)
    kept = _summed(balances, names, -1, connection.dialect)
    return _unequal(connection, names, [days, kept])


def days_add_up(connection: Connection, scope: Scope) -> Found:
    """Each day's sum, by key and model, is the sum of the entries of that day."""
    dialect = connection.dialect
    names = ("day", "key_id", "model")
    counts = [func.coalesce(_of_entry(name, dialect), 0).label(name) for name in _SUMS]
    entries = select(_day(dialect).label("day"), _COLUMNS.key_id, _COLUMNS.model, *counts)
    kept = _summed(usage_daily, names, -1, dialect)
    if scope.since is not None:
        first = datetime.fromtimestamp(scope.since, UTC).date()
        begins = datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp()
        entries = entries.where(_COLUMNS.started_at >= begins, _COLUMNS.settled_at >= begins - _SKEW_S)
        kept = kept.where(usage_daily.c.day >= first)
    return _unequal(connection, names, [entries, kept])


def _of_entry(name: str, dialect: Dialect) -> ColumnElement[Any]:
    """What one entry adds to the sum of this name."""
    if name == "entries":
        return literal(1)
    column = _COLUMNS[_MONEY_SUMS.get(name, name)]
    return _whole(column.name, dialect) if name in _MONEY_SUMS else column


def _summed(table: Table, names: Iterable[str], sign: int, dialect: Dialect) -> Select[Any]:
    """The rows of a table of sums."""
    amounts = (_whole(name, dialect) if name in _MONEY_SUMS else table.c[name] for name in _SUMS)
    labelled = ((value * sign).label(name) for name, value in zip(_SUMS, amounts, strict=True))
    return select(*(table.c[name] for name in names), *labelled)


def _unequal(connection: Connection, names: Sequence[str], parts: Sequence[Select[Any]]) -> Found:
    """Where the sum of the parts is not zero: by how much the entries (or days) are more than what is kept of them."""
    every = union_all(*parts).subquery()
    more = {name: func.sum(every.c[name]).label(name) for name in _SUMS}
    by = [every.c[name] for name in names]
    query = select(*by, *more.values()).group_by(*by).having(or_(*(sum_ != 0 for sum_ in more.values())))
    found = Found()
    for row in rows_of(connection, query):
        fields = row._asdict()
        found.differs(
            **{name: fields[name] for name in names}, **{name: fields[name] for name in _SUMS if fields[name]}
        )
    return found


def whole_numbers(connection: Connection, scope: Scope) -> Found:
    """Tokens are integers and money is whole nano-USD, in every table."""
    found = Found()
    for table in (ledger_entries, balances, usage_daily):
        wrong = _not_whole(table, connection.dialect)
        key = [cast(column, Text).label(column.name) for column in table.primary_key.columns]
        query = select(*key, *(condition.label(f"not {name}") for name, condition in wrong.items()))
        query = query.where(or_(*wrong.values()))
        for row in rows_of(connection, _settled(query, scope) if table is ledger_entries else query):
            fields = row._asdict()
            columns = [name for name in wrong if fields[f"not {name}"]]
            found.differs(table=table.name, columns=columns, **{column.name: fields[column.name] for column in key})
    return found


def _not_whole(table: Table, dialect: Dialect) -> dict[str, ColumnElement[bool]]:
    """Column → that what stands in it is no such number."""
    wrong: dict[str, ColumnElement[bool]] = {}
    for column in table.columns:
        name, nusd = column.name, _NUSD[dialect.name].format(column.name)
        if isinstance(column.type, Money):
            wrong[name] = literal_column(_NOT_MONEY[dialect.name].format(name, nusd), Boolean)
        elif isinstance(column.type, BigInteger) and dialect.name == "sqlite":  # elsewhere it takes nothing else
            wrong[name] = literal_column(f"(typeof({name}) NOT IN ('integer', 'null'))", Boolean)
    return wrong


def counts(connection: Connection, scope: Scope) -> Found:
    """In terminal entries nothing is negative, parts are not more than the whole, and the total is their sum.

    Some providers break the last two always; then the entry's flags say so.
    """
    none_negative = (*TOKENS, "events", "bytes", "charge_usd", "cost_usd", "duration_ms")
    column = _COLUMNS
    query = _entries(connection.dialect).where(
        column.kind == TERMINAL,
        or_(
            *(column[name] < 0 for name in none_negative),
            column.cached_tokens > column.prompt_tokens,
            column.reasoning_tokens > column.completion_tokens,
            column.total_tokens != column.prompt_tokens + column.completion_tokens,
        ),
    )
    found = Found()
    for row in rows_of(connection, _settled(query, scope)):
        try:
            wrong = _miscounted(_entry(row), none_negative)
        except TypeError:
            wrong = "is not all numbers"
        if wrong:
            found.differs(exchange_id=row.exchange_id, wrong=wrong)
    return found


def _miscounted(entry: LedgerEntry, none_negative: Iterable[str]) -> str:
    """What is wrong with its counts and not said by the meter; empty: nothing."""
    wrong = [f"{name} is negative" for name in none_negative if (getattr(entry, name) or 0) < 0]
    details = entry.details if isinstance(entry.details, dict) else {}
    # The meter did not live to see what was recovered; what is partly reported and partly estimated need not agree.
    if entry.outcome == "crashed" or (entry.usage_source == "estimated" and "usage" in details):
        return "; ".join(wrong)
    flags = details.get("flags") or ()
    usage = Usage(*(getattr(entry, name) for name in TOKENS))
    return "; ".join([*wrong, *(one for one in violations(usage) if one not in flags)])


def prices(connection: Connection, scope: Scope) -> Found:
    """What each terminal entry charges and costs is what its tokens come to at the price pinned in it."""
    dialect, details = connection.dialect, _COLUMNS.details
    query = select(
        _COLUMNS.exchange_id,
        _COLUMNS.usage_source,
        *(_COLUMNS[name] for name in TOKENS),
        _whole("charge_usd", dialect).label("charge_usd"),
        _whole("cost_usd", dialect).label("cost_usd"),
        cast(details["price"], Text).label("price"),
        cast(details["cost"], Text).label("cost"),
        details["billed"].as_string().label("billed"),
    ).where(_COLUMNS.kind == TERMINAL)
    found = Found()
    for row in rows_of(connection, _settled(query, scope)):
        try:
            charge_usd, cost_usd = _recomputed(row)
        except (ValueError, TypeError) as wrong:
            found.differs(exchange_id=row.exchange_id, wrong=f"cannot be recomputed: {type(wrong).__name__}")
            continue
        if (charge_usd, cost_usd) != (row.charge_usd, row.cost_usd):
            recomputed = {"recomputed_charge_usd": charge_usd, "recomputed_cost_usd": cost_usd}
            found.differs(exchange_id=row.exchange_id, charge_usd=row.charge_usd, cost_usd=row.cost_usd, **recomputed)
    return found


def _recomputed(row: Row[Any]) -> tuple[int | None, int | None]:
    """nUSD. Raises ValueError, TypeError."""
    usage, bills = Usage(*row[2:7]), Bills(row.billed)
    return amount(_price(row.price), usage, bills), amount(_price(row.cost), usage, incurred(row.usage_source, bills))


@lru_cache(maxsize=_PRICES_KEPT)
def _price(text: str | None) -> Price | None:
    """The JSON of a pinned price. Raises ValueError."""
    shown = None if text is None else msgspec.json.decode(text)
    return None if shown is None else pinned(shown)


def _whole(name: str, dialect: Dialect) -> ColumnElement[Any]:
    """A column of money as a whole number of nUSD."""
    return literal_column(_NUSD[dialect.name].format(name), BigInteger)


def _day(dialect: Dialect) -> ColumnElement[date]:
    """The day in UTC on which an exchange began."""
    return func.date(_COLUMNS.started_at if dialect.name == "sqlite" else func.timezone("UTC", _COLUMNS.started_at))


def _entries(dialect: Dialect) -> Select[Any]:
    """Whole entries, of which money may be anything."""
    return select(*(_whole(name, dialect).label(name) if name in MONEY else _COLUMNS[name] for name in ENTRY_FIELDS))


def _entry(row: Row[Any]) -> LedgerEntry:
    """One of them. Money that is none (it is found as such) is unknown here."""
    money = {name: getattr(row, name) for name in MONEY}
    sound = {name: None if value is None or value != value else int(value) for name, value in money.items()}
    return LedgerEntry(**{**row._asdict(), **sound})


def _settled(query: Any, scope: Scope) -> Any:
    return query if scope.since is None else query.where(_COLUMNS.settled_at >= scope.since)


def rows_of(connection: Connection, query: Any) -> Iterator[Row[Any]]:
    """All rows, some in memory at a time."""
    return iter(connection.execute(query, execution_options={"stream_results": True, "yield_per": _PAGE_ROWS}))


def _shown(name: str, value: Any) -> Any:
    """As JSON may hold it: money as a decimal string of USD."""
    if isinstance(value, Decimal):
        value = str(value) if value.is_nan() else int(value)
    if name.endswith("_usd") and isinstance(value, int):
        return usd_text(value)
    return str(value) if isinstance(value, date) else value
