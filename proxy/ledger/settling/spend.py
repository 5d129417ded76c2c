"""What gates count, as the ledger has it: sums for a gate that is new, changes for those who follow.

Law: an answer is one read transaction, and says up to which of the ledger's times it is complete. A sum is what its
changes add up to, to the nano-dollar and to the microsecond. Sums come from those that the ledger keeps; entries are
added up only for the part of a day on which a window begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import date, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Dialect, Engine, Select, Table, bindparam, func, select

from proxy.billing.entries import EntryKind
from proxy.billing.keys import AccountKind
from proxy.billing.limits import credit_counter_id
from proxy.billing.reservation import SpendDelta, SpendTotal
from proxy.ledger.amounts import nusd, nusd_sum
from proxy.ledger.schema.tables import (
    accounts,
    api_keys,
    balances,
    dead_letters,
    ledger_clock,
    ledger_entries,
    usage_daily,
)
from proxy.ledger.settling.settling import DROPPED
from proxy.storage.database import LedgerUnavailable, reading

# Ids in one statement: well below what either database takes.
IDS_MAX = 1_000

_ENTRIES = ledger_entries.c
_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)
_TWIN = credit_counter_id("")
_KEY = "key"
# What is asked of a scope.
_DAYS, _PART_AND_DAYS, _LESS_CREDIT = "whole days", "part of a day, and whole days", "ever, less credit"


def ledger_time(engine: Engine) -> int:
    """Up to when everything is settled: the ledger's clock in µs; 0: nothing ever was. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return clock_of(connection)


def sums(engine: Engine, wants: Sequence[tuple[str, float]]) -> list[SpendTotal]:
    """What was spent at each of these gates since then (Unix seconds), all at one moment. Raises LedgerUnavailable.

    A gate is the id of a key, a project or an organization; or `credit_counter_id` of that: all that was ever spent
    there, less what was paid in under this very id. What nobody knows has spent nothing.
    """
    with reading(engine) as connection:
        as_of_us = clock_of(connection)
        kinds = _kinds(connection, {scope_of(gate_id) for gate_id, _ in wants})
        return [
            SpendTotal(gate_id, since, _spent(connection, kinds.get(scope_of(gate_id), _KEY), gate_id, since), as_of_us)
            for gate_id, since in wants
        ]


def changes(engine: Engine, after_us: int, limit: int) -> tuple[list[SpendDelta], int, int]:
    """What was settled after `after_us`, in the order in which it was, and about `limit` entries at most: settling
    transactions are never cut. → the entries; up to when that is all of them; the ledger's clock. Times in µs.

    Raises LedgerUnavailable. A clock that is before `after_us` is that of a ledger which was put back.
    """
    with reading(engine) as connection:
        until_us = clock_us = clock_of(connection)
        every = _entries(connection.dialect)
        rows = connection.execute(every.where(_ENTRIES.settled_at > after_us / 1e6).limit(limit + 1)).all()
        if len(rows) > limit:
            last = rows[-1].settled_at
            if last == rows[0].settled_at:
                rows = connection.execute(every.where(_ENTRIES.settled_at == last)).all()
            else:
                rows = [row for row in rows if row.settled_at < last]
            until_us = _us(rows[-1].settled_at)
        gates = _gates(connection, {row.key_id for row in rows})
    found = [
        # What nobody can price is free.
        SpendDelta(exchange_id, _us(settled_at), started_at, int(money or 0), gates[key_id][kind == EntryKind.CREDIT])
        for exchange_id, kind, key_id, settled_at, started_at, money in rows
    ]
    return found, until_us, clock_us


def settled(engine: Engine, exchange_ids: Collection[str], until_us: int | None = None) -> set[str]:
    """Those that have a terminal entry, settled at or before `until_us` (None: ever), and those that never will: their
    records are dead letters that somebody has dropped. Raises LedgerUnavailable."""
    query = select(_ENTRIES.exchange_id).where(
        _ENTRIES.exchange_id.in_(bindparam("ids", expanding=True)), _ENTRIES.kind == EntryKind.USAGE
    )
    if until_us is not None:
        query = query.where(_ENTRIES.settled_at <= until_us / 1e6)
    dropped = select(dead_letters.c.exchange_id).where(
        dead_letters.c.exchange_id.in_(bindparam("ids", expanding=True)), dead_letters.c.state == DROPPED
    )
    with reading(engine) as connection:
        return {
            one
            for ids in batches(exchange_ids, IDS_MAX)
            for asked in (query, dropped)
            for one in connection.execute(asked, {"ids": ids}).scalars()
        }


def scope_of(gate_id: str) -> str:
    """The id of the key or account that it is a gate of."""
    return gate_id.removesuffix(_TWIN)


def batches(ids: Collection[str], size_max: int) -> Iterator[list[str]]:
    """All of them, so many at a time."""
    rest = iter(ids)
    while batch := list(islice(rest, size_max)):
        yield batch


# -- times


def clock_of(connection: Connection) -> int:
    """The ledger's clock, in µs; 0: nothing was ever settled. Raises LedgerUnavailable."""
    found = connection.execute(select(ledger_clock.c.settled_at)).scalar()
    if found is None:
        raise LedgerUnavailable("the ledger's clock (the row of ledger_clock) is gone: restored in part?")
    return _us(found)


