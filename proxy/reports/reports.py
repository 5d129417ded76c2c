"""What people ask the ledger. Law: reports only read; whoever follows the ledger sees every entry once.

Entries come in the order in which they were settled. A reader fetches page after page, so no read transaction stays
open for longer than a page: a slow terminal must not keep SQLite's log from being tidied up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, Table, func, or_, select, tuple_
from sqlalchemy.sql import operators

from proxy.billing.entries import ENTRY_FIELDS, LedgerEntry
from proxy.billing.money import usd_text
from proxy.foundation.durations import seconds_from
from proxy.ledger.amounts import nusd_sum
from proxy.ledger.schema.tables import accounts, api_keys, balances, ledger_entries, usage_daily
from proxy.storage.database import reading

# About 1 MB of rows in memory at a time, and a few milliseconds per page.
PAGE_ENTRIES = 500

# An entry is settled after its exchange began; clocks of several machines may differ by less than this.
_CLOCKS_DIFFER_S_MAX = 86_400


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which entries: those that meet every condition that is not None."""

    key_alias: str | None = None
    model: str | None = None
    """the name the client asked for"""
    since: float | None = None
    """begun at or after this; Unix seconds, UTC"""
    until: float | None = None
    """begun before this"""
    key_ids: tuple[str, ...] | None = None
    settled_by: float | None = None
    """settled at or before this: up to the ledger's clock, nothing is missing and nothing more comes"""


@dataclass(frozen=True, slots=True)
class Balance:
    """The sum of a key's entries, top-ups included (which are charges below 0); of an account, whose usage is that of
    its keys, the sum of its top-ups. Money: nUSD. Tokens: those that somebody reported or estimated."""

    key_id: str
    charged_usd: int
    cost_usd: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    total_tokens: int
    entries: int


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """The sum of a key's entries for one model that began on one day (UTC). Money: nUSD."""

    day: date
    key_id: str
    model: str
    charged_usd: int
    cost_usd: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    total_tokens: int
    entries: int


@dataclass(frozen=True, slots=True)
class SpendAndCredit:
    """What a key, a project or an organization has used and paid in, ever. Money: nUSD."""

    used_usd: int
    """charged to it, or to the keys below it"""
    credit_usd: int
    """paid in for it itself, less what was paid out"""

    @property
    def left_usd(self) -> int:
        """What is left of what was paid in; negative: more was used."""
        return self.credit_usd - self.used_usd


class EntryReader:
    """Reads the ledger from its beginning; asked again later, goes on where it stopped."""

    def __init__(self, engine: Engine, wanted: EntryFilter, after: tuple[float, str] | None = None) -> None:
        """`after`: settled_at and entry_id of an entry that a reader gave; those that follow it are read."""
        self._engine = engine
        self._query = _filtered(wanted)
        begin = 0.0 if wanted.since is None else max(0.0, wanted.since - _CLOCKS_DIFFER_S_MAX)
        self._after = (begin, "") if after is None else after
        """settled_at and entry_id of the last one read. settled_at rises with every settling transaction, so nothing
        can come in behind this."""

    def new_entries(self) -> Iterator[LedgerEntry]:
        """Every entry not read yet. Raises LedgerUnavailable."""
        return (entry for entry, _ in self.settled())

    def settled(self) -> Iterator[tuple[LedgerEntry, float]]:
        """The same, and when each was settled. Raises LedgerUnavailable."""
        while page := self._page():
            for row in page:
                self._after = (row.settled_at, row.entry_id)
                yield _entry(row), row.settled_at

    def page(self) -> list[tuple[LedgerEntry, float]]:
        """The next PAGE_ENTRIES of them, or fewer; again: the same. Raises LedgerUnavailable."""
        return [(_entry(row), row.settled_at) for row in self._page()]

    def _page(self) -> list[Row[Any]]:
        cursor = tuple_(ledger_entries.c.settled_at, ledger_entries.c.entry_id)
        with reading(self._engine) as connection:
            return list(connection.execute(self._query.where(cursor > self._after)))


def _entry(row: Row[Any]) -> LedgerEntry:
    return LedgerEntry(**dict(zip(ENTRY_FIELDS, row, strict=False)))


def count_entries(engine: Engine, wanted: EntryFilter) -> int:
    """How many a reader will give. All of them are looked at: ten million take seconds.

    Raises LedgerUnavailable.
    """
    with reading(engine) as connection:
        return connection.execute(select(func.count()).select_from(_wanted(select(1), wanted).subquery())).scalar_one()


def entry_json(entry: LedgerEntry) -> dict[str, Any]:
    """An entry as it is printed: the 29 public fields in their order; money as decimal strings of USD, time in UTC."""
    shown = {name: getattr(entry, name) for name in ENTRY_FIELDS if name != "seq"}
    for name in ("cost_usd", "charge_usd"):
        shown[name] = None if shown[name] is None else usd_text(shown[name])
    shown["started_at"] = iso_utc(entry.started_at)
    return shown


