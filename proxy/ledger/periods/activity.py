"""The usage, adjustments and credits of a key or account in a month, summed from its entries.

Invariant: the sums are a function of the entries and of the closings (see proxy/billing/period.py), so a closed month
always gives the same sums and the same digest. A closed month is stored as the JSON of its `Activity`
(`scope_months.content`): stored names stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from itertools import groupby
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, and_, or_, select, union_all

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import TOKENS, EntryKind, units_from
from proxy.billing.merkle import MerkleTree
from proxy.billing.money import ZERO_NUSD, Nusd, total_nusd
from proxy.billing.period import Closings, LateSpan, Month
from proxy.billing.receipt import BOOKED, line_leaf, line_of
from proxy.ledger.amounts import rows_of
from proxy.ledger.schema.tables import ledger_entries
from proxy.metering.usage import UsageSource

_ENTRIES = ledger_entries.c
_FIELDS = (
    "key_id", "exchange_id", "kind", "seq", "entry_id", "key_alias", "model", "endpoint", "outcome", "usage_source",
    *TOKENS, "charge_nusd", "started_at", "settled_at",
)  # fmt: skip


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

    Takes about 60 µs for an entry; memory grows with the days and models of one key, and with its corrections.
    """
    rows = lines_of(connection, month, closings, *conditions)
    return (_folded(scope_id, of_scope, month) for scope_id, of_scope in groupby(rows, key=lambda row: str(row.key_id)))


def lines_of(
    connection: Connection, month: Month, closings: Closings, *conditions: ColumnElement[bool]
) -> Iterator[Any]:
    """The entries on a month's statements, as rows for `line_of`; for each id in the order of `order_of`."""
    details = (_ENTRIES.details[name].label(name) for name in map(detail_name, (EntryDetails.units, EntryDetails.why)))
    fields = [*(_ENTRIES[name] for name in _FIELDS), *details]
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
    tree, name = MerkleTree(), ""
    for row in rows:
        name = row.key_alias
        counts = _counts(row)
        if row.kind == EntryKind.USAGE:
            line = lines.setdefault((month.day_of(row.started_at), row.model), Usages())
            line.add(row.charge_nusd, row.usage_source, counts)
        elif row.kind == EntryKind.ADJUSTMENT:
            activity.adjustments.append(_booking(row, month, counts, Nusd(row.charge_nusd or 0)))
        else:
            activity.credits.append(_booking(row, month, counts, Nusd(-(row.charge_nusd or 0))))
        tree.add(line_leaf(line_of(row)))
    activity.lines = [UsageLine(day, model, lines[day, model]) for day, model in sorted(lines)]
    for bookings in (activity.adjustments, activity.credits):
        bookings.sort(key=lambda one: (one.booked_at, one.entry_id))
    return ScopeActivity(scope_id, name, activity, tree.size, tree.root.hex())


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
