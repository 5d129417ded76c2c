"""SQL for the exchanges of a usage report without a charge or without a cost.

Invariant: an amount is unknown if neither the terminal entry of the exchange nor an adjustment has it, whenever the
adjustment was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Dialect,
    Subquery,
    and_,
    case,
    exists,
    func,
    literal_column,
    select,
    text,
)

from proxy.billing.entries import EntryKind
from proxy.ledger.amounts import nusd, nusd_sum
from proxy.ledger.periods.activity import late_usage
from proxy.ledger.schema.tables import ledger_entries

_ENTRIES = ledger_entries.c
# Literals, not parameters: only then does the planner use the partial index with this condition.
NOT_TERMINAL = literal_column("kind") != literal_column(f"'{EntryKind.USAGE}'")
UNKNOWN_AMOUNT = text(
    "ledger_entries.kind = 'usage' AND (ledger_entries.cost_usd IS NULL OR ledger_entries.charge_usd IS NULL)"
)
_NONE, _ONE = literal_column("0", BigInteger), literal_column("1", BigInteger)

Conditions = Sequence[Any]
"""SQL conditions"""


class UnknownAmounts(NamedTuple):
    """Exchanges with unknown amounts; the columns of the sums below."""

    unpriced: int = 0
    """exchanges without a charge"""
    without_cost: int = 0
    charge_nusd: int = 0
    """the charge of the exchanges without a cost"""


class Sums(NamedTuple):
    """`UnknownAmounts` of entries, as SQL."""

    columns: Sequence[ColumnElement[Any]]
    where: Conditions


def with_changes(dialect: Dialect, in_span: Conditions) -> tuple[Subquery, Sums]:
    """The adjustments of each exchange that began in the time span, to be joined to its terminal entry; and the sums of
    both."""
    changes = (
        select(
            _ENTRIES.exchange_id,
            nusd_sum("charge_usd", dialect).label("charge"),
            func.max(_ENTRIES.cost_nusd).label("cost"),
        )
        .where(NOT_TERMINAL, _ENTRIES.kind == EntryKind.ADJUSTMENT, *in_span)
        .group_by(_ENTRIES.exchange_id)
        .subquery("changes")
    )
    change = changes.c
    charge = func.coalesce(_charge(dialect), 0) + func.coalesce(change.charge, 0)
    columns = _columns(
        and_(_ENTRIES.charge_nusd.is_(None), change.charge.is_(None)),
        and_(_ENTRIES.cost_nusd.is_(None), change.cost.is_(None)),
        charge,
    )
    return changes, Sums(columns, (UNKNOWN_AMOUNT, *in_span))


def booked_elsewhere(dialect: Dialect, late_spans: Sequence[Any]) -> Iterator[Sums]:
    """The sums of adjustments, and of late usage: entries that may be booked in another month than that in which their
    exchange began. `late_spans`: those of the closed months."""
    charge = func.coalesce(_charge(dialect), 0)
    first = ledger_entries.alias("first").c
    of_it = first.exchange_id == _ENTRIES.exchange_id, first.kind == EntryKind.USAGE
    has_unknown_cost = exists().where(*of_it, first.cost_nusd.is_(None)), ~_is_corrected("cost_nusd")
    adjustments = NOT_TERMINAL, _ENTRIES.kind == EntryKind.ADJUSTMENT, *has_unknown_cost
    yield Sums((_NONE, _NONE, func.sum(charge)), adjustments)
    if late_spans:
        without_charge, without_cost = (
            and_(_ENTRIES[name].is_(None), ~_is_corrected(name)) for name in ("charge_nusd", "cost_nusd")
        )
        yield Sums(_columns(without_charge, without_cost, charge), (UNKNOWN_AMOUNT, late_usage(late_spans)))


def _charge(dialect: Dialect) -> ColumnElement[Any]:
    return nusd("ledger_entries.charge_usd", dialect)


def _columns(
    without_charge: ColumnElement[bool], without_cost: ColumnElement[bool], charge: ColumnElement[Any]
) -> Sequence[ColumnElement[Any]]:
    counted = (without_charge, _ONE), (without_cost, _ONE), (without_cost, charge)
    return [func.sum(case((condition, value), else_=0)) for condition, value in counted]


def _is_corrected(name: str) -> ColumnElement[bool]:
    """Whether an adjustment of the entry's exchange has this amount."""
    change = ledger_entries.alias("change").c
    of_it = change.exchange_id == _ENTRIES.exchange_id, change.kind == EntryKind.ADJUSTMENT
    return exists().where(*of_it, change[name].is_not(None))
