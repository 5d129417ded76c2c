"""Spend from the ledger for limit counters: totals to seed a counter, changes to follow.

Invariants: a result comes from one read transaction, and states the ledger time up to which it is complete; a total
equals the sum of its changes, to the nano-dollar and the microsecond. Totals are read from the ledger's sums; entries
are summed only for the part of the day in which a window begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import lru_cache
from itertools import islice, repeat
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Dialect, Engine, Select, Table, bindparam, func, select

from proxy.billing.dimensions import OVERFLOW
from proxy.billing.entries import EntryKind
from proxy.billing.limit_rules import CLIENT_RULES, LimitRule, rule_of
from proxy.billing.limits import credit_counter_id, scope_of
from proxy.billing.reservation import SpendDelta, SpendTotal
from proxy.ledger.amounts import nusd, nusd_sum
from proxy.ledger.limit_rules import read_rules, rules_with_ids
from proxy.ledger.run_caps import has_caps
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import (
    account_clock,
    account_daily,
    balances,
    dead_letters,
    dimension_clock,
    ledger_entries,
    usage_daily,
)
from proxy.ledger.settling.clock import settled_until
from proxy.ledger.settling.rule_spend import (
    DIMENSIONS,
    TOKENS_OF,
    CountedAt,
    Window,
    has_key_of,
    is_by_dimension,
    rule_counters,
    rule_sum,
)
from proxy.ledger.settling.settling import DROPPED
from proxy.ledger.settling.sum_clocks import added_until
from proxy.storage.database import reading

# Ids per statement: well below the limits of both databases.
IDS_MAX = 1_000

_T = TypeVar("_T")

_ENTRIES = ledger_entries.c
_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)
_KEY = "key"
# The kinds of totals.
_DAYS, _PART_AND_DAYS, _LESS_CREDIT = "whole days", "part of a day, and whole days", "ever, less credit"


def ledger_time(engine: Engine) -> int:
    """The ledger's time in µs: no entry will be settled before it; 0: the ledger is empty. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return clock_of(connection)


def sums(engine: Engine, counters: Sequence[tuple[str, float]]) -> list[SpendTotal]:
    """The spend of each (counter id, since in Unix seconds), all from one snapshot. Raises LedgerUnavailable.

    A counter's id is that of a key, a project or an organization; or `credit_counter_id` of it: the total spend there
    minus the credit added under this id; or that of a limit rule, or of one of its quotas. An unknown id has spent
    nothing.
    """
    with reading(engine) as connection:
        as_of_us = clock_of(connection)
        rules = rules_with_ids(connection, {rule for one, _ in counters if (rule := rule_of(one)) is not None})
        of_rules = _RuleTotals(connection, rules)
        # A shard may be ahead of the ledger's time: its entries come as changes, and do not count here.
        early = _deltas_where(connection, _ENTRIES.settled_at > as_of_us / 1e6, list(rules.values()))
        kinds = _kinds(connection, {scope_of(counter_id) for counter_id, _ in counters})
        added = added_until(connection, account_clock)

        def spent(counter_id: str, since: float) -> int:
            rule = rules.get(rule_of(counter_id) or "")
            if rule is not None:
                return of_rules.spent(rule, counter_id, since)
            return _spent(connection, kinds.get(scope_of(counter_id), _KEY), counter_id, since, added)

        return [
            SpendTotal(counter_id, since, spent(counter_id, since) - _part(early, counter_id, since), as_of_us)
            for counter_id, since in counters
        ]


