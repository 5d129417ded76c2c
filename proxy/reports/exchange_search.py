"""Search for settled exchanges: a filtered list in pages.

Invariants:
- A page examines at most SCANNED_MAX entries, with any filter and in any order; if more may match, it returns a cursor.
- Conditions are checked in SQL. Exact ids are found by indexes, however many entries there are.
- An order by a value is that of the terminal entries, and ranks the SCANNED_MAX newest ones of the time span.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    FromClause,
    Select,
    and_,
    cast,
    func,
    literal,
    select,
    true,
    tuple_,
)

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import EntryKind
from proxy.ledger.amounts import nusd
from proxy.ledger.schema.tables import ledger_entries, stored_batches
from proxy.reports.dimensions import DimensionFilter, ExchangePairs
from proxy.reports.exchanges import SettledExchange, has_response_id, settled
from proxy.reports.key_list import contains
from proxy.reports.totals import keys_below
from proxy.reports.usage import ID_EARLIER_S, id_from
from proxy.storage.database import reading

# The entries that a page examines for its filter: at most a quarter of a second.
SCANNED_MAX = 100_000
# The exchanges of a dimension's value that a page examines: each is looked up.
PAIRS_MAX = 5_000
# Exchanges with one id of a provider: an id is unique there, but several providers may use the same one.
NAMED_MAX = 100

_COLUMNS, _BATCHES = ledger_entries.c, stored_batches.c
_ID = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}", re.ASCII)
_BATCH_ID = _COLUMNS.details[detail_name(EntryDetails.batch_id)].as_string()


class ExchangeOrder(StrEnum):
    """The orders of a list, each with the highest value first."""

    STARTED = "started"
    CHARGE = "charge"
    DURATION = "duration"
    OUTPUT = "output"
    """completion tokens"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFilter:
    """Selects exchanges that meet every condition that is not None. Times: Unix seconds of the start."""

    text: str | None = None
    """the id of the exchange or its beginning, the provider's id of the response or of the batch, or a part of the
    key's alias or of the model's name, in any case"""
    key_id: str | None = None
    project_id: str | None = None
    organization_id: str | None = None
    model: str | None = None
    provider: str | None = None
    outcome: str | None = None
    usage_source: str | None = None
    batch_id: str | None = None
    """the provider's id of the batch: the batch itself and its lines"""
    since: float | None = None
    until: float | None = None
    dimensions: DimensionFilter = field(default_factory=dict)
    order: ExchangeOrder = ExchangeOrder.STARTED
    after: tuple[float, str] | None = None
    """cursor: the value in the order (Unix seconds, nUSD, ms or tokens) and the id of the last exchange already
    listed"""


def read_exchanges(
    engine: Engine, wanted: ExchangeFilter, limit: int
) -> tuple[list[SettledExchange], tuple[float, str] | None]:
    """Up to `limit` exchanges in the requested order, and the cursor of the next page (None at the end).

    Raises LedgerUnavailable.
    """
    with reading(engine) as connection:
        wanted = _of_batch(connection, wanted)
        named = _named(connection, wanted)
        if named is not None:
            wanted = replace(wanted, text=None)
        scan = _scan_dimension if wanted.dimensions else _scan
        ids, cursor = _page(connection, scan(connection, wanted, named), wanted, limit)
        found = settled(connection, ids)
    return [found[exchange_id] for exchange_id in ids], cursor


def _page(
    connection: Connection, source: Select[Any], wanted: ExchangeFilter, limit: int
) -> tuple[list[str], tuple[float, str] | None]:
    """The ids of a page, and the cursor of the next one. `source`: entries in the order of an index."""
    is_by_time = wanted.order is ExchangeOrder.STARTED
    scanned_max = PAIRS_MAX if wanted.dimensions else SCANNED_MAX
    examined = source.limit(scanned_max).subquery("examined")
    query = select(examined.c.exchange_id, examined.c.value).where(examined.c.matches)
    if not is_by_time:
        if wanted.after is not None:
            after = literal(wanted.after[0]), literal(wanted.after[1])
            query = query.where(tuple_(examined.c.value, examined.c.exchange_id) < tuple_(*after))
        query = query.order_by(examined.c.value.desc(), examined.c.exchange_id.desc())
    rows = connection.execute(query.limit(limit + 1)).all()
    page = rows[:limit]
    last: Any = page[-1] if len(rows) > limit else None
    if last is None and is_by_time:  # older entries may not have been examined
        last = connection.execute(source.offset(scanned_max - 1).limit(1)).one_or_none()
    return [row.exchange_id for row in page], None if last is None else (last.value, last.exchange_id)


def _of_batch(connection: Connection, wanted: ExchangeFilter) -> ExchangeFilter:
    """The filter with what is known of its batch: its key, and its creation. A batch is searched for by its id in
    `text`, too."""
    batch_id = wanted.batch_id or wanted.text
    if batch_id is None:
        return wanted
    query = select(_BATCHES.key_id, _BATCHES.created_at).where(_BATCHES.batch_id == batch_id)
    batch = connection.execute(query).one_or_none()
    if batch is None:
        return wanted
    since = batch.created_at - ID_EARLIER_S
    return replace(
        wanted,
        batch_id=batch_id,
        text=None if wanted.batch_id is None else wanted.text,
        key_id=wanted.key_id or batch.key_id,
        since=since if wanted.since is None else max(since, wanted.since),
    )


