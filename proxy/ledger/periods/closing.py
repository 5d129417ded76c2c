"""Closing of months, and their closed form: the stored statements.

Invariants: months are closed in their order, after their end, and never opened again. The closing itself is a moment of
the ledger's clock; the closed form is made afterwards from entries that cannot change any more, in batches, while
settling continues. After an interruption, `issue` starts again and stores the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Engine, Select, func, select, tuple_, update

from proxy.billing.money import Nusd
from proxy.billing.period import Closing, Closings, Month, month_from, month_of
from proxy.billing.receipt import EMPTY, digest_of
from proxy.foundation.times import iso_utc
from proxy.ledger.periods.activity import Activity, ScopeActivity, activities
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import ledger_entries, periods, scope_months, usage_daily
from proxy.ledger.settling.spend import batches, clock_of
from proxy.ledger.settling.store import LedgerStore
from proxy.settings.statement import StatementSettings
from proxy.storage.database import Lock, hold, reading, writing

NO_LETTERHEAD = StatementSettings()

# Rows of one transaction: a fraction of a second, in which SQLite settles nothing.
BATCH_SCOPES = 200

_PERIODS, _MONTHS = periods.c, scope_months.c


class PeriodError(ValueError):
    """A month that cannot be closed; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class Period:
    """A closed month. Times: Unix seconds."""

    month: Month
    closed_at: float
    closed_by: str
    left_behind: Sequence[Mapping[str, Any]]
    """records that were not settled at the closing"""
    issued_at: float | None
    """None: the closed form is not complete"""
    entries: int | None
    digest: str | None
    """digest over all statements of the month, hexadecimal"""
    letterhead: StatementSettings | None
    """the seller, the customers and the terms at the closing; None: there were none"""


def read_periods(connection: Connection) -> list[Period]:
    """All closed months, in order."""
    return [_period(row) for row in connection.execute(select(periods).order_by(_PERIODS.month))]


def read_period(connection: Connection, month: Month) -> Period | None:
    """One closed month; None: the month is open, or before the ledger's first entry."""
    row = connection.execute(select(periods).where(_PERIODS.month == str(month))).one_or_none()
    return None if row is None else _period(row)


def _period(row: Any) -> Period:
    letterhead = None if row.letterhead is None else msgspec.convert(row.letterhead, StatementSettings)
    stored = {"month": month_from(row.month), "left_behind": row.left_behind or (), "letterhead": letterhead}
    return Period(**{**row._asdict(), **stored})


def read_closings(connection: Connection) -> Closings:
    """The closings of the ledger."""
    rows = connection.execute(select(_PERIODS.month, _PERIODS.closed_at))
    return Closings(Closing(month_from(row.month), row.closed_at) for row in rows)


def require_over(month: Month, now: float) -> None:
    """Raise PeriodError for a month that is not over at `now` (Unix seconds)."""
    if now < month.until:
        raise PeriodError(f"{month}: is not over: it can be closed from {iso_utc(month.until)[:10]} on")


def close(
    store: LedgerStore,
    month: Month,
    *,
    by: str,
    left_behind: Sequence[Mapping[str, Any]] = (),
    letterhead: StatementSettings = NO_LETTERHEAD,
) -> list[Month]:
    """Close a month and all open months before it; returns the newly closed ones. Later settlements count as late.
    Statements of these months keep the letterhead.

    Raises PeriodError if the month is not over; LedgerUnavailable.
    """
    with store.settling() as settling:
        require_over(month, settling.now)
        connection = settling.connection
        months = open_until(connection, month)
        kept = None if letterhead.kept == NO_LETTERHEAD else msgspec.to_builtins(letterhead.kept)
        row = {
            "closed_at": settling.now, "closed_by": by, "left_behind": list(left_behind) or None, "letterhead": kept
        }  # fmt: skip
        if months:
            connection.execute(periods.insert(), [{"month": str(one), **row} for one in months])
        return months


def open_until(connection: Connection, month: Month) -> list[Month]:
    """The open months up to `month`, in order: those that its closing closes. Empty if it is closed."""
    last = read_closings(connection).last
    one = _first_month(connection, month) if last is None else last.next
    months = []
    while one <= month:
        months.append(one)
        one = one.next
    return months


def _first_month(connection: Connection, month: Month) -> Month:
    """The month of the first entry, or `month` if that is earlier or there is no entry."""
    day = connection.execute(select(func.min(usage_daily.c.day))).scalar_one()
    settled_at = connection.execute(select(func.min(ledger_entries.c.settled_at))).scalar_one()
    of_usage = month if day is None else month_from(f"{day:%Y-%m}")
    return min(month, of_usage, month if settled_at is None else month_of(settled_at))


