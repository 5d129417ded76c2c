"""Usage by dimension, added up outside the settling transactions.

Invariants: `exchange_dimensions` has the dimensions of the exchanges whose terminal entry was settled until
`dimension_clock`, without those that are archived. `dimension_daily` is the sum of these exchanges' entries that were
settled until then, adjustments and failed attempts included. No entry of an exchange is settled before its terminal
one, so no entry is left out. A reader adds `later_usage`, so its total does not depend on the progress here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    FromClause,
    Select,
    String,
    case,
    func,
    literal_column,
    select,
    true,
    type_coerce,
)
from sqlalchemy.dialects import postgresql, sqlite

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import EntryKind
from proxy.ledger.amounts import SUMS, sums_of_entries, utc_day
from proxy.ledger.schema.tables import dimension_clock, dimension_daily, exchange_dimensions, ledger_entries
from proxy.ledger.settling.sum_clocks import added_until, next_step
from proxy.ledger.settling.sums import or_added
from proxy.storage.database import is_shared

# Entries in one transaction, about: it takes a quarter of a second.
ENTRIES_MAX = 5_000

# Of the name of a dimension, and of a value id; ours are shorter.
_CHARS_MAX = 64

_ENTRIES = ledger_entries.c
_DETAIL = detail_name(EntryDetails.dimensions)
_PAIR = ("dimension", "value_id", "exchange_id")
_GROUP = tuple(column.key for column in dimension_daily.primary_key)


def add_up(engine: Engine) -> bool:
    """Add the next entries; True if there may be more. Any number of processes may call this; one of them does the
    work. Raises LedgerUnavailable."""
    dialect = postgresql if is_shared(engine) else sqlite
    with next_step(engine, dimension_clock, ENTRIES_MAX) as step:
        if step is None:
            return False
        pairs = dimensions_of(step.entries, engine.dialect)
        insert = dialect.insert(exchange_dimensions).from_select(_PAIR, pairs)
        step.connection.execute(insert.on_conflict_do_nothing())
        usage = usage_of(exchange_dimensions, step.entries, engine.dialect).subquery().c
        rows = select(*(usage[name] for name in _GROUP), *(as_stored(name, usage[name]) for name in SUMS)).where(true())
        insert = dialect.insert(dimension_daily).from_select([*_GROUP, *SUMS], rows)
        step.connection.execute(or_added(insert, dimension_daily))
    return not step.is_last


def later_usage(connection: Connection) -> Iterator[Select[Any]]:
    """The usage that is not in `dimension_daily` yet, as queries of its columns; money in whole nUSD."""
    later = _ENTRIES.settled_at > added_until(connection, dimension_clock)
    for pairs in (exchange_dimensions, dimensions_of(later, connection.dialect).subquery()):
        yield usage_of(pairs, later, connection.dialect)


def dimensions_of(entries: ColumnElement[bool], dialect: Dialect) -> Select[Any]:
    """Dimension, value id and exchange id of the terminal entries among these."""
    if dialect.name == "postgresql":
        details = type_coerce(_ENTRIES.details, postgresql.JSONB)
        found = details[_DETAIL]
        kind, members, has_some = func.jsonb_typeof(found), func.jsonb_each_text, details.has_key(_DETAIL)
    else:
        found = func.json_extract(_ENTRIES.details, f"$.{_DETAIL}")
        kind, members = func.json_type(_ENTRIES.details, f"$.{_DETAIL}"), func.json_each
        has_some = func.instr(type_coerce(_ENTRIES.details, String), f'"{_DETAIL}":') > 0  # faster than to parse
    member = members(case((kind == "object", found))).table_valued("key", "value")
    query = select(member.c.key.label("dimension"), member.c.value.label("value_id"), _ENTRIES.exchange_id)
    # An entry of another origin stops no step: what no index can contain is left out.
    valid = (func.length(text) <= _CHARS_MAX for text in (member.c.key, member.c.value))
    query = query.select_from(ledger_entries.join(member, true()))
    return query.where(entries, _ENTRIES.kind == EntryKind.USAGE, has_some, *valid)


def usage_of(pairs: FromClause, entries: ColumnElement[bool], dialect: Dialect) -> Select[Any]:
    """The sums over these entries by dimension and the rest of `dimension_daily`'s key, without top-ups; money in nUSD.
    `pairs`: dimensions of exchanges, with the columns of `exchange_dimensions`."""
    day = utc_day(_ENTRIES.started_at, dialect)
    group = (pairs.c.dimension, day.label("day"), pairs.c.value_id, _ENTRIES.key_id, _ENTRIES.model)
    query = select(*group, *sums_of_entries(dialect))
    query = query.select_from(ledger_entries.join(pairs, pairs.c.exchange_id == _ENTRIES.exchange_id))
    return query.where(entries, _ENTRIES.kind != EntryKind.CREDIT).group_by(*group)


def as_stored(name: str, sum_: ColumnElement[Any]) -> ColumnElement[Any]:
    """A sum as its column contains it: money in USD."""
    return sum_.op("/")(literal_column("1e9")) if name.endswith("_nusd") else sum_
