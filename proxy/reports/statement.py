"""Monthly statements for customers.

Invariants:
- Opening balance − usage − adjustments + credits = closing balance, to the nano-dollar.
- The closing balance of a month is the opening balance of the next month.
- The statement of a closed month never changes: it is read from the closed form, names included.
- Months are closed in UTC. The statement of a month in another time zone is always provisional: closings do not move
  its usage to another month.

proxy/billing/period.py defines the entries of each statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Table, func, literal, select, union

from proxy.billing.entries import COUNTS, EntryKind
from proxy.billing.money import Nusd, total_nusd
from proxy.billing.period import Closings, Month, month_of
from proxy.billing.receipt import EMPTY, digest_of
from proxy.billing.windows import day_start, local_day
from proxy.ledger.amounts import nusd_sum
from proxy.ledger.archive.archives import require_entries
from proxy.ledger.grants.burning import GrantPeriod, grant_periods
from proxy.ledger.periods.activity import Booking, ScopeActivity, UsageLine, Usages, activities, late_usage
from proxy.ledger.periods.closing import closed_activities, read_closings, read_period, totals_until
from proxy.ledger.periods.values import ValueActivity, activity_by_value
from proxy.ledger.schema.tables import balances, ledger_entries, usage_daily
from proxy.ledger.settling.spend import clock_of
from proxy.reports.dimensions import ShownDimension, ValueReader
from proxy.reports.entry_reader import CLOCKS_DIFFER_S_MAX
from proxy.reports.totals import keys_below
from proxy.storage.database import reading

_ENTRIES = ledger_entries.c


@dataclass(frozen=True, slots=True)
class StatementOwner:
    """The key, project or organization that is billed."""

    scope_id: str
    kind: str
    name: str

    @property
    def is_key(self) -> bool:
        """True for a key; False for an account, which has keys below it."""
        return self.kind == "key"


@dataclass(frozen=True, slots=True)
class Issued:
    """Number, date and digest of the statement of a closed month."""

    number: str
    """unique: month and id"""
    version: int
    """version of the statement with this number; always 1, because a statement never changes"""
    closed_at: float
    """Unix seconds"""
    entries: int
    digest: str
    """hexadecimal: see proxy/billing/receipt.py"""


@dataclass(frozen=True, slots=True)
class ByValue:
    """The usage and the adjustments of a statement by the values of a dimension, the highest charge first. They add up
    to those of the statement."""

    dimension: str
    rows: Sequence[tuple[ShownDimension | None, ValueActivity]]
    """None: the requests without the dimension"""


@dataclass(frozen=True, slots=True)
class Statement:
    """One month of a key or account. Money: nUSD. A balance is credits less charges; below 0 it is owed."""

    owner: StatementOwner
    month: Month
    as_of: float
    """the ledger's clock, Unix seconds"""
    opening_nusd: Nusd
    lines: Sequence[UsageLine]
    adjustments: Sequence[Booking]
    credits: Sequence[Booking]
    keys: Sequence[tuple[str, str, Usages]]
    """(key id, name, usage) for each key of an account; empty for a key"""
    issued: Issued | None
    """None: the month is open, and the statement can change"""
    by_value: ByValue | None = None
    """None: not requested"""
    grants: Sequence[GrantPeriod] = ()
    """the grants of the owner itself, by the entries that were settled in the month"""

    @property
    def is_over(self) -> bool:
        """True if the month is over."""
        return self.as_of >= self.month.until

    @property
    def total(self) -> Usages:
        """The usage of all lines."""
        return total_of(self.lines)

    @property
    def adjusted_nusd(self) -> Nusd:
        """The sum of all adjustments."""
        return total_nusd(booking.nusd for booking in self.adjustments)

    @property
    def credited_nusd(self) -> Nusd:
        """The sum of all credits."""
        return total_nusd(booking.nusd for booking in self.credits)

    @property
    def closing_nusd(self) -> Nusd:
        """The balance at the end of the month, or the current balance if the month is not over."""
        return Nusd(self.opening_nusd - self.total.charge_nusd - self.adjusted_nusd + self.credited_nusd)

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the counts that occur, in the order of COUNTS; always with prompt and completion tokens."""
        found = {name for line in self.lines for name in line.usages.counts}
        found |= {name for adjustment in self.adjustments for name in adjustment.counts}
        found |= {"prompt_tokens", "completion_tokens"}
        return tuple(name for name in COUNTS if name in found)


def total_of(lines: Iterable[UsageLine]) -> Usages:
    """The sum of some lines."""
    total = Usages()
    for line in lines:
        total.add_all(line.usages)
    return total


def read_statement(engine: Engine, owner: StatementOwner, month: Month, by: str | None = None) -> Statement:
    """Reads a statement in one transaction. `by`: a dimension. Raises LedgerUnavailable; ValueError if `by`, or the
    month's time zone, needs entries that are archived.

    Of an open month, and with `by`, memory grows with days, models, corrections and values, time with the month's
    entries.
    """
    with reading(engine) as connection:
        in_utc = month.time_zone is None
        period, closings = (read_period(connection, month), read_closings(connection)) if in_utc else (None, Closings())
        if not in_utc or by is not None:
            require_entries(connection, month_of(month.since))
        if period is None or period.issued_at is None:
            statement = _from_entries(connection, owner, month, closings)
        else:
            statement = _from_closed_form(connection, owner, month, period.closed_at)
        statement = replace(statement, grants=grant_periods(connection, owner.scope_id, month.since, month.until))
        if by is None:
            return statement
        below = _ENTRIES.key_id.in_(scopes_of(owner))
        found = activity_by_value(connection, month, closings, by, below)
    shown = ValueReader(engine, None).shown(value_id for value_id in found if value_id is not None)
    rows = sorted(found.items(), key=lambda row: (-row[1].usages.charge_nusd, row[0] or ""))
    named = [(None if value_id is None else shown[value_id], activity) for value_id, activity in rows]
    return replace(statement, by_value=ByValue(by, named))


def _from_entries(connection: Connection, owner: StatementOwner, month: Month, closings: Closings) -> Statement:
    found = list(activities(connection, month, closings, _ENTRIES.key_id.in_(scopes_of(owner))))
    opening_nusd = _opening(connection, owner, month, closings)
    return _merged(owner, month, found, opening_nusd=opening_nusd, as_of=clock_of(connection) / 1e6, issued=None)


def _from_closed_form(connection: Connection, owner: StatementOwner, month: Month, closed_at: float) -> Statement:
    found = closed_activities(connection, month, scopes_of(owner))
    name = next((one.name for one in found if one.scope_id == owner.scope_id), owner.name)
    totals = totals_until(connection, month, scopes_of(owner))
    credited = totals[owner.scope_id].credited_nusd if owner.scope_id in totals else 0
    closing_nusd = credited - sum(total.charged_nusd for total in totals.values())
    digests = {one.scope_id: one.digest for one in found if one.entries}
    issued = Issued(
        number=f"{month}-{owner.scope_id}",
        version=1,
        closed_at=closed_at,
        entries=sum(one.entries for one in found),
        digest=digests.get(owner.scope_id, EMPTY) if owner.is_key else digest_of(digests),
    )
    whose = StatementOwner(owner.scope_id, owner.kind, name)
    statement = _merged(whose, month, found, opening_nusd=Nusd(0), as_of=closed_at, issued=issued)
    return replace(statement, opening_nusd=Nusd(closing_nusd - statement.closing_nusd))


def scopes_of(owner: StatementOwner) -> Any:
    """Selects the ids whose entries are on the owner's statements: the owner, and the keys below it."""
    return union(keys_below(owner.scope_id), select(literal(owner.scope_id)))


