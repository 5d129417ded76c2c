"""Monthly statements for customers.

Invariants:
- Opening balance − usage − adjustments + credits = closing balance, to the nano-dollar.
- The closing balance of a month is the opening balance of the next month.
- The statement of a closed month never changes: it is read from the closed form, names included.
- A closed month also keeps the seller, the customer and the terms that were configured at its closing.
- Months are closed in UTC. The statement of a month in another time zone is always provisional: closings do not move
  its usage to another month.

proxy/billing/period.py defines the entries of each statement.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from msgspec import UNSET
from sqlalchemy import ColumnElement, Connection, Engine, Table, func, literal, select, union

from proxy.billing.entries import COUNTS, EntryKind
from proxy.billing.money import ZERO_NUSD, Nusd, total_nusd
from proxy.billing.period import Closings, Month, day_of, month_of
from proxy.billing.receipt import EMPTY, digest_of
from proxy.billing.used_units import WHOLE
from proxy.billing.windows import day_start, local_day
from proxy.ledger.amounts import nusd_sum
from proxy.ledger.archive.archives import require_entries
from proxy.ledger.grants.burning import GrantPeriod, grant_periods
from proxy.ledger.periods.activity import (
    Activity,
    Booking,
    PricedLine,
    ScopeActivity,
    UsageLine,
    Usages,
    activities,
    late_usage,
    merged_lines,
)
from proxy.ledger.periods.closing import (
    NO_LETTERHEAD,
    closed_activities,
    closed_names,
    read_closings,
    read_period,
    totals_until,
)
from proxy.ledger.periods.values import ValueActivity, activity_by_value
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import balances, ledger_entries, usage_daily
from proxy.ledger.settling.spend import clock_of
from proxy.reports.amount_due import AmountDue, amount_due
from proxy.reports.dimensions import ShownDimension, ValueReader
from proxy.reports.entry_reader import CLOCKS_DIFFER_S_MAX
from proxy.reports.totals import keys_below
from proxy.settings.statement import CustomerSettings, StatementSettings
from proxy.storage.database import reading

_ENTRIES = ledger_entries.c
_SHORT_CHARS = 8
# The ids of this program; imported and default accounts have others.
_RANDOM_ID = re.compile(r"[0-9a-f]{8,}", re.ASCII)


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

    @property
    def day(self) -> date:
        """The date of issue, in UTC."""
        return day_of(self.closed_at)


@dataclass(frozen=True, slots=True)
class ByValue:
    """The usage and the adjustments of a statement by the values of a dimension, the highest charge first. They add up
    to those of the statement."""

    dimension: str
    rows: Sequence[tuple[ShownDimension | None, ValueActivity]]
    """None: the requests without the dimension"""


@dataclass(frozen=True, slots=True)
class KeyActivity:
    """The part of one key in a statement."""

    key_id: str
    name: str
    project_id: str
    """empty: unknown"""
    project: str
    """the project's name"""
    usages: Usages
    adjusted_nusd: Nusd
    prices: Sequence[PricedLine]
    """the usage by unit and price"""


@dataclass(frozen=True, slots=True)
class ProjectActivity:
    """The part of one project in a statement."""

    project_id: str
    name: str
    usages: Usages
    adjusted_nusd: Nusd


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
    keys: Sequence[KeyActivity]
    """each key with usage or adjustments; of a key's own statement, the key"""
    issued: Issued | None
    """None: the month is open, and the statement can change"""
    by_value: ByValue | None = None
    """None: not requested"""
    grants: Sequence[GrantPeriod] = ()
    """the grants of the owner itself, by the entries that were settled in the month"""
    letterhead: StatementSettings = NO_LETTERHEAD
    """the seller, the customers and the terms"""

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
    def short_number(self) -> str:
        """`2026-11-O-A11780A4`: month, kind and the beginning of the id (or of its hash), to name in a payment. Unlike
        the full number, two accounts may have the same: the chance is one in four billion."""
        end = self.owner.scope_id.rpartition("_")[2]
        if not _RANDOM_ID.fullmatch(end):
            end = hashlib.sha256(self.owner.scope_id.encode()).hexdigest()
        return f"{self.month}-{self.owner.kind[0]}-{end[:_SHORT_CHARS]}".upper()

    @property
    def due(self) -> AmountDue:
        """The amount due at the end of the month, or now if the month is not over."""
        tax = self.letterhead.tax
        charges = Nusd(self.total.charge_nusd + self.adjusted_nusd)
        return amount_due(charges, self.closing_nusd, None if tax is None else tax.percent)

    @property
    def due_on(self) -> date | None:
        """The due date; None: the month is open, or no `due_days` are configured."""
        days = self.letterhead.due_days
        return None if self.issued is None or days is None else self.issued.day + timedelta(days=days)

    @property
    def customer(self) -> CustomerSettings:
        """The owner among the configured customers."""
        return self.letterhead.customer(self.owner.scope_id, self.owner.name)

    @property
    def prices(self) -> list[PricedLine]:
        """The usage by model, unit and price."""
        return merged_lines(line for key in self.keys for line in key.prices)

    @property
    def projects(self) -> list[ProjectActivity]:
        """The parts of the projects of an organization, by name; empty for other owners."""
        found: dict[str, ProjectActivity] = {}
        for key in self.keys if self.owner.kind == "organization" else ():
            one = found.get(key.project_id) or ProjectActivity(key.project_id, key.project, Usages(), ZERO_NUSD)
            one.usages.add_all(key.usages)
            found[key.project_id] = replace(one, adjusted_nusd=Nusd(one.adjusted_nusd + key.adjusted_nusd))
        return sorted(found.values(), key=lambda one: (one.name, one.project_id))

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


