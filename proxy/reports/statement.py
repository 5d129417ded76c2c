"""What a customer is billed for a month. Law: opening balance − usage − adjustments + credits = closing balance, to the
nano-dollar, and a month's closing balance is the next one's opening balance.

Usage belongs to the day (UTC) on which its exchange began. Adjustments and credits belong to the day on which they were
made: what is put right later is on a later statement, and does not change one that somebody has.
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
    """A calendar month, in UTC."""

    first: date
    after: date
    """the first day of the next one"""

    @property
    def since(self) -> float:
        """Unix seconds."""
        return _midnight(self.first)

    @property
    def until(self) -> float:
        """Unix seconds; no longer in it."""
        return _midnight(self.after)

    def __str__(self) -> str:
        return f"{self.first:%Y-%m}"


@dataclass(frozen=True, slots=True)
class StatementOwner:
    """A key, a project or an organization."""

    scope_id: str
    kind: str
    name: str

    @property
    def is_key(self) -> bool:
        """True if there is nothing below it."""
        return self.kind == "key"


@dataclass(slots=True)
class Usages:
    """Exchanges added up. Money: nUSD."""

    requests: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """what somebody reported or estimated, by the names of the counts"""
    charge_usd: int = 0
    estimated: int = 0
    """how many of the requests nobody reported the usage of"""
    estimated_usd: int = 0
    """the part of the charge that is theirs"""
    unpriced: int = 0
    """how many had no price, and were charged nothing"""

    def add(self, charge_usd: int | None, source: str, counts: Iterable[tuple[str, int | None]]) -> None:
        """One exchange more."""
        self.requests += 1
        self.unpriced += charge_usd is None
        self.charge_usd += charge_usd or 0
        if source == UsageSource.ESTIMATED:
            self.estimated += 1
            self.estimated_usd += charge_usd or 0
        _count(self.counts, counts)


@dataclass(frozen=True, slots=True)
class StatementLine:
    """What was used of one model on one day."""

    day: date
    model: str
    usages: Usages


@dataclass(frozen=True, slots=True)
class Booking:
    """One adjustment or credit."""

    made_at: float
    """Unix seconds"""
    entry_id: str
    exchange_id: str
    day: date
    """on which what it corrects began; of a credit, on which it was paid in"""
    key_alias: str
    model: str
    why: str
    counts: dict[str, int]
    usd: int
    """nUSD: what it adds to the charges; of a credit, to the balance"""


@dataclass(frozen=True, slots=True)
class Statement:
    """A month of a key or account. Money: nUSD. A balance is what was paid in, less what was used; below 0: owed."""

    whose: StatementOwner
    month: Month
    as_of: float
    """the ledger's clock, Unix seconds"""
    opening_usd: int
    lines: Sequence[StatementLine]
    adjustments: Sequence[Booking]
    credits: Sequence[Booking]
    keys: Sequence[tuple[str, str, Usages]]
    """key id, name, usage: of an account, what each of its keys has part in"""

    @property
    def is_final(self) -> bool:
        """The month is over. What began before its end may still be on its way: `tokenweir reconcile` sees that."""
        return self.as_of >= self.month.until

    @property
    def total(self) -> Usages:
        """Of all lines."""
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
        """Of all adjustments."""
        return sum(one.usd for one in self.adjustments)

    @property
    def credited_usd(self) -> int:
        """Of all credits."""
        return sum(one.usd for one in self.credits)

    @property
    def closing_usd(self) -> int:
        """At the end of the month, or now."""
        return self.opening_usd - self.total.charge_usd - self.adjusted_usd + self.credited_usd

    @property
    def units(self) -> tuple[str, ...]:
        """The counts that occur, in their order; prompt and completion tokens always."""
        found = {name for line in self.lines for name in line.usages.counts}
        found |= {name for one in self.adjustments for name in one.counts}
        found |= {"prompt_tokens", "completion_tokens"}
        return tuple(name for name in COUNTS if name in found)


def month_from(text: str) -> Month:
    """2026-11. Raises ValueError."""
    found = _MONTH.fullmatch(text)
    if found is None or not 1970 <= int(found[1]) < 9999:
        raise ValueError(f"month: not one, as in 2026-11: {text!r}")
    return _month(int(found[1]), int(found[2]))


def month_of(unix_s: float) -> Month:
    """The one that a moment lies in. Unix seconds."""
    day = _day(unix_s)
    return _month(day.year, day.month)


@lru_cache(maxsize=16)
def _month(year: int, month: int) -> Month:
    return Month(date(year, month, 1), date(year + month // 12, month % 12 + 1, 1))


def read_statement(engine: Engine, whose: StatementOwner, month: Month) -> Statement:
    """All of it at one moment. Its memory grows with days, models and corrections, its time with the month's entries.

    Keys count for the accounts that they are of now. Raises LedgerUnavailable.
    """
    with reading(engine) as connection:
        mine = _ENTRIES.key_id == whose.scope_id
        below = mine if whose.is_key else _ENTRIES.key_id.in_(keys_below(whose.scope_id))
        top_ups = _bookings(connection, and_(mine, _ENTRIES.model == ""), EntryKind.CREDIT)
        credited = [_booking(row, -row.charge_usd) for row in top_ups]
        corrections = _bookings(connection, and_(below, _ENTRIES.settled_at >= month.since), EntryKind.ADJUSTMENT)
        adjustments = [_booking(row, row.charge_usd or 0) for row in corrections]
        lines, keys = _usages(connection, below, month)
        return Statement(
            whose=whose,
            month=month,
            as_of=clock_of(connection) / 1e6,
            opening_usd=_opening(connection, whose, month, adjustments, credited),
            lines=lines,
            adjustments=[one for one in adjustments if one.made_at < month.until],
            credits=[one for one in credited if month.since <= one.made_at < month.until],
            keys=() if whose.is_key else keys,
        )


def _opening(
    connection: Connection,
    whose: StatementOwner,
    month: Month,
    adjustments: Iterable[Booking],
    credited: Iterable[Booking],
) -> int:
    """What was paid in before, less what was used on the days before; what was put right later comes later."""
    columns = usage_daily.c
    below = columns.key_id == whose.scope_id if whose.is_key else columns.key_id.in_(keys_below(whose.scope_id))
    total = func.coalesce(nusd_sum("charged_usd", connection.dialect), 0)
    used = connection.execute(
        select(total).select_from(usage_daily).where(below, columns.day < month.first)
    ).scalar_one()
    later = sum(one.usd for one in adjustments if one.day < month.first)
    return sum(one.usd for one in credited if one.made_at < month.since) - (int(used) - later)


def _usages(
    connection: Connection, below: ColumnElement[bool], month: Month
) -> tuple[list[StatementLine], list[tuple[str, str, Usages]]]:
    """By day and model; by key."""
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


def _bookings(connection: Connection, whose: ColumnElement[bool], kind: str) -> Iterable[Any]:
    fields = ("settled_at", "entry_id", "exchange_id", "started_at", "key_alias", "model", "charge_usd", *TOKENS)
    query = select(*(_ENTRIES[name] for name in fields), _ENTRIES.details, _ENTRIES.details["units"].label("units"))
    return rows_of(
        connection, query.where(whose, _ENTRIES.kind == kind).order_by(_ENTRIES.settled_at, _ENTRIES.entry_id)
    )


def _booking(row: Any, nusd: int) -> Booking:
    counts: dict[str, int] = {}
    _count(counts, _counts(row))
    return Booking(
        made_at=row.settled_at,
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