def read_balances(engine: Engine) -> list[Balance]:
    """Every key that has an entry, in the order of key ids. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return [Balance(*row) for row in connection.execute(select(balances).order_by(balances.c.key_id))]


def read_paid(engine: Engine, scope_ids: Collection[str]) -> dict[str, SpendAndCredit]:
    """What each of these keys and accounts (a page of them) has used and paid in. Raises LedgerUnavailable.

    Its cost grows with keys, days and models, not with the number of entries.
    """
    ids = sorted(scope_ids)
    used = dict.fromkeys(ids, 0)
    with reading(engine) as connection:
        levels = [tuple(row) for row in connection.execute(_levels(ids))]
        charged = _charged(connection, usage_daily, _levels(ids).with_only_columns(api_keys.c.key_id))
        itself = _charged(connection, usage_daily, ids)
        balance = _charged(connection, balances, ids)
    for level in levels:
        for scope_id in used.keys() & set(level):
            used[scope_id] += charged.get(level[0], 0)
    return {one: SpendAndCredit(used[one], itself.get(one, 0) - balance.get(one, 0)) for one in ids}


def keys_below(scope_id: str) -> Select[Any]:
    """The ids of the keys of an organization or project; of a key, its own."""
    projects = select(accounts.c.account_id).where(accounts.c.parent_id == scope_id)
    columns = api_keys.c
    of_it = or_(columns.key_id == scope_id, columns.project_id == scope_id, columns.project_id.in_(projects))
    return select(columns.key_id).where(of_it)


def _levels(scope_ids: Collection[str]) -> Select[Any]:
    """Every key that is one of these or below one of them, its project and its organization."""
    key, project = api_keys.c, accounts.c
    found = or_(key.key_id.in_(scope_ids), key.project_id.in_(scope_ids), project.parent_id.in_(scope_ids))
    query = select(key.key_id, key.project_id, project.parent_id)
    return query.select_from(api_keys.outerjoin(accounts, project.account_id == key.project_id)).where(found)


def _charged(connection: Connection, table: Table, ids: Any) -> dict[str, int]:
    """The sum of a table of sums for each of these ids that is in it; nUSD."""
    query = select(table.c.key_id, nusd_sum("charged_usd", connection.dialect)).group_by(table.c.key_id)
    return {row[0]: int(row[1]) for row in connection.execute(query.where(table.c.key_id.in_(ids)))}


def read_daily(engine: Engine, first: date, last: date, *, key_id: str | None = None) -> list[DailyUsage]:
    """Usage of the days `first` to `last`, by day, key and model, in this order. Raises LedgerUnavailable.

    Its cost grows with what it returns, not with the number of entries.
    """
    columns = usage_daily.c
    query = select(usage_daily).where(columns.day.between(first, last))
    if key_id is not None:
        query = query.where(columns.key_id == key_id)
    with reading(engine) as connection:
        rows = connection.execute(query.order_by(columns.day, columns.key_id, columns.model))
        return [DailyUsage(*row) for row in rows]


def iso_utc(unix_s: float) -> str:
    """Unix seconds → "2026-11-01T12:00:00.000000Z"."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def since_from(text: str, now: float) -> float:
    """`--since`: "90m", "24h", "7d" (before `now`), "2026-11-01" or an ISO time (UTC unless it says otherwise) →
    Unix seconds. Raises ValueError, saying what was expected."""
    if text.endswith(("s", "m", "h", "d", "w")):
        return now - seconds_from(text)
    moment = _iso_time(text)
    if moment is None or not 1970 <= moment.year < 9999:  # the years that every clock and database can name
        raise ValueError(f"not a time: {text!r} (2026-11-01, 2026-11-01T12:00:00Z, 90m, 24h, 7d)")
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _iso_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _filtered(wanted: EntryFilter) -> Select[Any]:
    columns = ledger_entries.c
    query = _wanted(select(*(columns[name] for name in ENTRY_FIELDS), columns.settled_at), wanted)
    return query.order_by(columns.settled_at, columns.entry_id).limit(PAGE_ENTRIES)


def _wanted(query: Select[Any], wanted: EntryFilter) -> Select[Any]:
    columns = ledger_entries.c
    conditions = (
        (operators.eq, columns.key_alias, wanted.key_alias),
        (operators.eq, columns.model, wanted.model),
        (operators.ge, columns.started_at, wanted.since),
        (operators.lt, columns.started_at, wanted.until),
        (operators.in_op, columns.key_id, wanted.key_ids),
        (operators.le, columns.settled_at, wanted.settled_by),
    )
    met = (column.operate(operator, value) for operator, column, value in conditions if value is not None)
    return query.select_from(ledger_entries).where(*met)
