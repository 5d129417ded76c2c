"""The usage, adjustments and credits of a key or account in a month, summed from its entries.

Invariant: the sums are a function of the entries and of the closings (see proxy/billing/period.py), so a closed month
always gives the same sums and the same digest. A closed month is stored as the JSON of its `Activity`
(`scope_months.content`): stored names stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, and_, or_, select, union_all

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import TOKENS, EntryKind, units_from
from proxy.billing.merkle import MerkleTree
from proxy.billing.money import ZERO_NUSD, Nusd, total_nusd
from proxy.billing.period import Closings, LateSpan, Month
from proxy.billing.receipt import BOOKED, line_leaf, line_of
from proxy.billing.units import BILLED_UNITS
from proxy.billing.used_units import WHOLE, charged_units
from proxy.ledger.amounts import rows_of
from proxy.ledger.schema.tables import ledger_entries
from proxy.metering.usage import UsageSource

_ENTRIES = ledger_entries.c
_FIELDS = (
    "key_id", "exchange_id", "kind", "seq", "entry_id", "key_alias", "model", "endpoint", "outcome", "usage_source",
    *TOKENS, "charge_nusd", "price_version", "started_at", "settled_at",
)  # fmt: skip
_PRICED = tuple(
    detail_name(one)
    for one in (EntryDetails.units, EntryDetails.billed, EntryDetails.price, EntryDetails.other_models,
                EntryDetails.unpriced_units)
)  # fmt: skip
"""details of the prices"""
_DETAILS = (*_PRICED, detail_name(EntryDetails.why))
_UNITS = {unit.price: at for at, unit in enumerate(BILLED_UNITS)}


class Usages(msgspec.Struct):
    """Totals of exchanges. Money: nUSD."""

    requests: int = 0
    counts: dict[str, int] = {}
    """name → reported or estimated count"""
    charge_nusd: Nusd = msgspec.field(default=ZERO_NUSD, name="charge_usd")
    estimated: int = 0
    """requests with estimated usage"""
    estimated_nusd: Nusd = msgspec.field(default=ZERO_NUSD, name="estimated_usd")
    """the part of `charge_nusd` with estimated usage"""
    unpriced: int = 0
    """requests without a price, which are not charged"""

    def add(self, charge_nusd: Nusd | None, source: str, counts: Iterable[tuple[str, int | None]]) -> None:
        """Adds one exchange."""
        self.requests += 1
        self.unpriced += charge_nusd is None
        self.charge_nusd = Nusd(self.charge_nusd + (charge_nusd or 0))
        if source == UsageSource.ESTIMATED:
            self.estimated += 1
            self.estimated_nusd = Nusd(self.estimated_nusd + (charge_nusd or 0))
        add_counts(self.counts, counts)

    def add_all(self, other: Usages) -> None:
        """Adds other totals."""
        self.requests += other.requests
        self.unpriced += other.unpriced
        self.charge_nusd = Nusd(self.charge_nusd + other.charge_nusd)
        self.estimated += other.estimated
        self.estimated_nusd = Nusd(self.estimated_nusd + other.estimated_nusd)
        add_counts(self.counts, other.counts.items())


class UsageLine(msgspec.Struct, frozen=True):
    """The usage of one model on one day."""

    day: date
    """a day before the month: late usage of a closed month"""
    model: str
    usages: Usages


class PricedLine(msgspec.Struct):
    """The billed units of one kind at one price, of the exchanges of one model. Money: nUSD."""

    model: str
    """the name that clients requested"""
    used_model: str
    """another model that these exchanges used; empty: none"""
    price: str
    """the unit's price in the configuration, or WHOLE of proxy/billing/used_units.py: requests whose charge the units
    do not explain"""
    rate_nusd: Nusd | None = msgspec.field(name="rate_usd")
    """price for the quantity that it is sold by; None: no price, or WHOLE"""
    first_day: date
    """the first and the last day of these exchanges"""
    last_day: date
    number: int = 0
    """billed units; unpriced ones: the used units"""
    charge_nusd: Nusd = msgspec.field(default=ZERO_NUSD, name="charge_usd")

    @property
    def order(self) -> tuple[str, str, int, date, int]:
        """By model and unit; at a change of price, the older one first."""
        at = _UNITS.get(self.price, len(_UNITS))
        return self.model, self.used_model, at, self.first_day, self.rate_nusd or 0

    @property
    def identity(self) -> tuple[str, str, str, Nusd | None]:
        """Lines with the same identity are one."""
        return self.model, self.used_model, self.price, self.rate_nusd

    def add(self, other: PricedLine) -> None:
        """Adds a line with the same identity."""
        self.first_day, self.last_day = min(self.first_day, other.first_day), max(self.last_day, other.last_day)
        self.number += other.number
        self.charge_nusd = Nusd(self.charge_nusd + other.charge_nusd)


def merged_lines(lines: Iterable[PricedLine]) -> list[PricedLine]:
    """One line for each identity, in their order."""
    merged: dict[object, PricedLine] = {}
    for line in lines:
        if (known := merged.get(line.identity)) is None:
            merged[line.identity] = msgspec.structs.replace(line)
        else:
            known.add(line)
    return sorted(merged.values(), key=lambda one: one.order)


class Booking(msgspec.Struct, frozen=True):
    """One adjustment or credit."""

    booked_at: float
    """Unix seconds"""
    entry_id: str
    exchange_id: str
    day: date
    """the day on which the corrected exchange began, or on which the credit was paid"""
    key_alias: str
    model: str
    why: str
    counts: dict[str, int]
    nusd: Nusd = msgspec.field(name="usd")
    """nUSD: added to the charges (adjustment) or to the balance (credit)"""


class Activity(msgspec.Struct):
    """The usage, adjustments and credits of one key or account in a month."""

    lines: list[UsageLine] = []
    adjustments: list[Booking] = []
    """in the order of booking"""
    credits: list[Booking] = []
    prices: list[PricedLine] | msgspec.UnsetType = msgspec.UNSET
    """the usage by unit and price: the charges add up to those of the lines. Unset in months that were closed by a
    version without it"""

    @property
    def charged_nusd(self) -> Nusd:
        """nUSD"""
        return total_nusd(
            [*(line.usages.charge_nusd for line in self.lines), *(booking.nusd for booking in self.adjustments)]
        )

    @property
    def credited_nusd(self) -> Nusd:
        """nUSD"""
        return total_nusd(booking.nusd for booking in self.credits)


class ScopeActivity(msgspec.Struct):
    """The activity of one key or account, and the digest of its entries."""

    scope_id: str
    name: str
    """the name in the last entry of the month"""
    activity: Activity
    entries: int
    digest: str
    """hexadecimal: see proxy/billing/receipt.py"""


def activities(
    connection: Connection, month: Month, closings: Closings, *conditions: ColumnElement[bool]
) -> Iterator[ScopeActivity]:
    """The activity in a month of every key and account with entries that meet the conditions, ordered by id.

    Takes about 100 µs for an entry; memory grows with the days, models and prices of one key, and with its corrections.
    """
    rows = lines_of(connection, month, closings, *conditions)
    return (_folded(scope_id, of_scope, month) for scope_id, of_scope in groupby(rows, key=lambda row: str(row.key_id)))


def lines_of(
    connection: Connection, month: Month, closings: Closings, *conditions: ColumnElement[bool]
) -> Iterator[Any]:
    """The entries on a month's statements, as rows for `line_of`; for each id in the order of `order_of`."""
    fields = [*(_ENTRIES[name] for name in _FIELDS), *(_ENTRIES.details[name].label(name) for name in _DETAILS)]
    # Separate queries, so that each can use an index.
    parts = [select(*fields).where(*conditions, *part) for part in (*usage_of(month, closings), booked_in(month))]
    all_of_them = union_all(*parts).subquery()
    order = (all_of_them.c[name] for name in ("key_id", "exchange_id", "kind", "seq"))
    query: Select[Any] = select(all_of_them).order_by(*order)
    return rows_of(connection, query)


