"""Usage and cost in time buckets, for dashboards.

Invariants:
- Daily buckets are read from the daily sums: the time grows with keys, models and days, not with requests, except
  those without a charge or a cost, which an index lists.
- Shorter buckets read only the entries of the requested time span.
- An unknown amount is never 0: its exchange is counted. The corrections of an exchange count in its own bucket.

An exchange id is a UUIDv7, so a time span is a range of the primary key and of the partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Select,
    and_,
    case,
    func,
    literal_column,
    select,
    text,
)

from proxy.billing.entries import EntryKind
from proxy.billing.money import ZERO_NUSD, Nusd
from proxy.ledger.amounts import nusd, nusd_sum
from proxy.ledger.schema.tables import api_keys, ledger_entries, usage_daily
from proxy.storage.database import reading

DAY_S = 86_400

# The longest time between the creation of an exchange id and `started_at` (reading the body, claiming the
# idempotency key).
ID_EARLIER_S = 600.0

_ENTRIES, _DAYS, _KEYS = ledger_entries.c, usage_daily.c, api_keys.c
_EPOCH = date(1970, 1, 1)
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")

# `started_at` in whole Unix seconds; the shortest bucket is a minute.
_BEGAN_S = {
    "sqlite": "CAST(strftime('%s', substr(started_at, 1, 19)) AS INTEGER)",
    "postgresql": "CAST(floor(extract(epoch FROM started_at)) AS BIGINT)",
}
# Literals, not parameters: only then does the planner use the partial index with this condition.
_NOT_TERMINAL = literal_column("kind") != literal_column(f"'{EntryKind.USAGE}'")
_UNKNOWN_AMOUNT = text(
    "ledger_entries.kind = 'usage' AND (ledger_entries.cost_usd IS NULL OR ledger_entries.charge_usd IS NULL)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """The requested totals. Times: Unix seconds on bucket boundaries. A filter of None matches all."""

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
        """The grouping columns, in row order."""
        chosen = {"key_id": self.by_key, "project_id": self.by_project, "model": self.by_model}
        return tuple(name for name, is_chosen in chosen.items() if is_chosen)


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Totals of one bucket and group. Money: nUSD. A group column is None if the query does not group by it."""

    begin: int
    key_id: str | None
    project_id: str | None
    model: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    requests: int
    charge_nusd: Nusd
    cost_nusd: Nusd
    """the sum of the known costs"""
    unpriced: int = 0
    """exchanges without a charge, because they have no price"""
    unknown_cost: int = 0
    """exchanges with an unknown cost"""
    unknown_cost_charge_nusd: Nusd = ZERO_NUSD
    """the part of `charge_nusd` with an unknown cost"""


def read_usage(engine: Engine, wanted: UsageFilter, rows_max: int) -> tuple[list[UsageTotals], int]:
    """Totals ordered by bucket, and the end of the covered time (Unix seconds).

    If there are more than `rows_max` rows, the last buckets are left out and the end is earlier than `end`.
    Raises LedgerUnavailable.
    """
    daily = wanted.bucket_s == DAY_S
    with reading(engine) as connection:
        query = _daily(wanted, connection.dialect) if daily else _entries(wanted, connection.dialect)
        rows = [row._asdict() for row in connection.execute(query.limit(rows_max + 1))]
        end = wanted.end
        if len(rows) > rows_max:
            end = int(rows[-1]["bucket"]) * wanted.bucket_s if not daily else _unix(rows[-1]["bucket"])
        non_requests = _non_requests(connection, wanted) if daily else {}
        unknown = _unknown(connection, wanted)
    totals = [_totals(row, wanted, non_requests, unknown) for row in rows]
    return [total for total in totals if total.begin < end], end


def id_from(at: float) -> str:
    """The lower bound of all exchange ids created at or after `at` (Unix seconds)."""
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