def changes(engine: Engine, after_us: int, limit: int) -> tuple[list[SpendDelta], int, int]:
    """About `limit` entries settled after `after_us`, in the order of settling; a settling transaction is never split.
    Returns the changes, the time up to which they are complete, and the ledger's clock. Times in µs.

    Raises LedgerUnavailable. A clock before `after_us` means that the ledger was restored from a backup.
    """
    with reading(engine) as connection:
        until_us = clock_us = clock_of(connection)
        rules = [*read_rules(connection), *(CLIENT_RULES.values() if has_caps(connection) else ())]
        every = _entries(connection.dialect, rules).where(_ENTRIES.settled_at <= clock_us / 1e6)
        rows = connection.execute(every.where(_ENTRIES.settled_at > after_us / 1e6).limit(limit + 1)).all()
        if len(rows) > limit:
            last = rows[-1].settled_at
            if last == rows[0].settled_at:
                rows = connection.execute(every.where(_ENTRIES.settled_at == last)).all()
            else:
                rows = [row for row in rows if row.settled_at < last]
            until_us = _us(rows[-1].settled_at)
        return _deltas(connection, rows, rules), until_us, clock_us


def watched(engine: Engine, counter_ids: Collection[str] | None, now: float) -> list[tuple[str, float]]:
    """(Counter id, start of the window that contains `now`, Unix seconds) of the counters among these whose rules only
    alert. None: one counter for each such rule. Raises LedgerUnavailable."""
    of_rules = {one: rule_id for one in counter_ids or () if (rule_id := rule_of(one)) is not None}
    if counter_ids is not None and not of_rules:
        return []
    with reading(engine) as connection:
        rules = {one.rule_id: one for one in read_rules(connection) if one.limits.alert_only}
    if counter_ids is None:
        of_rules = {"/".join((one, *_unnamed(rule))): one for one, rule in rules.items()}
    return [
        (one, rules[rule_id].limits.window_start(rules[rule_id].created_at, now))
        for one, rule_id in of_rules.items()
        if rule_id in rules
    ]


def _unnamed(rule: LimitRule) -> list[str]:
    """The value in the id of the counter for values without an id, if the rule is split."""
    return [",".join([OVERFLOW] * len(rule.split_by))] if rule.split_by else []


def followed(engine: Engine, counter_ids: Collection[str]) -> list[str]:
    """The counters without those of deleted rules, at which no new entry counts. Raises LedgerUnavailable."""
    of_rules = {one: rule_id for one in counter_ids if (rule_id := rule_of(one)) is not None}
    with reading(engine) as connection:
        rules = rules_with_ids(connection, set(of_rules.values()))
    deleted = {one.rule_id for one in rules.values() if one.deleted_at is not None}
    return [one for one in counter_ids if of_rules.get(one) not in deleted]


def settled(engine: Engine, exchange_ids: Collection[str], until_us: int | None = None) -> set[str]:
    """The exchanges with a terminal entry, settled at or before `until_us` (None: at any time), or without one for ever
    because their records are dropped dead letters. Raises LedgerUnavailable."""
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
            exchange_id
            for ids in batches(exchange_ids, IDS_MAX)
            for statement in (query, dropped)
            for exchange_id in connection.execute(statement, {"ids": ids}).scalars()
        }


def batches(items: Iterable[_T], size_max: int) -> Iterator[list[_T]]:
    """All items, in lists of at most `size_max`; reads no further than the list."""
    rest = iter(items)
    while batch := list(islice(rest, size_max)):
        yield batch


# -- times


def clock_of(connection: Connection) -> int:
    """The ledger's clock, in µs; 0: the ledger is empty. Raises LedgerUnavailable."""
    return _us(settled_until(connection))


def _us(unix_s: float) -> int:
    """Unix seconds → µs. Exact for stored times: the spacing of floats is 0.2 µs in this century."""
    return round(unix_s * 1e6)


def _first_us(since: float) -> int:
    """The first µs that, as a float, is not before `since`: the budget stores compare floats too."""
    at_us = _us(since) - 1
    while at_us / 1e6 < since:
        at_us += 1
    return max(0, at_us)