def _merged(
    owner: StatementOwner,
    month: Month,
    found: Iterable[ScopeActivity],
    *,
    opening_nusd: Nusd,
    as_of: float,
    issued: Issued | None,
) -> Statement:
    """Sum the owner's activity and that of the keys below it. Credits of those keys are not credits of the owner."""
    lines: dict[tuple[date, str], Usages] = {}
    keys: list[tuple[str, str, Usages]] = []
    adjustments: list[Booking] = []
    credited: list[Booking] = []
    for one in found:
        of_scope = Usages()
        for line in one.activity.lines:
            of_scope.add_all(line.usages)
            lines.setdefault((line.day, line.model), Usages()).add_all(line.usages)
        if one.activity.lines:
            keys.append((one.scope_id, one.name, of_scope))
        adjustments += one.activity.adjustments
        if one.scope_id == owner.scope_id:
            credited += one.activity.credits
    return Statement(
        owner=owner,
        month=month,
        as_of=as_of,
        opening_nusd=opening_nusd,
        lines=[UsageLine(day, model, lines[day, model]) for day, model in sorted(lines)],
        adjustments=sorted(adjustments, key=lambda one: (one.booked_at, one.entry_id)),
        credits=credited,
        keys=() if owner.is_key else sorted(keys, key=lambda one: (one[1], one[0])),
        issued=issued,
    )


def _opening(connection: Connection, owner: StatementOwner, month: Month, closings: Closings) -> Nusd:
    """Credits less usage on all statements before an open month. Reads only sums and the entries settled since."""
    since = month.since
    own, below = _ENTRIES.key_id == owner.scope_id, _ENTRIES.key_id.in_(scopes_of(owner))
    adjusted = [below, _ENTRIES.kind == EntryKind.ADJUSTMENT]
    before, later = _ENTRIES.settled_at < since, _ENTRIES.settled_at >= since
    first = local_day(None, since)
    used = _sum(connection, usage_daily, usage_daily.c.key_id.in_(scopes_of(owner)), usage_daily.c.day < first)
    if (day_began := day_start(None, first)) < since:
        part = _ENTRIES.started_at >= day_began, _ENTRIES.started_at < since, _ENTRIES.kind != EntryKind.CREDIT
        used += _entries(connection, below, *part)
    used -= _entries(connection, *adjusted, later, _ENTRIES.started_at < since)
    ahead = _ENTRIES.started_at.between(since, since + CLOCKS_DIFFER_S_MAX)
    used += _entries(connection, *adjusted, before, ahead)
    if spans := closings.late_between(since):
        used -= _entries(connection, below, late_usage(spans), _ENTRIES.started_at < since)
    credited = _sum(connection, usage_daily, usage_daily.c.key_id == owner.scope_id) - _sum(
        connection, balances, balances.c.key_id == owner.scope_id
    )
    credited += _entries(connection, own, _ENTRIES.kind == EntryKind.CREDIT, later)
    return Nusd(credited - used)


def _sum(connection: Connection, table: Table, *conditions: ColumnElement[bool]) -> int:
    """nUSD"""
    total = func.coalesce(nusd_sum("charged_usd", connection.dialect), 0)
    return int(connection.execute(select(total).select_from(table).where(*conditions)).scalar_one())


def _entries(connection: Connection, *conditions: ColumnElement[bool]) -> int:
    """nUSD"""
    total = func.coalesce(nusd_sum("charge_usd", connection.dialect), 0)
    return int(connection.execute(select(total).select_from(ledger_entries).where(*conditions)).scalar_one())
