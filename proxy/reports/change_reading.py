"""Reads the charges of a period for `usage_change.py`.

Invariant: charges and adjustments of all models add up to the total of `read_usage` with the same filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, func, not_

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import EntryKind
from proxy.billing.money import PARTS_PER_NUSD, Nusd
from proxy.billing.pricing.prices import addends, pinned
from proxy.billing.record import BillableParts
from proxy.ledger.amounts import nusd_sum
from proxy.ledger.periods.activity import late_usage
from proxy.ledger.periods.closing import read_closings
from proxy.ledger.schema.tables import ledger_entries
from proxy.metering.usage import Usage
from proxy.reports.usage import EntrySource, UsageFilter, began, entry_source, require_entries, settled, whole_bucket
from proxy.reports.usage_change import ModelCharges
from proxy.storage.database import reading

_ENTRIES = ledger_entries.c
_PRICE, _BILLED = (_ENTRIES.details[detail_name(one)] for one in (EntryDetails.price, EntryDetails.billed))
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
_REQUEST = "request"

_Conditions = Sequence[ColumnElement[bool]]


def read_charges(engine: Engine, wanted: UsageFilter) -> dict[str, ModelCharges]:
    """Model → its charges in the whole time span of `wanted`, whose groups do not matter.

    Reads all entries of the span. Raises LedgerUnavailable; ValueError if some are archived.
    """
    wanted = replace(
        wanted, is_total=True, by_model=True, by_key=False, by_project=False, by_organization=False, by_provider=False,
        by_dimension=None,
    )  # fmt: skip
    found: dict[str, ModelCharges] = {}
    with reading(engine) as connection:
        require_entries(connection, [wanted.span])
        entries, late = entry_source(connection, wanted), late_usage(read_closings(connection).late_between(0.0))
        for where in _usage(wanted, late):
            for row in _charges(connection, entries, wanted, where):
                _add(found.setdefault(row.by_model, ModelCharges()), row)
        moment = settled if wanted.is_booked else began
        is_adjustment = _ENTRIES.kind == EntryKind.ADJUSTMENT
        total = [func.coalesce(nusd_sum("charge_usd", connection.dialect), 0)]
        adjustments = entries.sums(whole_bucket(wanted), total, (is_adjustment, *moment(wanted)))
        for _, model, nusd in connection.execute(adjustments):
            found.setdefault(model, ModelCharges()).adjusted_nusd = Nusd(int(nusd))
    return found


def _usage(wanted: UsageFilter, late: ColumnElement[bool]) -> Iterator[_Conditions]:
    is_usage = _ENTRIES.kind == EntryKind.USAGE
    if not wanted.is_booked:
        yield is_usage, *began(wanted)
        return
    yield is_usage, not_(late), *began(wanted)
    yield is_usage, late, *settled(wanted)


def _charges(connection: Connection, entries: EntrySource, wanted: UsageFilter, where: _Conditions) -> Any:
    """The sums of exchanges by model, price and billed parts."""
    by_price = entries._replace(groups=[*entries.groups, _PRICE.label("by_price"), _BILLED.label("by_billed")])
    sums = [
        func.count().label("requests"),
        func.coalesce(nusd_sum("charge_usd", connection.dialect), 0).label("charge"),
        *(func.coalesce(func.sum(_ENTRIES[name]), 0).label(name) for name in _TOKENS),
    ]
    return connection.execute(by_price.sums(whole_bucket(wanted), sums, where))


def _add(charges: ModelCharges, row: Any) -> None:
    charges.requests += row.requests
    charges.charge_nusd = Nusd(charges.charge_nusd + int(row.charge))
    if not isinstance(row.by_price, Mapping):
        return
    usage = Usage(**{name: int(getattr(row, name)) for name in _TOKENS})
    try:
        price, bills = pinned(row.by_price), BillableParts(row.by_billed or "")
        items = addends(price.tiers[0], usage, bills) if price.tiers else []
    except (ValueError, TypeError):  # of another version
        return
    for item in items:
        times = row.requests if item.name == _REQUEST else 1
        charges.add_units(item.name, item.units * times, Fraction(item.parts * times, PARTS_PER_NUSD))
