"""The checks of sums against the rows that they are the sums of.

Invariants: a check only reads, and relies on no table but those that it compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Dialect,
    Select,
    Table,
    Text,
    cast,
    func,
    literal_column,
    or_,
    select,
    union_all,
)

from proxy.billing.entries import EntryKind
from proxy.billing.period import Month, day_of
from proxy.ledger.amounts import SUMS, nusd, rows_of, sums_of_entries, utc_day
from proxy.ledger.archive.archives import archived_until, not_archived
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.column_types import Money
from proxy.ledger.schema.tables import (
    account_clock,
    account_daily,
    archived_sums,
    balances,
    dimension_daily,
    ledger_entries,
    usage_daily,
)
from proxy.reconciliation.check_entries import IS_CREDIT
from proxy.reconciliation.integrity import CheckResult, CheckScope, settled

# The largest tolerated difference between the clocks of a proxy and the ledger.
SKEW_S = 86_400.0
_DAY_S = 86_400.0

_COLUMNS = ledger_entries.c

# A few times the relative precision of a float; smaller differences are rounding.
_NOT_MONEY = {
    "sqlite": "(typeof({0}) NOT IN ('integer', 'real', 'null') OR abs({0} - {1} / 1e9) > abs({0}) * 1e-15)",
    "postgresql": "({0} = 'NaN')",
}


def balances_add_up(connection: Connection, _scope: CheckScope) -> CheckResult:
    """Each balance is the sum of its daily usage and its top-ups, archived ones included. Cheap: it reads no other
    entries."""
    names = ("key_id",)
    dialect = connection.dialect
    days = summed(usage_daily, names, 1, dialect)
    top_ups = select(_COLUMNS.key_id, *sums_of_entries(dialect)).where(*IS_CREDIT, not_archived(connection))
    top_ups = top_ups.group_by(_COLUMNS.key_id)
    archived = summed(archived_sums, names, 1, dialect).where(archived_sums.c.kind == EntryKind.CREDIT)
    kept = summed(balances, names, -1, dialect)
    return unequal(connection, names, [days, top_ups, archived, kept])


def days_add_up(connection: Connection, scope: CheckScope) -> CheckResult:
    """Daily usage, by key and model, is the sum of the day's entries without top-ups. Archived months are skipped."""
    month = archived_until(connection)
    after = None if month is None else month.until
    if scope.since is None:
        return _days_add_up(connection, after, settled_from=None)
    day = midnight(scope.since)
    return _days_add_up(connection, day if after is None else max(day, after), settled_from=day - SKEW_S)


def days_of_month_add_up(connection: Connection, month: Month) -> CheckResult:
    """`days_add_up` for the days until the end of one month that are not archived."""
    last = archived_until(connection)
    return _days_add_up(connection, None if last is None else last.until, until=month.until, settled_from=None)


def _days_add_up(
    connection: Connection, since: float | None, *, until: float | None = None, settled_from: float | None
) -> CheckResult:
    """`since`, `until`: midnights, Unix seconds. `settled_from`: no entry of these days was settled before."""
    dialect = connection.dialect
    names = ("day", "key_id", "model")
    day = utc_day(_COLUMNS.started_at, dialect)
    entries = select(day.label("day"), _COLUMNS.key_id, _COLUMNS.model, *sums_of_entries(dialect))
    entries = entries.where(_COLUMNS.kind != EntryKind.CREDIT, not_archived(connection))
    entries = entries.group_by(day, _COLUMNS.key_id, _COLUMNS.model)
    kept = summed(usage_daily, names, -1, dialect)
    archived = summed(archived_sums, names, 1, dialect).where(archived_sums.c.kind == EntryKind.USAGE)
    if since is not None:
        entries = entries.where(_COLUMNS.started_at >= since)
        kept = kept.where(usage_daily.c.day >= day_of(since))
        archived = archived.where(archived_sums.c.day >= day_of(since))
    if until is not None:
        entries = entries.where(_COLUMNS.started_at < until)
        kept = kept.where(usage_daily.c.day < day_of(until))
        archived = archived.where(archived_sums.c.day < day_of(until))
    if settled_from is not None:
        entries = entries.where(_COLUMNS.settled_at >= settled_from)
    return unequal(connection, names, [entries, archived, kept])


def midnight(unix_s: float) -> float:
    """The beginning of the UTC day."""
    return unix_s // _DAY_S * _DAY_S