def _window(since: float) -> Window:
    since_us = _first_us(since)
    days = -(-since_us // _DAY_US)
    return Window(since_us / 1e6, _EPOCH + timedelta(days=days), days * _DAY_US / 1e6)


# -- sums


def _kinds(connection: Connection, scope_ids: Collection[str]) -> dict[str, str]:
    """Account id → its kind; ids of keys are left out."""
    query = select(accounts.c.account_id, accounts.c.kind).where(
        accounts.c.account_id.in_(bindparam("ids", expanding=True))
    )
    rows = (row for ids in batches(scope_ids, IDS_MAX) for row in connection.execute(query, {"ids": ids}))
    return {row.account_id: row.kind for row in rows}


def _spent(connection: Connection, kind: str, counter_id: str, since: float, added: float) -> int:
    """The spend in nUSD. `added`: time until which entries are in the daily sums of accounts."""
    scope_id = scope_of(counter_id)
    parameters: dict[str, Any] = {"id": scope_id}
    if kind != _KEY:
        parameters |= {"added": added, "first": 0.0}
    if scope_id != counter_id:
        what = _LESS_CREDIT
    else:
        window = _window(since)
        what = _PART_AND_DAYS if window.since < window.day_began else _DAYS
        parameters["day"] = window.day
        if kind != _KEY:
            parameters["first"] = window.day_began
        if what == _PART_AND_DAYS:
            parameters |= {"since": window.since, "until": window.day_began}
    return int(connection.execute(_sum(kind, what, connection.dialect), parameters).scalar_one())


@lru_cache(maxsize=32)
def _sum(kind: str, what: str, dialect: Dialect) -> Select[Any]:
    """The spend in nUSD of `:id`: of the part of a day from `:since` to `:until`, and of the days from `:day` on."""
    if what == _LESS_CREDIT:
        own = _total(balances, "charged_usd", dialect, balances.c.key_id == bindparam("id"))
        # A key's balance includes its spend; an account's balance is its credit alone.
        return select(own if kind == _KEY else own + _of_account(kind, dialect))
    if kind == _KEY:
        days = usage_daily.c.key_id == bindparam("id"), usage_daily.c.day >= bindparam("day")
        total = _total(usage_daily, "charged_usd", dialect, *days)
    else:
        total = _of_account(kind, dialect, account_daily.c.day >= bindparam("day"))
    if what == _PART_AND_DAYS:
        began = _ENTRIES.started_at
        part = began >= bindparam("since"), began < bindparam("until"), _ENTRIES.kind != EntryKind.CREDIT
        total += _total(ledger_entries, "charge_usd", dialect, _of(kind), *part)
    return select(total)


def _of_account(kind: str, dialect: Dialect, *days: ColumnElement[bool]) -> ColumnElement[Any]:
    """The account's charges on these days: the stored sums, and the entries settled since, which began at `:first` or
    later."""
    added = select(func.sum(account_daily.c.charged_nusd)).where(account_daily.c.account_id == bindparam("id"), *days)
    later = _ENTRIES.settled_at > bindparam("added"), _ENTRIES.started_at >= bindparam("first")
    rest = _total(ledger_entries, "charge_usd", dialect, _of(kind), *later, _ENTRIES.kind != EntryKind.CREDIT)
    return func.coalesce(added.scalar_subquery(), 0) + rest


def _of(kind: str) -> ColumnElement[bool]:
    """An SQL condition: the entry's key is `:id` or belongs to the account `:id`."""
    key_id = _ENTRIES.key_id
    scope_id = bindparam("id", type_=key_id.type)
    return has_key_of(key_id, kind, scope_id)


def _total(table: Table, column: str, dialect: Dialect, *conditions: ColumnElement[bool]) -> ColumnElement[Any]:
    """The sum as a whole number of nUSD."""
    query = select(nusd_sum(column, dialect)).select_from(table).where(*conditions)
    return func.coalesce(query.scalar_subquery(), 0)


# -- changes


def _entries(dialect: Dialect, rules: Sequence[LimitRule]) -> Select[Any]:
    """The columns of a change, in the order of settling. Failed attempts are not changes: they charge nothing."""
    columns = (_ENTRIES.exchange_id, _ENTRIES.kind, _ENTRIES.key_id, _ENTRIES.settled_at, _ENTRIES.started_at)
    of_rules = [_ENTRIES.model, _ENTRIES.provider, DIMENSIONS] if rules else []
    if any(rule.limits.quotas for rule in rules):
        of_rules += [_ENTRIES[name] for name in TOKENS_OF.values()]
    money = nusd("charge_usd", dialect).label("nusd")
    query = select(*columns, money, *of_rules).where(_ENTRIES.kind != EntryKind.ATTEMPT)
    return query.order_by(_ENTRIES.settled_at, _ENTRIES.entry_id)


def _deltas_where(
    connection: Connection, condition: ColumnElement[bool], rules: Sequence[LimitRule]
) -> list[SpendDelta]:
    return _deltas(connection, connection.execute(_entries(connection.dialect, rules).where(condition)).all(), rules)


def _deltas(connection: Connection, rows: Sequence[Any], rules: Sequence[LimitRule]) -> list[SpendDelta]:
    levels = _levels(connection, {row.key_id for row in rows})
    counters = {key_id: (_charged(ids), (credit_counter_id(key_id),)) for key_id, ids in levels.items()}
    of_rules = rule_counters(connection, rules, rows, levels) if rules else repeat(CountedAt())
    return [
        SpendDelta(
            row.exchange_id,
            _us(row.settled_at),
            row.started_at,
            int(row.nusd or 0),  # an unpriced entry spends nothing
            (*counters[row.key_id][row.kind == EntryKind.CREDIT], *more.money),
            more.amounts,
        )
        for row, more in zip(rows, of_rules, strict=False)
    ]


def _part(deltas: Iterable[SpendDelta], counter_id: str, since: float) -> int:
    """The sum of the changes of one counter."""
    return sum(delta.amount_at(counter_id) for delta in deltas if delta.started_at >= since)


_ABOVE = (
    select(api_keys.c.key_id, api_keys.c.project_id, accounts.c.parent_id)
    .select_from(api_keys.outerjoin(accounts, accounts.c.account_id == api_keys.c.project_id))
    .where(api_keys.c.key_id.in_(bindparam("ids", expanding=True)))
)


def _levels(connection: Connection, key_ids: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Key or account id → the id, and those of the accounts above."""
    rows = (row for ids in batches(key_ids, IDS_MAX) for row in connection.execute(_ABOVE, {"ids": ids}))
    above = {key_id: (project_id, organization_id) for key_id, project_id, organization_id in rows}
    return {one: tuple(level for level in (one, *above.get(one, ())) if level is not None) for one in key_ids}


def _charged(levels: Sequence[str]) -> tuple[str, ...]:
    return (*levels, *map(credit_counter_id, levels))


# -- limit rules


class _RuleTotals:
    """Totals of the counters of rules, in one snapshot."""

    def __init__(self, connection: Connection, rules: Mapping[str, LimitRule]) -> None:
        self._connection = connection
        self._rules = list(rules.values())
        self._kinds = _kinds(connection, {one.scope_id for one in self._rules if one.scope_id is not None})
        self._added, self._later = 0.0, list[SpendDelta]()
        if any(map(is_by_dimension, self._rules)):
            self._added = added_until(connection, dimension_clock)
            self._later = _deltas_where(connection, _ENTRIES.settled_at > self._added, self._rules)

    def spent(self, rule: LimitRule, counter_id: str, since: float) -> int:
        kind = None if rule.scope_id is None else self._kinds.get(rule.scope_id, _KEY)
        total = rule_sum(self._connection, rule, counter_id, _window(since), kind, self._added)
        return total + (_part(self._later, counter_id, since) if is_by_dimension(rule) else 0)