def late_usage(spans: Iterable[LateSpan]) -> ColumnElement[bool]:
    """An SQL condition: the entry is late usage."""
    late = (
        and_(_ENTRIES.settled_at > span.after, _ENTRIES.settled_at <= span.by, _ENTRIES.started_at < span.began_before)
        for span in spans
    )
    return and_(_ENTRIES.kind == EntryKind.USAGE, or_(False, *late))


def usage_of(month: Month, closings: Closings) -> Iterator[list[ColumnElement[bool]]]:
    """SQL conditions whose union selects the usage on a month's statements."""
    in_time = [_ENTRIES.kind == EntryKind.USAGE, _ENTRIES.started_at >= month.since, _ENTRIES.started_at < month.until]
    closed_at = closings.closed_at(month)
    yield in_time if closed_at is None else [*in_time, _ENTRIES.settled_at <= closed_at]
    if spans := closings.late_between(month.since, month.until):
        yield [late_usage(spans)]


def booked_in(month: Month) -> list[ColumnElement[bool]]:
    """SQL conditions: the entry is an adjustment or a credit on the month's statements."""
    return [_ENTRIES.kind.in_(BOOKED), _ENTRIES.settled_at >= month.since, _ENTRIES.settled_at < month.until]


def _folded(scope_id: str, rows: Iterable[Any], month: Month) -> ScopeActivity:
    lines: dict[tuple[date, str], Usages] = {}
    activity = Activity()
    priced: dict[object, PricedLine] = {}
    tree, name = MerkleTree(), ""
    for row in rows:
        name = row.key_alias
        counts = _counts(row)
        if row.kind == EntryKind.USAGE:
            day = month.day_of(row.started_at)
            line = lines.setdefault((day, row.model), Usages())
            line.add(row.charge_nusd, row.usage_source, counts)
            _add_prices(priced, row, day)
        elif row.kind == EntryKind.ADJUSTMENT:
            activity.adjustments.append(_booking(row, month, counts, Nusd(row.charge_nusd or 0)))
        else:
            activity.credits.append(_booking(row, month, counts, Nusd(-(row.charge_nusd or 0))))
        tree.add(line_leaf(line_of(row)))
    activity.lines = [UsageLine(day, model, lines[day, model]) for day, model in sorted(lines)]
    activity.prices = sorted(priced.values(), key=lambda one: one.order)
    for bookings in (activity.adjustments, activity.credits):
        bookings.sort(key=lambda one: (one.booked_at, one.entry_id))
    return ScopeActivity(scope_id, name, activity, tree.size, tree.root.hex())


