"""The usage and the adjustments of a month's statements, by the values of a dimension.

Invariant: each sum over all values, with the one of the requests without the dimension, is the sum of the statements.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Dialect, FromClause, Select, case, func, select

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import TOKENS, EntryKind
from proxy.billing.money import ZERO_NUSD, Nusd
from proxy.billing.period import Closings, Month
from proxy.ledger.amounts import nusd
from proxy.ledger.periods.activity import Usages, booked_in, usage_of
from proxy.ledger.schema.tables import ledger_entries
from proxy.metering.usage import UsageSource

_ENTRIES = ledger_entries.c


class ValueActivity(msgspec.Struct):
    """The activity of the exchanges with one value, or without the dimension."""

    usages: Usages
    """the counts that have a column in the ledger"""
    adjusted_nusd: Nusd = ZERO_NUSD


def activity_by_value(
    connection: Connection, month: Month, closings: Closings, dimension: str, *conditions: ColumnElement[bool]
) -> dict[str | None, ValueActivity]:
    """Value id → activity of the entries that meet the conditions; None: without the dimension.

    Time grows with the month's entries, memory with the values. Raises LedgerUnavailable.
    """
    found: dict[str | None, ValueActivity] = {}
    for part in usage_of(month, closings):
        for value_id, *sums in connection.execute(_usage(dimension, connection.dialect).where(*conditions, *part)):
            requests, unpriced, charge, estimated, estimated_nusd, *tokens = map(int, sums)
            counts = {name: count for name, count in zip(TOKENS, tokens, strict=True) if count}
            usages = Usages(requests, counts, Nusd(charge), estimated, Nusd(estimated_nusd), unpriced)
            found.setdefault(value_id, ValueActivity(Usages())).usages.add_all(usages)
    adjusted = _adjusted(dimension, connection.dialect).where(*conditions, *booked_in(month))
    for value_id, total in connection.execute(adjusted):
        found.setdefault(value_id, ValueActivity(Usages())).adjusted_nusd = Nusd(int(total))
    return found


def _usage(dimension: str, dialect: Dialect) -> Select[Any]:
    charge, is_estimated = nusd("charge_usd", dialect), _ENTRIES.usage_source == UsageSource.ESTIMATED
    sums = (
        func.count(),
        func.sum(case((_ENTRIES.charge_nusd.is_(None), 1), else_=0)),
        func.coalesce(func.sum(charge), 0),
        func.sum(case((is_estimated, 1), else_=0)),
        func.coalesce(func.sum(case((is_estimated, charge))), 0),
        *(func.coalesce(func.sum(_ENTRIES[name]), 0) for name in TOKENS),
    )
    return _by_value(ledger_entries, ledger_entries, dimension, *sums)


def _adjusted(dimension: str, dialect: Dialect) -> Select[Any]:
    """An adjustment has the dimensions of its exchange, which the terminal entry has."""
    terminal = ledger_entries.alias("terminal")
    same = (terminal.c.exchange_id == _ENTRIES.exchange_id) & (terminal.c.kind == EntryKind.USAGE)
    total = func.coalesce(func.sum(nusd("ledger_entries.charge_usd", dialect)), 0)
    rows = ledger_entries.outerjoin(terminal, same)
    return _by_value(rows, terminal, dimension, total).where(_ENTRIES.kind == EntryKind.ADJUSTMENT)


def _by_value(rows: FromClause, terminal: FromClause, dimension: str, *sums: ColumnElement[Any]) -> Select[Any]:
    value_id = terminal.c.details[(detail_name(EntryDetails.dimensions), dimension)].as_string().label("value_id")
    return select(value_id, *sums).select_from(rows).group_by("value_id")
