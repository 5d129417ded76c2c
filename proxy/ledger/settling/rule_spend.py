"""Spend of the counters of limit rules: which of them an entry counts at, and their totals.

Invariant: the two agree. A total is read from sums by day where there are such: of all usage, and by one dimension; a
counter with several dimensions, or of a rule for some providers, is summed over the entries of its window. A request
counts once, by its terminal entry: of the entries in a daily sum, corrections and failed attempts are subtracted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Dialect, Select, Table, and_, bindparam, case, func, or_, select, true

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import EntryKind
from proxy.billing.keys import AccountKind
from proxy.billing.limit_rules import KEY, LimitRule, counter_of, dimensions_of, key_of
from proxy.billing.limits import Measure, quota_counter_id, quota_of
from proxy.billing.reservation import NO_AMOUNTS
from proxy.ledger.amounts import nusd_sum
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import dimension_daily, exchange_dimensions, ledger_entries, usage_daily

# The largest difference between machines' clocks.
_CLOCKS_DIFFER_S_MAX = 86_400
# Ids per statement.
_IDS_MAX = 1_000

_ENTRIES = ledger_entries.c
DIMENSIONS = _ENTRIES.details[detail_name(EntryDetails.dimensions)].label("dimensions")
"""the dimensions of an entry as a column; adjustments have none of their own"""

_TERMINAL = select(_ENTRIES.exchange_id, DIMENSIONS).where(
    _ENTRIES.exchange_id.in_(bindparam("ids", expanding=True)), _ENTRIES.kind == EntryKind.USAGE
)


class Window(NamedTuple):
    """A window of spend that has no end: a part of a day, and whole days from then on."""

    since: float
    """Unix seconds"""
    day: date
    """the first whole day, in UTC"""
    day_began: float
    """the beginning of the first whole day, in Unix seconds; equal to `since` if there is no part of a day"""


class CountedAt(NamedTuple):
    """The counters at which an entry counts."""

    money: tuple[str, ...] = ()
    """ids of the counters of its charge"""
    amounts: Mapping[str, int] = NO_AMOUNTS
    """id of the counter of a quota → amount that is added there"""


def rule_counters(
    connection: Connection, rules: Sequence[LimitRule], rows: Sequence[Any], levels: Mapping[str, Collection[str]]
) -> list[CountedAt]:
    """The counters of these rules that each entry counts at. `rows`: entries, with `exchange_id`, `kind`, `key_id`,
    `model`, `provider`, `dimensions`, and their counts of tokens if a rule has quotas. `levels`: id of a key → ids of
    the key and its accounts."""
    adjusted = sorted({row.exchange_id for row in rows if row.kind == EntryKind.ADJUSTMENT})
    terminal = {
        exchange_id: dimensions
        for at in range(0, len(adjusted), _IDS_MAX)
        for exchange_id, dimensions in connection.execute(_TERMINAL, {"ids": adjusted[at : at + _IDS_MAX]})
    }
    for_key = {key_id: [rule for rule in rules if rule.is_for(ids)] for key_id, ids in levels.items()}
    return [
        CountedAt()
        if row.kind == EntryKind.CREDIT
        else _counted(for_key[row.key_id], row, terminal.get(row.exchange_id) or row.dimensions)
        for row in rows
    ]


def _counted(rules: Iterable[LimitRule], row: Any, dimensions: object) -> CountedAt:
    known = {**(dimensions if isinstance(dimensions, Mapping) else {}), KEY: row.key_id}
    at = ((counter_of(rule, row.model, known, (row.provider,)), rule) for rule in rules)
    counters = {one: rule for one, rule in at if one is not None}
    amounts = {
        quota_counter_id(one, measure): amount
        for one, rule in counters.items()
        for measure in rule.limits.quotas
        if (amount := _amount(row, measure))
    }
    return CountedAt(tuple(counters), amounts)


def _amount(row: Any, measure: Measure) -> int:
    if measure is Measure.REQUESTS:
        return int(row.kind == EntryKind.USAGE)
    return getattr(row, TOKENS_OF[measure]) or 0


TOKENS_OF = {
    Measure.INPUT_TOKENS: "prompt_tokens",
    Measure.OUTPUT_TOKENS: "completion_tokens",
    Measure.TOKENS: "total_tokens",
}
"""the column of the counts, in entries and in sums"""


def is_by_dimension(rule: LimitRule) -> bool:
    """Whether its total lacks the entries that are not in the sums by dimension yet."""
    return bool(rule.values or rule.split_by)


def rule_sum(
    connection: Connection, rule: LimitRule, counter_id: str, window: Window, kind: str | None, added: float
) -> int:
    """The spend in nUSD, or the amount of a quota. `kind`: of the rule's `scope_id`; None: the rule has none. `added`:
    Unix seconds; entries that were settled later are left out for a rule by dimension."""
    dimensions, key_id = list(dimensions_of(rule, counter_id).items()), key_of(rule, counter_id)
    measure = quota_of(counter_id)
    is_daily = len(dimensions) <= 1 and not rule.providers
    began = [_ENTRIES.started_at >= window.since, _ENTRIES.kind != EntryKind.CREDIT]
    if rule.providers:  # the times of settling have an index
        began += [_ENTRIES.provider.in_(rule.providers), _ENTRIES.settled_at >= window.since - _CLOCKS_DIFFER_S_MAX]
    if is_daily:
        began.append(_ENTRIES.started_at < window.day_began)
    settled = [_ENTRIES.settled_at <= added] if dimensions else []

    def of_entries(*conditions: ColumnElement[bool]) -> Select[Any]:
        query = _of_rule(ledger_entries, rule, kind, key_id, *conditions, *settled)
        for name, value in dimensions:
            of_value = exchange_dimensions.alias()
            has_value = of_value.c.dimension == name, of_value.c.value_id == value
            query = query.where(_ENTRIES.exchange_id.in_(select(of_value.c.exchange_id).where(*has_value)))
        return query

    spent = 0
    if is_daily:
        sums = dimension_daily if dimensions else usage_daily
        by_value = [and_(sums.c.dimension == name, sums.c.value_id == value) for name, value in dimensions]
        days = _of_rule(sums, rule, kind, key_id, sums.c.day >= window.day, *by_value)
        spent += _total(connection, days, _daily_sum(sums, measure, connection.dialect))
        if measure is Measure.REQUESTS:
            others = _ENTRIES.kind != EntryKind.USAGE, _ENTRIES.kind != EntryKind.CREDIT
            later = of_entries(_ENTRIES.started_at >= window.day_began, *others)
            spent -= _total(connection, later, func.count())
    if not is_daily or window.day_began > window.since:
        spent += _total(connection, of_entries(*began), _sum(measure, connection.dialect))
    return spent


def _daily_sum(sums: Table, measure: Measure | None, dialect: Dialect) -> ColumnElement[Any]:
    """The sum of daily sums; for requests, the number of all entries."""
    if measure is None:
        return nusd_sum("charged_usd", dialect)
    return func.sum(sums.c["entries" if measure is Measure.REQUESTS else TOKENS_OF[measure]])


def _sum(measure: Measure | None, dialect: Dialect) -> ColumnElement[Any]:
    """The sum of entries."""
    if measure is None:
        return nusd_sum("charge_usd", dialect)
    if measure is Measure.REQUESTS:
        return func.sum(case((_ENTRIES.kind == EntryKind.USAGE, 1), else_=0))
    return func.sum(_ENTRIES[TOKENS_OF[measure]])


def _of_rule(
    table: Table, rule: LimitRule, kind: str | None, key_id: str | None, *conditions: ColumnElement[bool]
) -> Select[Any]:
    """The rows of a table with `key_id` and `model` that the rule is for. `key_id`: of this key alone."""
    if key_id is not None:
        conditions = (*conditions, table.c.key_id == key_id)
    models = [
        func.substr(table.c.model, 1, len(one) - 1) == one[:-1] if one.endswith("*") else table.c.model == one
        for one in rule.models
    ]
    of_key = true() if kind is None else has_key_of(table.c.key_id, kind, rule.scope_id)
    return select().select_from(table).where(of_key, or_(*models) if models else true(), *conditions)


def _total(connection: Connection, query: Select[Any], total: ColumnElement[Any]) -> int:
    return int(connection.execute(query.add_columns(func.coalesce(total, 0))).scalar_one())


def has_key_of(key_id: ColumnElement[Any], kind: str, scope_id: Any) -> ColumnElement[bool]:
    """An SQL condition: a key is the scope, or belongs to it. `kind`: of an account; any other is a key's."""
    if kind == AccountKind.PROJECT:
        return key_id.in_(select(api_keys.c.key_id).where(api_keys.c.project_id == scope_id))
    if kind == AccountKind.ORGANIZATION:
        projects = select(accounts.c.account_id).where(accounts.c.parent_id == scope_id)
        return key_id.in_(select(api_keys.c.key_id).where(api_keys.c.project_id.in_(projects)))
    is_key: ColumnElement[bool] = key_id == scope_id
    return is_key