def accounts_add_up(connection: Connection, _scope: CheckScope) -> CheckResult:
    """Daily charges of projects and organizations are those of their keys, less the entries not added yet."""
    dialect = connection.dialect
    day, later = utc_day(_COLUMNS.started_at, dialect), select(account_clock.c.settled_at).scalar_subquery()
    entries = select(_COLUMNS.key_id, day.label("day"), (-nusd("charge_usd", dialect)).label("charged"))
    entries = entries.where(_COLUMNS.settled_at > later, _COLUMNS.kind != EntryKind.CREDIT)
    days = select(usage_daily.c.key_id, usage_daily.c.day, nusd("charged_usd", dialect).label("charged"))
    charged = union_all(days, entries).subquery()
    owners = charged.join(api_keys, api_keys.c.key_id == charged.c.key_id)
    above = owners.join(accounts, accounts.c.account_id == api_keys.c.project_id)
    parts = [
        select(account_id.label("account_id"), charged.c.day, func.sum(charged.c.charged).label("charged"))
        .select_from(source)
        .group_by(account_id, charged.c.day)
        for source, account_id in ((owners, api_keys.c.project_id), (above, accounts.c.parent_id))
    ]
    kept = account_daily.c
    every = union_all(*parts, select(kept.account_id, kept.day, (-kept.charged_nusd).label("charged"))).subquery()
    names, total = (every.c.account_id, every.c.day), func.sum(every.c.charged)
    result = CheckResult()
    for account_id, on, nusd_more in rows_of(connection, select(*names, total).group_by(*names).having(total != 0)):
        result.differs(account_id=account_id, day=on, charged_nusd=int(nusd_more))
    return result


def summed(table: Table, names: Iterable[str], sign: int, dialect: Dialect) -> Select[Any]:
    """The rows of a table of sums, times `sign`."""
    amounts = (nusd(table.c[name].name, dialect) if name.endswith("_nusd") else table.c[name] for name in SUMS)
    labelled = ((value * sign).label(name) for name, value in zip(SUMS, amounts, strict=True))
    return select(*(table.c[name] for name in names), *labelled)


def unequal(connection: Connection, names: Sequence[str], parts: Sequence[Select[Any]]) -> CheckResult:
    """The groups in which the parts do not add up to zero, with the difference: entries (or days) minus stored sums."""
    every = union_all(*parts).subquery()
    more = {name: func.sum(every.c[name]).label(name) for name in SUMS}
    by = [every.c[name] for name in names]
    query = select(*by, *more.values()).group_by(*by).having(or_(*(sum_ != 0 for sum_ in more.values())))
    result = CheckResult()
    for row in rows_of(connection, query):
        fields = row._asdict()
        result.differs(
            **{name: fields[name] for name in names},
            **{balances.c[name].name: fields[name] for name in SUMS if fields[name]},
        )
    return result


def whole_numbers(connection: Connection, scope: CheckScope) -> CheckResult:
    """Tokens are integers and money is whole nano-USD, in every table.

    On Postgres the column types ensure that, except for NaN. NaN among the many entries shows up in sums and prices.
    """
    result = CheckResult()
    sums = (balances, usage_daily, dimension_daily)
    for table in (ledger_entries, *sums) if connection.dialect.name == "sqlite" else sums:
        wrong = _not_whole(table, connection.dialect)
        key = [cast(column, Text).label(column.name) for column in table.primary_key.columns]
        query = select(*key, *(condition.label(f"not {name}") for name, condition in wrong.items()))
        query = query.where(or_(*wrong.values()))
        for row in rows_of(connection, settled(query, scope) if table is ledger_entries else query):
            fields = row._asdict()
            columns = [name for name in wrong if fields[f"not {name}"]]
            result.differs(table=table.name, columns=columns, **{column.name: fields[column.name] for column in key})
    return result


def _not_whole(table: Table, dialect: Dialect) -> dict[str, ColumnElement[bool]]:
    """Column → an SQL condition: the value is no integer or no whole nano-USD."""
    wrong: dict[str, ColumnElement[bool]] = {}
    for column in table.columns:
        name = column.name
        if isinstance(column.type, Money):
            whole = str(nusd(name, dialect))
            wrong[name] = literal_column(_NOT_MONEY[dialect.name].format(name, whole), Boolean)
        elif isinstance(column.type, BigInteger) and dialect.name == "sqlite":  # Postgres checks the type itself
            wrong[name] = literal_column(f"(typeof({name}) NOT IN ('integer', 'null'))", Boolean)
    return wrong