def issue(engine: Engine, month: Month) -> None:
    """Make the closed form of a closed month, after those of the months before. Raises LedgerUnavailable.

    Takes about 100 µs per entry; memory does not grow with the number of entries.
    """
    with reading(engine) as snapshot:
        closings = read_closings(snapshot)
        _store_all(engine, month, activities(snapshot, month, closings))
    with reading(engine) as snapshot:
        _store_all(engine, month, iter(_accounts(snapshot, month)))
    with writing(engine) as connection:
        entries = select(func.coalesce(func.sum(_MONTHS.entries), 0)).where(_MONTHS.month == str(month))
        connection.execute(
            update(periods)
            .where(_PERIODS.month == str(month), _PERIODS.issued_at.is_(None))
            .values(
                issued_at=clock_of(connection) / 1e6,
                entries=int(connection.execute(entries).scalar_one()),
                digest=digest_of(month_digests(connection, month)),
            )
        )


def issue_all(engine: Engine) -> list[Month]:
    """Complete all closed forms; returns the months completed by this call. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        months = [one.month for one in read_periods(connection) if one.issued_at is None]
    for month in months:
        issue(engine, month)
    return months


def _accounts(connection: Connection, month: Month) -> list[ScopeActivity]:
    """Accounts that have no entry under their own id; the closed form contains their names too."""
    with_entries = select(_MONTHS.scope_id).where(_MONTHS.month == str(month))
    rows = connection.execute(
        select(accounts.c.account_id, accounts.c.name).where(accounts.c.account_id.not_in(with_entries))
    )
    return [ScopeActivity(row.account_id, row.name, Activity(), 0, EMPTY) for row in rows]


def _store_all(engine: Engine, month: Month, found: Iterator[ScopeActivity]) -> None:
    """Store the activities that are not stored yet. Processes that do so at the same time store equal rows."""
    for batch in batches(found, BATCH_SCOPES):
        with writing(engine) as connection:
            hold(connection, Lock.PERIODS)
            there = {one.scope_id for one in closed_activities(connection, month, [one.scope_id for one in batch])}
            if new := [one for one in batch if one.scope_id not in there]:
                connection.execute(scope_months.insert(), _rows(connection, month, new))


def _rows(connection: Connection, month: Month, found: Sequence[ScopeActivity]) -> list[dict[str, Any]]:
    ids = [one.scope_id for one in found]
    names, before = _names(connection, ids), totals_until(connection, month, ids)
    nothing = Totals(Nusd(0), Nusd(0))
    return [
        {
            "scope_id": one.scope_id,
            "month": str(month),
            "name": names.get(one.scope_id, one.name),
            "entries": one.entries,
            "digest": one.digest,
            "charged_nusd": before.get(one.scope_id, nothing).charged_nusd + one.activity.charged_nusd,
            "credited_nusd": before.get(one.scope_id, nothing).credited_nusd + one.activity.credited_nusd,
            "content": one.activity,
        }
        for one in found
    ]


def _names(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    keys = select(api_keys.c.key_id, api_keys.c.alias).where(api_keys.c.key_id.in_(ids))
    above = select(accounts.c.account_id, accounts.c.name).where(accounts.c.account_id.in_(ids))
    return {scope_id: name for query in (keys, above) for scope_id, name in connection.execute(query)}


def month_digests(connection: Connection, month: Month) -> dict[str, str]:
    """The digest of every key and account with entries on a closed month's statements, by id."""
    query = select(_MONTHS.scope_id, _MONTHS.digest).where(_MONTHS.month == str(month), _MONTHS.entries > 0)
    return {row.scope_id: row.digest for row in connection.execute(query)}


class Totals(NamedTuple):
    """Totals of a key or account since its first month. Money: nUSD."""

    charged_nusd: Nusd
    credited_nusd: Nusd


def totals_until(connection: Connection, month: Month, ids: Sequence[str] | Select[Any]) -> dict[str, Totals]:
    """The totals of these keys and accounts up to the end of a closed month. Those without entries are left out."""
    last = (
        select(_MONTHS.scope_id, func.max(_MONTHS.month))
        .where(_MONTHS.scope_id.in_(ids), _MONTHS.month <= str(month))
        .group_by(_MONTHS.scope_id)
    )
    found = connection.execute(
        select(_MONTHS.scope_id, _MONTHS.charged_nusd, _MONTHS.credited_nusd).where(
            tuple_(_MONTHS.scope_id, _MONTHS.month).in_(last)
        )
    )
    return {row.scope_id: Totals(row.charged_nusd, row.credited_nusd) for row in found}


def closed_activities(connection: Connection, month: Month, ids: Iterable[str] | Select[Any]) -> list[ScopeActivity]:
    """The closed form of these keys and accounts, ordered by id."""
    rows = connection.execute(
        select(scope_months).where(_MONTHS.month == str(month), _MONTHS.scope_id.in_(ids)).order_by(_MONTHS.scope_id)
    )
    return [
        ScopeActivity(row.scope_id, row.name, msgspec.convert(row.content, Activity), row.entries, row.digest)
        for row in rows
    ]


def closed_names(connection: Connection, month: Month, ids: Select[Any]) -> dict[str, str]:
    """The names of these keys and accounts in the closed form, by id."""
    query = select(_MONTHS.scope_id, _MONTHS.name).where(_MONTHS.month == str(month), _MONTHS.scope_id.in_(ids))
    return {row.scope_id: row.name for row in connection.execute(query)}