def _us(unix_s: float) -> int:
    """Unix seconds → µs. Exact for what a database keeps: floats lie 0.2 µs apart in this century."""
    return round(unix_s * 1e6)


def _first_us(since: float) -> int:
    """The first µs that is not before `since` where both are floats: so the stores compare them."""
    at_us = _us(since) - 1
    while at_us / 1e6 < since:
        at_us += 1
    return max(0, at_us)


# -- sums


def _kinds(connection: Connection, scope_ids: Collection[str]) -> dict[str, str]:
    """Account → its kind. What is not there is a key."""
    query = select(accounts.c.account_id, accounts.c.kind).where(
        accounts.c.account_id.in_(bindparam("ids", expanding=True))
    )
    rows = (row for ids in batches(scope_ids, IDS_MAX) for row in connection.execute(query, {"ids": ids}))
    return {row.account_id: row.kind for row in rows}


def _spent(connection: Connection, kind: str, gate_id: str, since: float) -> int:
    """nUSD."""
    scope_id = scope_of(gate_id)
    asked: dict[str, Any] = {"id": scope_id}
    if scope_id != gate_id:
        what = _LESS_CREDIT
    else:
        since_us = _first_us(since)
        days, part_us = divmod(since_us, _DAY_US)
        what = _PART_AND_DAYS if part_us else _DAYS
        asked["day"] = _EPOCH + timedelta(days=days + bool(part_us))
        if part_us:
            asked |= {"since": since_us / 1e6, "until": (days + 1) * _DAY_US / 1e6}
    return int(connection.execute(_sum(kind, what, connection.dialect), asked).scalar_one())


@lru_cache(maxsize=32)
def _sum(kind: str, what: str, dialect: Dialect) -> Select[Any]:
    """nUSD of `:id`, which is of this kind: in the part of a day from `:since` to `:until`, and in days from `:day`."""
    of_days, of_entries = _of(kind, usage_daily.c.key_id), _of(kind, _ENTRIES.key_id)
    if what == _LESS_CREDIT:
        own = _total(balances, "charged_usd", dialect, balances.c.key_id == bindparam("id"))
        # A key's balance is just that; an account's is what was paid in, and nothing else.
        return select(own if kind == _KEY else own + _total(usage_daily, "charged_usd", dialect, of_days))
    total = _total(usage_daily, "charged_usd", dialect, of_days, usage_daily.c.day >= bindparam("day"))
    if what == _PART_AND_DAYS:
        began = _ENTRIES.started_at
        part = began >= bindparam("since"), began < bindparam("until"), _ENTRIES.kind != EntryKind.CREDIT
        total += _total(ledger_entries, "charge_usd", dialect, of_entries, *part)
    return select(total)


def _of(kind: str, key_id: ColumnElement[str]) -> ColumnElement[bool]:
    """That a key is `:id`, or is in it."""
    wanted = bindparam("id", type_=key_id.type)
    if kind == _KEY:
        return key_id == wanted
    if kind == AccountKind.PROJECT:
        return key_id.in_(select(api_keys.c.key_id).where(api_keys.c.project_id == wanted))
    projects = select(accounts.c.account_id).where(accounts.c.parent_id == wanted)
    return key_id.in_(select(api_keys.c.key_id).where(api_keys.c.project_id.in_(projects)))


def _total(table: Table, column: str, dialect: Dialect, *conditions: ColumnElement[bool]) -> ColumnElement[Any]:
    """nUSD, a whole number."""
    found = select(nusd_sum(column, dialect)).select_from(table).where(*conditions)
    return func.coalesce(found.scalar_subquery(), 0)


# -- changes


def _entries(dialect: Dialect) -> Select[Any]:
    """What a change is made of, in the order of settling. What was asked in vain changes nothing."""
    columns = (_ENTRIES.exchange_id, _ENTRIES.kind, _ENTRIES.key_id, _ENTRIES.settled_at, _ENTRIES.started_at)
    money = nusd("charge_usd", dialect).label("nusd")
    found = select(*columns, money).where(_ENTRIES.kind != EntryKind.ATTEMPT)
    return found.order_by(_ENTRIES.settled_at, _ENTRIES.entry_id)


_ABOVE = (
    select(api_keys.c.key_id, api_keys.c.project_id, accounts.c.parent_id)
    .select_from(api_keys.outerjoin(accounts, accounts.c.account_id == api_keys.c.project_id))
    .where(api_keys.c.key_id.in_(bindparam("ids", expanding=True)))
)


def _gates(connection: Connection, key_ids: Collection[str]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Key, or account that was paid for → where its charges count, and where what was paid does."""
    rows = (row for ids in batches(key_ids, IDS_MAX) for row in connection.execute(_ABOVE, {"ids": ids}))
    above = {key_id: (project_id, organization_id) for key_id, project_id, organization_id in rows}
    return {key_id: (_charged(key_id, *above.get(key_id, ())), (credit_counter_id(key_id),)) for key_id in key_ids}


def _charged(key_id: str, *above: str | None) -> tuple[str, ...]:
    scopes = [one for one in (key_id, *above) if one is not None]
    return (*scopes, *map(credit_counter_id, scopes))
