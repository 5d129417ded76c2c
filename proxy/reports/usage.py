"""Usage and cost in time buckets, for dashboards and `tokenweir usage`.

Invariants:
- Daily buckets are read from the daily sums: the time grows with keys, models, days and values of a dimension, not with
  requests, except those without a charge or a cost, which an index lists. Of two dimensions at once there are no daily
  sums: these are read from the entries of the requested time span.
- Daily sums are of UTC days. The total of a time span in another time zone consists of the daily sums of its whole UTC
  days, and of the entries before and after them; separate days are read from the entries. A day has 23 or 25 hours
  where clocks change.
- Shorter buckets, and providers, which daily sums do not have, are read from the entries of the requested time span.
- By usage date, an entry counts when its exchange began. As booked, it counts as statements have it: an adjustment
  counts when it was settled, and so does usage that was settled after its month was closed.
- An unknown amount is never 0: its exchange is counted. The corrections of an exchange count in its own bucket.
- The groups of a dimension, with the one of the requests without it, add up to the sums without the dimension.

An exchange id is a UUIDv7, so a time span is a range of the primary key and of the partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    FromClause,
    Select,
    String,
    case,
    cast,
    func,
    literal_column,
    null,
    select,
    union_all,
)

from proxy.billing.entries import EntryKind
from proxy.billing.money import ZERO_NUSD, Nusd
from proxy.ledger.amounts import nusd_sum
from proxy.ledger.archive.archives import archived_until
from proxy.ledger.dimensions.sums import as_stored, later_usage
from proxy.ledger.periods.activity import late_usage
from proxy.ledger.periods.closing import read_closings
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import dimension_daily, ledger_entries, usage_daily
from proxy.reports.buckets import DAY_S, Buckets
from proxy.reports.dimensions import DimensionFilter, ExchangePairs, unindexed
from proxy.reports.entry_reader import CLOCKS_DIFFER_S_MAX
from proxy.reports.unknown_amounts import NOT_TERMINAL, UnknownAmounts, booked_elsewhere, with_changes
from proxy.storage.database import is_shared, reading

# The longest time between the creation of an exchange id and `started_at` (reading the body, claiming the
# idempotency key).
ID_EARLIER_S = 600.0

_ENTRIES, _KEYS = ledger_entries.c, api_keys.c
# Without further columns, so that those of entries need no table's name.
_PROJECTS = select(accounts.c.account_id, accounts.c.parent_id).subquery("projects")
_EPOCH = date(1970, 1, 1)
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")
_SUMS = (*_TOKENS, "requests", "charge", "cost")

# A time in whole Unix seconds; the shortest bucket is a minute.
_WHOLE_S = {
    "sqlite": "CAST(strftime('%s', substr({0}, 1, 19)) AS INTEGER)",
    "postgresql": "CAST(floor(extract(epoch FROM {0})) AS BIGINT)",
}
# For a hash table of 100,000 values: else Postgres sorts on the disk, which takes twice as long. To compile the
# expressions takes longer than to evaluate them. Parallel workers would sort what each has added up, which takes three
# times the CPU.
_FOR_MANY_VALUES = (
    "SELECT set_config('work_mem', '64MB', true), set_config('jit', 'off', true), "
    "set_config('max_parallel_workers_per_gather', '0', true)"
)


class Span(NamedTuple):
    """A time span in Unix seconds; `end` is not part of it."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """The requested totals. Times: Unix seconds on bucket boundaries. A filter of None matches all."""

    begin: int
    end: int
    bucket_s: int
    time_zone: str | None = None
    """see `Buckets`"""
    is_total: bool = False
    """one bucket from begin to end, which may be at any time, the groups with the highest charge first"""
    is_booked: bool = False
    """an adjustment counts on the day of its booking, not of its exchange"""
    by_organization: bool = False
    by_provider: bool = False
    by_key: bool = False
    by_project: bool = False
    by_model: bool = False
    by_dimension: str | None = None
    keys: Collection[str] | None = None
    projects: Collection[str] | None = None
    organizations: Collection[str] | None = None
    models: Collection[str] | None = None
    providers: Collection[str] | None = None
    dimensions: DimensionFilter = field(default_factory=dict)

    @property
    def span(self) -> Span:
        """The whole time span."""
        return Span(self.begin, self.end)

    @property
    def groups(self) -> tuple[str, ...]:
        """The grouping columns, in row order."""
        chosen = {
            "key_id": self.by_key, "project_id": self.by_project, "organization_id": self.by_organization,
            "model": self.by_model, "provider": self.by_provider, "value_id": self.by_dimension is not None,
        }  # fmt: skip
        return tuple(name for name, is_chosen in chosen.items() if is_chosen)

    @property
    def buckets(self) -> Buckets:
        """The division of the time span, unless it is one bucket."""
        return Buckets(self.bucket_s, self.time_zone)

    @property
    def dimension_names(self) -> set[str]:
        """The dimensions of groups and filters."""
        return {*self.dimensions, *([] if self.by_dimension is None else [self.by_dimension])}

    @property
    def has_accounts(self) -> bool:
        """Whether groups or filters are of projects or organizations."""
        is_filtered = self.projects is not None or self.organizations is not None
        return self.by_project or self.by_organization or is_filtered

    @property
    def has_providers(self) -> bool:
        """Whether groups or filters are of providers."""
        return self.by_provider or self.providers is not None


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
    value_id: str | None = None
    """value id of the dimension; None also for exchanges without it"""
    organization_id: str | None = None
    provider: str | None = None


def read_usage(engine: Engine, wanted: UsageFilter, rows_max: int) -> tuple[list[UsageTotals], int]:
    """Totals ordered by bucket, and the end of the covered time (Unix seconds).

    If there are more than `rows_max` rows, the last buckets are left out and the end is earlier than `end`; of a single
    bucket, the groups with the lowest charges. Raises LedgerUnavailable; ValueError if entries are needed that are
    archived.
    """
    with reading(engine) as connection:
        if wanted.by_dimension is not None and is_shared(connection):
            connection.exec_driver_sql(_FOR_MANY_VALUES)
        entries = entry_source(connection, wanted)
        days, spans = _parts(wanted)
        require_entries(connection, [wanted.span] if wanted.is_booked else spans)
        queries = [_of_entries(entries, wanted, span, connection.dialect) for span in spans]
        queries += [] if days is None else [_daily(connection, wanted, days)]
        queries += _moves(connection, entries, wanted) if wanted.is_booked else []
        query = queries[0] if len(queries) == 1 else _added(wanted, union_all(*queries).subquery())
        rows = [row._asdict() for row in connection.execute(_ordered(query, wanted).limit(rows_max + 1))]
        end = wanted.end
        if wanted.is_total:
            del rows[rows_max:]
        elif len(rows) > rows_max:
            end = _begin_of(rows[-1]["bucket"])
        non_requests = {} if days is None else _non_requests(connection, entries, wanted, days)
        unknown = _unknown(connection, entries, wanted)
    totals = [_totals(row, wanted, non_requests, unknown) for row in rows]
    return [total for total in totals if total.begin < end], end


def _parts(wanted: UsageFilter) -> tuple[Span | None, list[Span]]:
    """The whole UTC days that are read from the daily sums (None: none), and the spans that are read from entries."""
    whole = wanted.span
    if wanted.bucket_s != DAY_S or len(wanted.dimension_names) > 1 or wanted.has_providers:
        return None, [whole]
    utc = Buckets(DAY_S)
    days = Span(utc.ceil(wanted.begin), utc.floor(wanted.end))
    if days == whole and wanted.time_zone is None:
        return whole, []
    if not wanted.is_total or days.begin >= days.end:
        return None, [whole]
    edges = Span(wanted.begin, days.begin), Span(days.end, wanted.end)
    return days, [span for span in edges if span.begin < span.end]


def require_entries(connection: Connection, spans: Iterable[Span]) -> None:
    """Raises ValueError if entries of these time spans are in an archive."""
    month = archived_until(connection)
    if month is not None and any(span.begin < month.until for span in spans):
        raise ValueError(f"this report is read from entries, and entries until {month} are archived")


def id_from(at: float) -> str:
    """The lower bound of all exchange ids created at or after `at` (Unix seconds)."""
    digits = f"{max(0, int(at * 1000)):012x}"
    return f"{digits[:8]}-{digits[8:]}-"


class EntrySource(NamedTuple):
    """Entries, or rows of sums, to add up."""

    rows: FromClause
    groups: Sequence[ColumnElement[Any]]
    """labelled `by_…`"""
    conditions: Sequence[ColumnElement[bool]]

    def sums(self, bucket: ColumnElement[Any], sums: Iterable[ColumnElement[Any]], where: Iterable[Any]) -> Select[Any]:
        """The sums by bucket and group."""
        query = select(bucket.label("bucket"), *self.groups, *sums).select_from(self.rows)
        return query.where(*where, *self.conditions).group_by(*_labels(self.groups))


def _source(wanted: UsageFilter, columns: Any, rows: FromClause, value_id: Any = None) -> EntrySource:
    """`columns`: those of the rows' table. `value_id`: the dimension's; None: the rows have none."""
    nothing = cast(null(), String)
    provider = columns.provider if wanted.has_providers else nothing
    shown = {
        "key_id": columns.key_id, "project_id": _KEYS.project_id, "organization_id": _PROJECTS.c.parent_id,
        "model": columns.model, "provider": provider, "value_id": nothing if value_id is None else value_id,
    }  # fmt: skip
    given = {
        "key_id": wanted.keys, "project_id": wanted.projects, "organization_id": wanted.organizations,
        "model": wanted.models, "provider": wanted.providers,
    }  # fmt: skip
    filters = [(shown[name], only) for name, only in given.items()]
    if wanted.has_accounts:
        rows = rows.outerjoin(api_keys, _KEYS.key_id == columns.key_id)
    if wanted.by_organization or wanted.organizations is not None:
        rows = rows.outerjoin(_PROJECTS, _PROJECTS.c.account_id == _KEYS.project_id)
    return EntrySource(
        rows,
        [shown[name].label(f"by_{name}") for name in wanted.groups],
        [column.in_(sorted(only)) for column, only in filters if only is not None],
    )


def entry_source(connection: Connection, wanted: UsageFilter) -> EntrySource:
    """The entries, with their dimensions if these are wanted."""
    if not wanted.dimension_names:
        return _source(wanted, _ENTRIES, ledger_entries)
    pairs = ExchangePairs(connection)
    rows: FromClause = ledger_entries
    value_id: ColumnElement[Any] | None = None
    if wanted.by_dimension is not None:
        rows, value_id = pairs.joined(ledger_entries, wanted.by_dimension)
    found = _source(wanted, _ENTRIES, rows, value_id)
    return found._replace(conditions=[*found.conditions, *pairs.of_entries(wanted.dimensions)])


def _daily(connection: Connection, wanted: UsageFilter, span: Span) -> Select[Any]:
    """The totals of days, from the tables of daily sums. `span`: whole days."""
    dialect = connection.dialect
    for name in wanted.dimension_names:
        by_value = _days_of(connection, wanted, span, name).cte("by_value")
        if name in wanted.dimensions:
            return select(by_value)
        return select(union_all(select(by_value), _without(wanted, span, by_value, dialect)).subquery())
    return _days(wanted, span, usage_daily, dialect)


def _days_of(connection: Connection, wanted: UsageFilter, span: Span, dimension: str) -> Select[Any]:
    """The totals of a dimension: its daily sums, and the entries that are not in them yet, added up at once. Because
    their columns have the same types, Postgres reads both as one table."""
    columns = dimension_daily.columns
    parts = [select(*columns)]
    for query in later_usage(connection):
        later = unindexed(query.subquery()).c
        parts.append(select(*(_as_column(one, as_stored(one.key, later[one.key])) for one in columns)))
    rows = union_all(*parts).subquery()
    return _days(wanted, span, rows, connection.dialect, dimension)


def _as_column(column: Column[Any], value: ColumnElement[Any]) -> ColumnElement[Any]:
    for type_ in (String, BigInteger):
        if isinstance(column.type, type_):
            value = cast(value, type_())
    return value.label(column.name)


def _without(wanted: UsageFilter, span: Span, by_value: FromClause, dialect: Dialect) -> Select[Any]:
    """The totals of the requests without the dimension: the part of the daily sums that no value has."""
    columns = by_value.c
    groups = (cast(null(), String) if name == "by_value_id" else columns[name] for name in _group_names(wanted))
    named = (column.label(name) for name, column in zip(_group_names(wanted), groups, strict=True))
    less = select(columns.bucket, *named, *((-columns[name]).label(name) for name in _SUMS))
    every = union_all(_days(wanted, span, usage_daily, dialect), less).subquery()
    return _added(wanted, every).having(func.sum(every.c.requests) != 0)


def _added(wanted: UsageFilter, parts: FromClause) -> Select[Any]:
    """The sums of totals of the same bucket and group."""
    groups = [parts.c[name] for name in ("bucket", *_group_names(wanted))]
    return select(*groups, *(func.sum(parts.c[name]).label(name) for name in _SUMS)).group_by(*groups)


def _days(wanted: UsageFilter, span: Span, table: FromClause, dialect: Dialect, dimension: str = "") -> Select[Any]:
    """The totals of a table of daily sums; money in nUSD."""
    column = table.c
    bucket: ColumnElement[Any] = whole_bucket(wanted) if wanted.is_total else column.day
    if wanted.is_booked and not wanted.is_total:  # as the buckets of entries
        bucket = literal_column(_WHOLE_S[dialect.name].format("day"), BigInteger)
    amounts = (nusd_sum(name, dialect) for name in ("charged_usd", "cost_usd"))
    sums = (*(func.sum(column[name]) for name in _TOKENS), func.sum(column.entries), *amounts)
    where = [column.day >= _date(span.begin), column.day < _date(span.end)]
    if dimension:
        where.append(column.dimension == dimension)
        if (only := wanted.dimensions.get(dimension)) is not None:
            where.append(column.value_id.in_(sorted(only)))
    source = _source(wanted, column, table, column.value_id if dimension else None)
    return source.sums(bucket, (sum_.label(name) for name, sum_ in zip(_SUMS, sums, strict=True)), where)


def _of_entries(entries: EntrySource, wanted: UsageFilter, span: Span, dialect: Dialect) -> Select[Any]:
    where = (
        _ENTRIES.exchange_id >= id_from(span.begin - ID_EARLIER_S),
        _ENTRIES.exchange_id < id_from(span.end),
        *_began(span),
        _ENTRIES.kind != EntryKind.CREDIT,
    )
    return entries.sums(_bucket(wanted, dialect), _entry_sums(dialect, 1), where)


def _entry_sums(dialect: Dialect, sign: int) -> list[ColumnElement[Any]]:
    """The sums of entries. `sign`: -1 to subtract them from other sums."""
    sums = {
        **{name: func.sum(_ENTRIES[name]) for name in _TOKENS},
        "requests": func.sum(case((_ENTRIES.kind == EntryKind.USAGE, 1), else_=0)),
        "charge": nusd_sum("charge_usd", dialect),
        "cost": nusd_sum("cost_usd", dialect),
    }
    return [(sign * func.coalesce(sum_, 0)).label(name) for name, sum_ in sums.items()]


def _moves(connection: Connection, entries: EntrySource, wanted: UsageFilter) -> Iterator[Select[Any]]:
    """What turns sums by usage date into sums as booked: adjustments and late usage, taken from the buckets in which
    their exchanges began and added to those in which they were settled."""
    dialect, is_adjustment = connection.dialect, (NOT_TERMINAL, _ENTRIES.kind == EntryKind.ADJUSTMENT)
    spans = read_closings(connection).late_between(0.0)
    for moved in (is_adjustment, *([(late_usage(spans),)] if spans else [])):
        yield entries.sums(_bucket(wanted, dialect), _entry_sums(dialect, -1), (*moved, *began(wanted)))
        booked = _bucket(wanted, dialect, "settled_at")
        yield entries.sums(booked, _entry_sums(dialect, 1), (*moved, *settled(wanted)))


def _non_requests(
    connection: Connection, entries: EntrySource, wanted: UsageFilter, span: Span
) -> dict[tuple[Any, ...], int]:
    """(Begin of the bucket, group) → number of entries that are not requests: corrections and failed attempts."""
    where = NOT_TERMINAL, _ENTRIES.kind != EntryKind.CREDIT, *_began(span)
    rows = connection.execute(entries.sums(_bucket(wanted, connection.dialect), [func.count()], where))
    return {(int(row[0]), *row[1:-1]): int(row[-1]) for row in rows}


def _unknown(
    connection: Connection, entries: EntrySource, wanted: UsageFilter
) -> dict[tuple[Any, ...], UnknownAmounts]:
    """(Begin of the bucket, group) → its exchanges with unknown amounts."""
    dialect, in_span = connection.dialect, began(wanted)
    begin, booked = _bucket(wanted, dialect), _bucket(wanted, dialect, "settled_at")
    changes, all_sums = with_changes(dialect, in_span)
    corrected = entries._replace(rows=entries.rows.outerjoin(changes, changes.c.exchange_id == _ENTRIES.exchange_id))
    queries = [corrected.sums(begin, *all_sums)]
    if wanted.is_booked:  # see `_moves`
        for columns, where in booked_elsewhere(dialect, read_closings(connection).late_between(0.0)):
            queries.append(entries.sums(begin, [-one for one in columns], (*where, *in_span)))
            queries.append(entries.sums(booked, columns, (*where, *settled(wanted))))
    found: dict[tuple[Any, ...], UnknownAmounts] = {}
    for row in (row for query in queries for row in connection.execute(query)):
        group = int(row[0]), *row[1:-3]
        pairs = zip(found.get(group, UnknownAmounts()), row[-3:], strict=True)
        found[group] = UnknownAmounts(*(before + int(more or 0) for before, more in pairs))
    return found


def began(wanted: UsageFilter) -> tuple[ColumnElement[bool], ...]:
    """SQL conditions: the exchange began in the requested time span."""
    return _began(wanted.span)


def settled(wanted: UsageFilter) -> tuple[ColumnElement[bool], ...]:
    """SQL conditions: the entry was settled in the requested time span. The last one is for an index."""
    settled_at, end = _ENTRIES.settled_at, float(wanted.end)
    return settled_at >= float(wanted.begin), settled_at < end, _ENTRIES.started_at < end + CLOCKS_DIFFER_S_MAX


def _began(span: Span) -> tuple[ColumnElement[bool], ...]:
    return _ENTRIES.started_at >= float(span.begin), _ENTRIES.started_at < float(span.end)


def _bucket(wanted: UsageFilter, dialect: Dialect, moment: str = "started_at") -> ColumnElement[Any]:
    """The beginning of an entry's bucket; Unix seconds. `moment`: the column of the time that counts."""
    if wanted.is_total:
        return whole_bucket(wanted)
    at = _WHOLE_S[dialect.name].format(moment)
    return literal_column(wanted.buckets.begin_sql(at, wanted.begin, wanted.end), BigInteger)