def read_statement(
    engine: Engine,
    owner: StatementOwner,
    month: Month,
    by: str | None = None,
    letterhead: StatementSettings = NO_LETTERHEAD,
) -> Statement:
    """Reads a statement in one transaction. `by`: a dimension. `letterhead`: of a month that is open, or was closed
    without one. Raises LedgerUnavailable; ValueError if `by`, or the month's time zone, needs archived entries.

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
        if period is not None and period.letterhead is not None:
            letterhead = replace(period.letterhead, logo=letterhead.logo)
        grants = grant_periods(connection, owner.scope_id, month.since, month.until)
        statement = replace(statement, grants=grants, letterhead=letterhead)
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
    projects = _projects(connection, owner, None)
    as_of = clock_of(connection) / 1e6
    return _merged(owner, month, found, projects, opening_nusd=opening_nusd, as_of=as_of, issued=None)


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
    projects = _projects(connection, owner, month)
    statement = _merged(whose, month, found, projects, opening_nusd=Nusd(0), as_of=closed_at, issued=issued)
    return replace(statement, opening_nusd=Nusd(closing_nusd - statement.closing_nusd))


def scopes_of(owner: StatementOwner) -> Any:
    """Selects the ids whose entries are on the owner's statements: the owner, and the keys below it."""
    return union(keys_below(owner.scope_id), select(literal(owner.scope_id)))


def _merged(
    owner: StatementOwner,
    month: Month,
    found: Iterable[ScopeActivity],
    projects: Mapping[str, tuple[str, str]],
    *,
    opening_nusd: Nusd,
    as_of: float,
    issued: Issued | None,
) -> Statement:
    """Sum the owner's activity and that of the keys below it. Credits of those keys are not credits of the owner.
    `projects`: key id → id and name of its project."""
    lines: dict[tuple[date, str], Usages] = {}
    keys: list[KeyActivity] = []
    adjustments: list[Booking] = []
    credited: list[Booking] = []
    for one in found:
        of_scope = Usages()
        for line in one.activity.lines:
            of_scope.add_all(line.usages)
            lines.setdefault((line.day, line.model), Usages()).add_all(line.usages)
        if one.activity.lines or one.activity.adjustments:
            adjusted_nusd = total_nusd(booking.nusd for booking in one.activity.adjustments)
            of_project = projects.get(one.scope_id, ("", ""))
            keys.append(
                KeyActivity(one.scope_id, one.name, *of_project, of_scope, adjusted_nusd, _prices(one.activity))
            )
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
        keys=sorted(keys, key=lambda one: (one.project, one.name, one.key_id)),
        issued=issued,
    )


def _prices(activity: Activity) -> Sequence[PricedLine]:
    """The usage by price; of a month that was closed by a version without prices, by model."""
    if activity.prices is not UNSET:
        return activity.prices
    lines = (
        PricedLine(line.model, "", WHOLE, None, line.day, line.day, line.usages.requests, line.usages.charge_nusd)
        for line in activity.lines
        if line.usages.charge_nusd
    )
    return merged_lines(lines)


def _projects(connection: Connection, owner: StatementOwner, month: Month | None) -> dict[str, tuple[str, str]]:
    """Id of each key of the owner → id and name of its project; `month`: a closed month, whose names apply."""
    keys = select(api_keys.c.key_id, api_keys.c.project_id, accounts.c.name).where(
        api_keys.c.key_id.in_(keys_below(owner.scope_id)), accounts.c.account_id == api_keys.c.project_id
    )
    names: dict[str, str] = {}
    if month is not None:
        of_keys = select(api_keys.c.project_id).where(api_keys.c.key_id.in_(keys_below(owner.scope_id)))
        names = closed_names(connection, month, of_keys)
    return {key_id: (project_id, names.get(project_id, name)) for key_id, project_id, name in connection.execute(keys)}


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
