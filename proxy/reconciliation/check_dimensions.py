"""The check of the dimensions of exchanges, and of their daily usage.

Invariants: those of check_sums.py. Only entries that the ledger has added up already are compared.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, func, literal, select, tuple_, union_all

from proxy.billing.entries import EntryKind
from proxy.billing.period import day_of
from proxy.ledger.amounts import rows_of
from proxy.ledger.archive.archives import archived_until, not_archived
from proxy.ledger.dimensions.sums import dimensions_of, usage_of
from proxy.ledger.schema.tables import (
    archived_sums,
    dimension_clock,
    dimension_daily,
    exchange_dimensions,
    ledger_entries,
)
from proxy.ledger.settling.sum_clocks import added_until
from proxy.reconciliation.check_sums import SKEW_S, midnight, summed, unequal
from proxy.reconciliation.integrity import CheckResult, CheckScope

_ENTRIES = ledger_entries.c
_DAILY = dimension_daily.c
_PAIR = exchange_dimensions.c


def dimensions_add_up(connection: Connection, scope: CheckScope) -> CheckResult:
    """The dimensions of an exchange are those of its terminal entry, and their daily usage is the sum of the entries.
    Archived months are skipped."""
    result = _usage_adds_up(connection, scope)
    for row in rows_of(connection, _different_exchanges(connection, scope)):
        result.differs(**row._asdict())
    return result


def _different_exchanges(connection: Connection, scope: CheckScope) -> Select[Any]:
    """The dimensions that only the terminal entry has, and those that it has not."""
    entries = (_ENTRIES.settled_at <= added_until(connection, dimension_clock)) & not_archived(connection)
    if scope.since is not None:
        entries &= _ENTRIES.settled_at >= scope.since
    of_entries = dimensions_of(entries, connection.dialect).add_columns(literal(1).label("more"))
    kept = select(*_PAIR, literal(-1).label("more")).where(entries, _ENTRIES.kind == EntryKind.USAGE)
    kept = kept.join(ledger_entries, _ENTRIES.exchange_id == _PAIR.exchange_id)
    every = union_all(of_entries, kept).subquery().c
    pair = every.exchange_id, every.dimension, every.value_id
    return select(*pair).group_by(*pair).having(func.sum(every.more) != 0)


def _usage_adds_up(connection: Connection, scope: CheckScope) -> CheckResult:
    dialect, month = connection.dialect, archived_until(connection)
    names = [column.key for column in dimension_daily.primary_key]
    days = [] if month is None else [month.until]
    entries = (_ENTRIES.settled_at <= added_until(connection, dimension_clock)) & not_archived(connection)
    if scope.since is not None:
        days.append(midnight(scope.since))
        entries &= _ENTRIES.settled_at >= days[-1] - SKEW_S
    kept = summed(dimension_daily, names, -1, dialect)
    if days:
        entries &= _ENTRIES.started_at >= max(days)
        kept = kept.where(dimension_daily.c.day >= day_of(max(days)))
    parts = usage_of(exchange_dimensions, entries, dialect), kept
    return unequal(connection, names, [_without_archived(part) for part in parts])


def _without_archived(part: Select[Any]) -> Select[Any]:
    """Without the days, keys and models of which an archive has some of the entries: those of exchanges of its month
    that were adjusted later."""
    usage, archived = part.subquery(), archived_sums.c
    query = select(archived.day, archived.key_id, archived.model).where(archived.kind == EntryKind.USAGE)
    return select(usage).where(tuple_(usage.c.day, usage.c.key_id, usage.c.model).not_in(query))