class _Charged(NamedTuple):
    """A row as `charged_units` reads it."""

    row: Any

    @property
    def details(self) -> dict[str, Any]:
        return {name: value for name in _PRICED if (value := getattr(self.row, name)) is not None}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.row, name)


def _add_prices(priced: dict[object, PricedLine], row: Any, day: date) -> None:
    for used, nusd in charged_units(_Charged(row)):
        number = used.billed or (used.number if used.is_unpriced else 0)
        if not number or (used.price == WHOLE and not nusd and not used.is_unpriced):
            continue
        has_rate = used.price != WHOLE and (used.rate or not used.is_unpriced)
        line = PricedLine(
            row.model, "" if used.model == row.model else used.model, used.price,
            Nusd(used.rate) if has_rate else None, day, day, number, Nusd(nusd),
        )  # fmt: skip
        known = priced.setdefault(line.identity, line)
        if known is not line:
            known.add(line)


def _booking(row: Any, month: Month, counts: Iterable[tuple[str, int | None]], nusd: Nusd) -> Booking:
    summed: dict[str, int] = {}
    add_counts(summed, counts)
    return Booking(
        booked_at=row.settled_at,
        entry_id=row.entry_id,
        exchange_id=row.exchange_id,
        day=month.day_of(row.started_at),
        key_alias=row.key_alias,
        model=row.model,
        why=str(row.why or ""),
        counts=summed,
        nusd=nusd,
    )


def _counts(row: Any) -> list[tuple[str, int | None]]:
    units = units_from(row.units) if row.units else {}
    return [*((name, getattr(row, name)) for name in TOKENS), *units.items()]


def add_counts(counts: dict[str, int], more: Iterable[tuple[str, int | None]]) -> None:
    """Adds the counts that are not None."""
    for name, count in more:
        if count is not None:
            counts[name] = counts.get(name, 0) + count
