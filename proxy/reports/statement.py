"""Monthly statements for customers.

Invariants:
- Opening balance − usage − adjustments + credits = closing balance, to the nano-dollar.
- The closing balance of a month is the opening balance of the next month.

Usage belongs to the day (UTC) on which its exchange began. Adjustments and credits belong to the day on which they were
booked: a later correction appears on a later statement and does not change one already issued.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, and_, func, select

from proxy.billing.entries import COUNTS, TOKENS, EntryKind, units_from
from proxy.ledger.amounts import nusd_sum, rows_of
from proxy.ledger.schema.tables import ledger_entries, usage_daily
from proxy.ledger.settling.spend import clock_of
from proxy.metering.usage import UsageSource
from proxy.reports.totals import keys_below
from proxy.storage.database import reading

_ENTRIES = ledger_entries.c
_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month in UTC."""

    first: date
    after: date
    """first day of the next month"""

    @property
    def since(self) -> float:
        """The first instant; Unix seconds."""
        return _midnight(self.first)

    @property
    def until(self) -> float:
        """The exclusive end; Unix seconds."""
        return _midnight(self.after)

    def __str__(self) -> str:
        return f"{self.first:%Y-%m}"


@dataclass(frozen=True, slots=True)
class StatementOwner:
    """The key, project or organization that is billed."""

    scope_id: str
    kind: str
    name: str

    @property
    def is_key(self) -> bool:
        """False for an account, which has keys below it."""
        return self.kind == "key"


@dataclass(slots=True)
class Usages:
    """Totals of exchanges. Money: nUSD."""

    requests: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """name → reported or estimated count"""
    charge_usd: int = 0
    estimated: int = 0
    """requests with estimated usage"""
    estimated_usd: int = 0
    """their part of `charge_usd`"""
    unpriced: int = 0
    """requests without a price, which are not charged"""

    def add(self, charge_usd: int | None, source: str, counts: Iterable[tuple[str, int | None]]) -> None:
        """Adds one exchange."""
        self.requests += 1
        self.unpriced += charge_usd is None
        self.charge_usd += charge_usd or 0
        if source == UsageSource.ESTIMATED:
            self.estimated += 1
            self.estimated_usd += charge_usd or 0
        _count(self.counts, counts)


@dataclass(frozen=True, slots=True)
class StatementLine:
    """The usage of one model on one day."""

    day: date
    model: str
    usages: Usages


@dataclass(frozen=True, slots=True)
class Booking:
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
    usd: int
    """nUSD: added to the charges (adjustment) or to the balance (credit)"""