def _non_requests(connection: Connection, wanted: UsageFilter) -> dict[tuple[Any, ...], int]:
    """(Day, group) → number of entries that are not requests: corrections and failed attempts."""
    query = (
        select(
            _bucket(wanted, connection.dialect),
            *_columns(wanted, _ENTRIES.key_id, _ENTRIES.model),
            func.count().label("non_requests"),
        )
        .select_from(_joined(wanted, ledger_entries))
        .where(_NOT_TERMINAL, _ENTRIES.kind != EntryKind.CREDIT, *_began(wanted))
    )
    rows = connection.execute(_grouped(_where(query, wanted, _ENTRIES.key_id, _ENTRIES.model), wanted))
    return {(int(row[0]) * DAY_S, *row[1:-1]): int(row[-1]) for row in rows}


def _unknown(connection: Connection, wanted: UsageFilter) -> dict[tuple[Any, ...], Sequence[int]]:
    """(Begin of the bucket, group) → exchanges without a charge, exchanges without a cost, the charge of the latter;
    after all corrections."""
    dialect = connection.dialect
    changes = (
        select(
            _ENTRIES.exchange_id,
            nusd_sum("charge_usd", dialect).label("charge"),
            func.max(_ENTRIES.cost_nusd).label("cost"),
        )
        .where(_NOT_TERMINAL, _ENTRIES.kind == EntryKind.ADJUSTMENT, *_began(wanted))
        .group_by(_ENTRIES.exchange_id)
        .subquery("changes")
    )
    change, charge = changes.c, nusd("ledger_entries.charge_usd", dialect)
    without_charge = and_(_ENTRIES.charge_nusd.is_(None), change.charge.is_(None))
    without_cost = and_(_ENTRIES.cost_nusd.is_(None), change.cost.is_(None))
    query = (
        select(
            _bucket(wanted, dialect),
            *_columns(wanted, _ENTRIES.key_id, _ENTRIES.model),
            func.sum(case((without_charge, 1), else_=0)),
            func.sum(case((without_cost, 1), else_=0)),
            func.sum(case((without_cost, func.coalesce(charge, 0) + func.coalesce(change.charge, 0)), else_=0)),
        )
        .select_from(_joined(wanted, ledger_entries).outerjoin(changes, change.exchange_id == _ENTRIES.exchange_id))
        .where(_UNKNOWN_AMOUNT, *_began(wanted))
    )
    rows = connection.execute(_grouped(_where(query, wanted, _ENTRIES.key_id, _ENTRIES.model), wanted))
    return {(int(row[0]) * wanted.bucket_s, *row[1:-3]): list(map(int, row[-3:])) for row in rows}


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


def _totals(
    row: dict[str, Any],
    wanted: UsageFilter,
    non_requests: dict[tuple[Any, ...], int],
    unknown: dict[tuple[Any, ...], Sequence[int]],
) -> UsageTotals:
    bucket = row["bucket"]
    begin = _unix(bucket) if isinstance(bucket, date) else int(bucket) * wanted.bucket_s
    named = {name: row[f"by_{name}"] for name in wanted.groups}
    group = (begin, *named.values())
    unpriced, unknown_cost, unknown_charge = unknown.get(group, (0, 0, 0))
    return UsageTotals(
        begin=begin,
        key_id=named.get("key_id"),
        project_id=named.get("project_id"),
        model=named.get("model"),
        requests=int(row["requests"]) - non_requests.get(group, 0),
        charge_nusd=Nusd(int(row["charge"])),
        cost_nusd=Nusd(int(row["cost"])),
        unpriced=unpriced,
        unknown_cost=unknown_cost,
        unknown_cost_charge_nusd=Nusd(unknown_charge),
        **{name: int(row[name]) for name in _TOKENS},
    )


def _date(unix_s: int) -> date:
    return datetime.fromtimestamp(unix_s, UTC).date()


def _unix(day: date) -> int:
    return (day - _EPOCH) // timedelta(seconds=1)