def _named(connection: Connection, wanted: ExchangeFilter) -> ColumnElement[bool] | None:
    """An SQL condition, if the text is the id of an exchange, or its beginning, or of a provider's response."""
    if wanted.text is None:
        return None
    if _ID.fullmatch(wanted.text):
        begins = and_(_COLUMNS.exchange_id >= wanted.text, _COLUMNS.exchange_id < f"{wanted.text}g")
        if connection.execute(select(_COLUMNS.exchange_id).where(begins).limit(1)).first():
            return begins
    by_response = select(_COLUMNS.exchange_id).where(has_response_id(wanted.text)).limit(NAMED_MAX)
    ids = connection.execute(by_response).scalars().all()
    return _COLUMNS.exchange_id.in_(ids) if ids else None


def _scan(connection: Connection, wanted: ExchangeFilter, named: ColumnElement[bool] | None) -> Select[Any]:
    """Newest first, in index order: by start time for one key or model, otherwise by id (a UUIDv7 sorts by time)."""
    where = [_COLUMNS.kind == EntryKind.USAGE, *_span(wanted), *_indexed(wanted)]
    by_start = named is None and (wanted.key_id is not None or wanted.model is not None)
    if named is not None:
        where.append(named)
    if wanted.after is not None and wanted.order is ExchangeOrder.STARTED:
        if by_start:
            cursor = tuple_(_COLUMNS.started_at, _COLUMNS.exchange_id)
            where += [_COLUMNS.started_at <= wanted.after[0], cursor < wanted.after]
        else:
            where.append(_COLUMNS.exchange_id < wanted.after[1])
    query = _selected(connection, ledger_entries, wanted).where(*where)
    if by_start:
        return query.order_by(_COLUMNS.started_at.desc(), _COLUMNS.exchange_id.desc())
    return query.order_by(_COLUMNS.exchange_id.desc())


def _scan_dimension(connection: Connection, wanted: ExchangeFilter, named: ColumnElement[bool] | None) -> Select[Any]:
    """The newest exchanges with a value of one of the dimensions."""
    pairs = ExchangePairs(connection)
    (dimension, value_ids), *others = wanted.dimensions.items()
    is_by_time = wanted.order is ExchangeOrder.STARTED
    bounds = [("<", wanted.after[1])] if wanted.after is not None and is_by_time else []
    bounds += [] if wanted.since is None else [(">=", id_from(wanted.since - ID_EARLIER_S))]
    bounds += [] if wanted.until is None else [("<", id_from(wanted.until))]
    newest = pairs.newest(dimension, value_ids, bounds, PAIRS_MAX).subquery()
    more = [*_indexed(wanted), *_span(wanted), *pairs.of_entries(dict(others)), *([] if named is None else [named])]
    joined = ledger_entries.join(newest, newest.c.exchange_id == _COLUMNS.exchange_id)
    query = _selected(connection, joined, wanted, *more).where(_COLUMNS.kind == EntryKind.USAGE)
    return query.order_by(_COLUMNS.exchange_id.desc())


def _indexed(wanted: ExchangeFilter) -> list[ColumnElement[bool]]:
    given = ((_COLUMNS.key_id, wanted.key_id), (_COLUMNS.model, wanted.model))
    return [column == value for column, value in given if value is not None]


def _selected(
    connection: Connection, rows: FromClause, wanted: ExchangeFilter, *conditions: ColumnElement[bool]
) -> Select[Any]:
    """Selects the id, the value in the order, and whether the entry meets the conditions that no index answers."""
    given = (
        (_COLUMNS.provider, wanted.provider),
        (_COLUMNS.outcome, wanted.outcome),
        (_COLUMNS.usage_source, wanted.usage_source),
        (_BATCH_ID, wanted.batch_id),
    )
    every = [*conditions, *(column == value for column, value in given if value is not None)]
    accounts = (wanted.project_id, wanted.organization_id)
    every += [_COLUMNS.key_id.in_(keys_below(one)) for one in accounts if one is not None]
    if wanted.text is not None:
        every.append(contains(wanted.text, _COLUMNS.key_alias, _COLUMNS.model))
    value = _value(wanted.order, connection.dialect).label("value")
    return select(_COLUMNS.exchange_id, value, and_(true(), *every).label("matches")).select_from(rows)


def _value(order: ExchangeOrder, dialect: Dialect) -> ColumnElement[Any]:
    """The value that a list is ordered by; 0: unknown."""
    if order is ExchangeOrder.STARTED:
        return _COLUMNS.started_at
    if order is ExchangeOrder.CHARGE:
        return func.coalesce(cast(nusd("charge_usd", dialect), BigInteger), 0)
    if order is ExchangeOrder.DURATION:
        return cast(_COLUMNS.duration_ms, BigInteger)
    return func.coalesce(_COLUMNS.completion_tokens, 0)


def _span(wanted: ExchangeFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.since is not None:
        conditions += [
            _COLUMNS.started_at >= wanted.since,
            _COLUMNS.exchange_id >= id_from(wanted.since - ID_EARLIER_S),
        ]
    if wanted.until is not None:
        conditions += [_COLUMNS.started_at < wanted.until, _COLUMNS.exchange_id < id_from(wanted.until)]
    return conditions