@dataclass(frozen=True, slots=True)
class Statement:
    """One month of a key or account. Money: nUSD. A balance is credits less charges; below 0 it is owed."""

    owner: StatementOwner
    month: Month
    as_of: float
    """the ledger's clock, Unix seconds"""
    opening_usd: int
    lines: Sequence[StatementLine]
    adjustments: Sequence[Booking]
    credits: Sequence[Booking]
    keys: Sequence[tuple[str, str, Usages]]
    """(key id, name, usage) for each key of an account; empty for a key"""

    @property
    def is_final(self) -> bool:
        """True if the month is over. Late records may still arrive; `tokenweir reconcile` finds them."""
        return self.as_of >= self.month.until

    @property
    def total(self) -> Usages:
        """The usage of all lines."""
        total = Usages()
        for line in self.lines:
            one = line.usages
            total.requests += one.requests
            total.charge_usd += one.charge_usd
            total.estimated += one.estimated
            total.estimated_usd += one.estimated_usd
            total.unpriced += one.unpriced
            _count(total.counts, one.counts.items())
        return total

    @property
    def adjusted_usd(self) -> int:
        """The sum of all adjustments."""
        return sum(one.usd for one in self.adjustments)

    @property
    def credited_usd(self) -> int:
        """The sum of all credits."""
        return sum(one.usd for one in self.credits)

    @property
    def closing_usd(self) -> int:
        """The balance at the end of the month, or now if it is not over."""
        return self.opening_usd - self.total.charge_usd - self.adjusted_usd + self.credited_usd

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the counts that occur, in the order of COUNTS; always with prompt and completion tokens."""
        found = {name for line in self.lines for name in line.usages.counts}
        found |= {name for one in self.adjustments for name in one.counts}
        found |= {"prompt_tokens", "completion_tokens"}
        return tuple(name for name in COUNTS if name in found)


def month_from(text: str) -> Month:
    """Parses "2026-11". Raises ValueError."""
    match = _MONTH.fullmatch(text)
    if match is None or not 1970 <= int(match[1]) < 9999:
        raise ValueError(f"month: expected YYYY-MM, for example 2026-11, not {text!r}")
    return _month(int(match[1]), int(match[2]))


def month_of(unix_s: float) -> Month:
    """The month of a time in Unix seconds."""
    day = _day(unix_s)
    return _month(day.year, day.month)


@lru_cache(maxsize=16)
def _month(year: int, month: int) -> Month:
    return Month(date(year, month, 1), date(year + month // 12, month % 12 + 1, 1))


def read_statement(engine: Engine, owner: StatementOwner, month: Month) -> Statement:
    """Reads a statement in one transaction. Raises LedgerUnavailable.

    Memory grows with days, models and corrections, time with the month's entries. A key counts for its current project.
    """
    with reading(engine) as connection:
        mine = _ENTRIES.key_id == owner.scope_id
        below = mine if owner.is_key else _ENTRIES.key_id.in_(keys_below(owner.scope_id))
        top_ups = _bookings(connection, and_(mine, _ENTRIES.model == ""), EntryKind.CREDIT)
        credited = [_booking(row, -row.charge_usd) for row in top_ups]
        corrections = _bookings(connection, and_(below, _ENTRIES.settled_at >= month.since), EntryKind.ADJUSTMENT)
        adjustments = [_booking(row, row.charge_usd or 0) for row in corrections]
        lines, keys = _usages(connection, below, month)
        return Statement(
            owner=owner,
            month=month,
            as_of=clock_of(connection) / 1e6,
            opening_usd=_opening(connection, owner, month, adjustments, credited),
            lines=lines,
            adjustments=[one for one in adjustments if one.booked_at < month.until],
            credits=[one for one in credited if month.since <= one.booked_at < month.until],
            keys=() if owner.is_key else keys,
        )


def _opening(
    connection: Connection,
    owner: StatementOwner,
    month: Month,
    adjustments: Iterable[Booking],
    credited: Iterable[Booking],
) -> int:
    """Credits less usage before the month. Corrections booked since then belong to a later statement."""
    columns = usage_daily.c
    below = columns.key_id == owner.scope_id if owner.is_key else columns.key_id.in_(keys_below(owner.scope_id))
    total = func.coalesce(nusd_sum("charged_usd", connection.dialect), 0)
    used = connection.execute(
        select(total).select_from(usage_daily).where(below, columns.day < month.first)
    ).scalar_one()
    booked_later = sum(one.usd for one in adjustments if one.day < month.first)
    return sum(one.usd for one in credited if one.booked_at < month.since) - (int(used) - booked_later)


def _usages(
    connection: Connection, below: ColumnElement[bool], month: Month
) -> tuple[list[StatementLine], list[tuple[str, str, Usages]]]:
    """Usage by day and model, and usage by key."""
    query = select(
        *(_ENTRIES[name] for name in TOKENS),
        _ENTRIES.started_at, _ENTRIES.model, _ENTRIES.key_id, _ENTRIES.key_alias, _ENTRIES.usage_source,
        _ENTRIES.charge_usd, _ENTRIES.details["units"].label("units"),
    ).where(
        below, _ENTRIES.kind == EntryKind.USAGE,
        _ENTRIES.started_at >= month.since, _ENTRIES.started_at < month.until,
    )  # fmt: skip
    lines: dict[tuple[date, str], Usages] = {}
    keys: dict[str, Usages] = {}
    names: dict[str, str] = {}
    for row in rows_of(connection, query):
        counts = _counts(row)
        names[row.key_id] = row.key_alias
        for one in (
            lines.setdefault((_day(row.started_at), row.model), Usages()),
            keys.setdefault(row.key_id, Usages()),
        ):
            one.add(row.charge_usd, row.usage_source, counts)
    of_keys = sorted((names[key_id], key_id, usages) for key_id, usages in keys.items())
    return (
        [StatementLine(day, model, lines[day, model]) for day, model in sorted(lines)],
        [(key_id, name, usages) for name, key_id, usages in of_keys],
    )


def _bookings(connection: Connection, scope: ColumnElement[bool], kind: str) -> Iterable[Any]:
    fields = ("settled_at", "entry_id", "exchange_id", "started_at", "key_alias", "model", "charge_usd", *TOKENS)
    query = select(*(_ENTRIES[name] for name in fields), _ENTRIES.details, _ENTRIES.details["units"].label("units"))
    return rows_of(
        connection, query.where(scope, _ENTRIES.kind == kind).order_by(_ENTRIES.settled_at, _ENTRIES.entry_id)
    )


def _booking(row: Any, nusd: int) -> Booking:
    counts: dict[str, int] = {}
    _count(counts, _counts(row))
    return Booking(
        booked_at=row.settled_at,
        entry_id=row.entry_id,
        exchange_id=row.exchange_id,
        day=_day(row.started_at),
        key_alias=row.key_alias,
        model=row.model,
        why=str(row.details.get("why", "")),
        counts=counts,
        usd=nusd,
    )


def _counts(row: Any) -> list[tuple[str, int | None]]:
    units = units_from(row.units) if row.units else {}
    return [*((name, getattr(row, name)) for name in TOKENS), *units.items()]


def _count(counts: dict[str, int], more: Iterable[tuple[str, int | None]]) -> None:
    for name, count in more:
        if count is not None:
            counts[name] = counts.get(name, 0) + count


def _day(unix_s: float) -> date:
    return datetime.fromtimestamp(unix_s, UTC).date()


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
