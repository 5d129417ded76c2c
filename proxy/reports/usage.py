"""Usage and cost in buckets of time: what dashboards ask. Law: days come from the daily sums, so that their cost grows
with keys, models and days; shorter buckets from the entries of that time alone, which their ids lead to.

An exchange id is a UUIDv7: ids of a time are a range of the primary key, and so of the partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Dialect, Engine, Select, case, func, literal_column, select

from proxy.billing.entries import EntryKind
from proxy.ledger.amounts import nusd_sum
from proxy.ledger.schema.tables import api_keys, ledger_entries, usage_daily
from proxy.storage.database import reading

DAY_S = 86_400

# An id is made before its exchange begins: so much earlier at most (a body that is read, a claim that is asked for).
ID_EARLIER_S = 600.0

_ENTRIES, _DAYS, _KEYS = ledger_entries.c, usage_daily.c, api_keys.c
_EPOCH = date(1970, 1, 1)
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")

# Unix seconds of `started_at`, whole: buckets are minutes at least.
_BEGAN_S = {
    "sqlite": "CAST(strftime('%s', substr(started_at, 1, 19)) AS INTEGER)",
    "postgresql": "CAST(floor(extract(epoch FROM started_at)) AS BIGINT)",
}
# Literal, so that the planner sees that the index of just these is the one to use.
_ENDS_NOTHING = literal_column("kind") != literal_column(f"'{EntryKind.USAGE}'")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """Which sums. Times: Unix seconds, whole buckets; filters: None is all."""

    begin: int
    end: int
    bucket_s: int
    by_key: bool = False
    by_project: bool = False
    by_model: bool = False
    keys: Collection[str] | None = None
    projects: Collection[str] | None = None
    models: Collection[str] | None = None

    @property
    def groups(self) -> tuple[str, ...]:
        """By what is grouped, in the order of a row."""
        asked = {"key_id": self.by_key, "project_id": self.by_project, "model": self.by_model}
        return tuple(name for name, is_asked in asked.items() if is_asked)


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """What entries of one bucket and group come to. Money: nUSD. None: not grouped by it."""

    begin: int
    key_id: str | None
    project_id: str | None
    model: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    requests: int
    charge_usd: int
    cost_usd: int


def read_usage(engine: Engine, wanted: UsageFilter, rows_max: int) -> tuple[list[UsageTotals], int]:
    """The sums, in the order of their buckets, and up to when (Unix seconds) that is all of them: of more than
    `rows_max` the last buckets are left out. Raises LedgerUnavailable."""
    daily = wanted.bucket_s == DAY_S
    with reading(engine) as connection:
        query = _daily(wanted, connection.dialect) if daily else _entries(wanted, connection.dialect)
        rows = [row._asdict() for row in connection.execute(query.limit(rows_max + 1))]
        end = wanted.end
        if len(rows) > rows_max:
            end = int(rows[-1]["bucket"]) * wanted.bucket_s if not daily else _unix(rows[-1]["bucket"])
        others = _others(connection, wanted) if daily else {}
    sums = [_sums(row, wanted, others) for row in rows]
    return [one for one in sums if one.begin < end], end


def id_from(at: float) -> str:
    """What every exchange id that is made at or after `at` (Unix seconds) is above."""
    digits = f"{max(0, int(at * 1000)):012x}"
    return f"{digits[:8]}-{digits[8:]}-"


def _daily(wanted: UsageFilter, dialect: Dialect) -> Select[Any]:
    first, last = _date(wanted.begin), _date(wanted.end)
    query = select(
        _DAYS.day.label("bucket"),
        *_columns(wanted, _DAYS.key_id, _DAYS.model),
        *(func.sum(_DAYS[name]).label(name) for name in _TOKENS),
        func.sum(_DAYS.entries).label("requests"),
        nusd_sum("charged_usd", dialect).label("charge"),
        nusd_sum("cost_usd", dialect).label("cost"),
    ).select_from(_joined(wanted, usage_daily))
    query = query.where(_DAYS.day >= first, _DAYS.day < last)
    return _grouped(_where(query, wanted, _DAYS.key_id, _DAYS.model), wanted)


def _entries(wanted: UsageFilter, dialect: Dialect) -> Select[Any]:
    query = select(
        _bucket(wanted, dialect),
        *_columns(wanted, _ENTRIES.key_id, _ENTRIES.model),
        *(func.coalesce(func.sum(_ENTRIES[name]), 0).label(name) for name in _TOKENS),
        func.sum(case((_ENTRIES.kind == EntryKind.USAGE, 1), else_=0)).label("requests"),
        func.coalesce(nusd_sum("charge_usd", dialect), 0).label("charge"),
        func.coalesce(nusd_sum("cost_usd", dialect), 0).label("cost"),
    ).select_from(_joined(wanted, ledger_entries))
    query = query.where(
        _ENTRIES.exchange_id >= id_from(wanted.begin - ID_EARLIER_S),
        _ENTRIES.exchange_id < id_from(wanted.end),
        *_began(wanted),
        _ENTRIES.kind != EntryKind.CREDIT,
    )
    return _grouped(_where(query, wanted, _ENTRIES.key_id, _ENTRIES.model), wanted)


def _others(connection: Any, wanted: UsageFilter) -> dict[tuple[Any, ...], int]:
    """How many entries of each day and group are corrections or attempts, and no requests."""
    query = (
        select(
            _bucket(wanted, connection.dialect),
            *_columns(wanted, _ENTRIES.key_id, _ENTRIES.model),
            func.count().label("others"),
        )
        .select_from(_joined(wanted, ledger_entries))
        .where(_ENDS_NOTHING, _ENTRIES.kind != EntryKind.CREDIT, *_began(wanted))
    )
    rows = connection.execute(_grouped(_where(query, wanted, _ENTRIES.key_id, _ENTRIES.model), wanted))
    return {(int(row[0]) * DAY_S, *row[1:-1]): int(row[-1]) for row in rows}


def _began(wanted: UsageFilter) -> tuple[ColumnElement[bool], ...]:
    return _ENTRIES.started_at >= float(wanted.begin), _ENTRIES.started_at < float(wanted.end)


def _bucket(wanted: UsageFilter, dialect: Dialect) -> ColumnElement[Any]:
    return literal_column(f"({_BEGAN_S[dialect.name]} / {int(wanted.bucket_s)})", BigInteger).label("bucket")


def _columns(
    wanted: UsageFilter, key_id: ColumnElement[Any], model: ColumnElement[Any]
) -> Iterable[ColumnElement[Any]]:
    shown = {"key_id": key_id, "project_id": _KEYS.project_id, "model": model}
    return [shown[name].label(f"by_{name}") for name in wanted.groups]


def _joined(wanted: UsageFilter, table: Any) -> Any:
    if not wanted.by_project and wanted.projects is None:
        return table
    return table.outerjoin(api_keys, _KEYS.key_id == table.c.key_id)


def _where(query: Select[Any], wanted: UsageFilter, key_id: Any, model: Any) -> Select[Any]:
    for column, only in ((key_id, wanted.keys), (model, wanted.models), (_KEYS.project_id, wanted.projects)):
        if only is not None:
            query = query.where(column.in_(sorted(only)))
    return query


def _grouped(query: Select[Any], wanted: UsageFilter) -> Select[Any]:
    by: list[ColumnElement[Any]] = [literal_column("bucket"), *(literal_column(f"by_{name}") for name in wanted.groups)]
    return query.group_by(*by).order_by(*by)


def _sums(row: dict[str, Any], wanted: UsageFilter, others: dict[tuple[Any, ...], int]) -> UsageTotals:
    bucket = row["bucket"]
    begin = _unix(bucket) if isinstance(bucket, date) else int(bucket) * wanted.bucket_s
    named = {name: row[f"by_{name}"] for name in wanted.groups}
    return UsageTotals(
        begin=begin,
        key_id=named.get("key_id"),
        project_id=named.get("project_id"),
        model=named.get("model"),
        requests=int(row["requests"]) - others.get((begin, *named.values()), 0),
        charge_usd=int(row["charge"]),
        cost_usd=int(row["cost"]),
        **{name: int(row[name]) for name in _TOKENS},
    )


def _date(unix_s: int) -> date:
    return datetime.fromtimestamp(unix_s, UTC).date()


def _unix(day: date) -> int:
    return (day - _EPOCH) // timedelta(seconds=1)