def whole_bucket(wanted: UsageFilter) -> ColumnElement[Any]:
    """The only bucket of a total."""
    return literal_column(str(wanted.begin), BigInteger)


def _group_names(wanted: UsageFilter) -> list[str]:
    return [f"by_{name}" for name in wanted.groups]


def _labels(groups: Iterable[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    return [literal_column(name) for name in ("bucket", *(str(group.key) for group in groups))]


def _ordered(query: Select[Any], wanted: UsageFilter) -> Select[Any]:
    names = ("bucket", *_group_names(wanted))
    first: list[ColumnElement[Any]] = [literal_column("charge").desc()] if wanted.is_total else []
    return query.order_by(*first, *map(literal_column, names))


def _begin_of(bucket: Any) -> int:
    """Unix seconds"""
    return (bucket - _EPOCH) // timedelta(seconds=1) if isinstance(bucket, date) else int(bucket)


def _totals(
    row: Mapping[str, Any],
    wanted: UsageFilter,
    non_requests: dict[tuple[Any, ...], int],
    unknown: dict[tuple[Any, ...], UnknownAmounts],
) -> UsageTotals:
    named = {name: row[f"by_{name}"] for name in wanted.groups}
    group = (begin := _begin_of(row["bucket"]), *named.values())
    unpriced, unknown_cost, unknown_charge = unknown.get(group, UnknownAmounts())
    return UsageTotals(
        begin=begin,
        key_id=named.get("key_id"),
        project_id=named.get("project_id"),
        model=named.get("model"),
        value_id=named.get("value_id"),
        organization_id=named.get("organization_id"),
        provider=named.get("provider"),
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
