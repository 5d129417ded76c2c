"""Lookup of settled exchanges: one by id, or a filtered list in pages, newest first.

Invariant: a page scans at most SCANNED_MAX entries, with any filter; if more may match, it returns a cursor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, bindparam, select, tuple_

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.dimensions import Dimensions
from proxy.billing.entries import ENTRY_FIELDS, EntryKind, LedgerEntry
from proxy.ledger.schema.tables import ledger_entries
from proxy.reports.dimensions import DimensionFilter, ExchangePairs, stored_dimensions
from proxy.reports.usage import ID_EARLIER_S, id_from
from proxy.storage.database import reading

# The entries that a page scans for its filter; about 20 ms.
SCANNED_MAX = 5_000

_COLUMNS = ledger_entries.c
_WHOLE = tuple(_COLUMNS[name] for name in ENTRY_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFilter:
    """Selects exchanges that meet every condition that is not None. Times: Unix seconds of the start."""

    key_id: str | None = None
    model: str | None = None
    outcome: str | None = None
    usage_source: str | None = None
    since: float | None = None
    until: float | None = None
    dimensions: DimensionFilter = field(default_factory=dict)
    after: tuple[float, str] | None = None
    """cursor: start time and id of the last exchange already listed"""


@dataclass(frozen=True, slots=True)
class SettledExchange:
    """The entries of one exchange, the terminal entry first; its details list the failed attempts."""

    entries: tuple[LedgerEntry, ...]
    settled_at: tuple[float, ...]
    """settlement time of each entry; Unix seconds by the ledger's clock"""

    @property
    def terminal(self) -> LedgerEntry:
        """The entry written when the exchange ended."""
        return self.entries[0]

    @property
    def dimensions(self) -> Dimensions:
        """The dimensions of the request, with value ids."""
        return stored_dimensions(self.terminal.details)


def read_exchange(engine: Engine, exchange_id: str) -> SettledExchange | None:
    """The exchange; None without a terminal entry (unknown or not settled yet). Raises LedgerUnavailable."""
    with reading(engine) as connection:
        return _settled(connection, [exchange_id]).get(exchange_id)


def read_own_exchange(engine: Engine, key_id: str, named: str) -> SettledExchange | None:
    """The exchange of this key with the id `named`, or with this provider's response id among the key's SCANNED_MAX
    latest ones. None: there is none, or it is not settled yet. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        found = _settled(connection, [named]).get(named)
        if found is None:
            latest = _scan(ExchangeFilter(key_id=key_id)).add_columns(_COLUMNS.provider_response_id)
            scanned = latest.limit(SCANNED_MAX).subquery()
            by_response = select(scanned.c.exchange_id).where(scanned.c.provider_response_id == named).limit(1)
            exchange_id = connection.execute(by_response).scalar()
            found = None if exchange_id is None else _settled(connection, [exchange_id]).get(exchange_id)
    return found if found is not None and found.terminal.key_id == key_id else None


def read_exchanges(
    engine: Engine, wanted: ExchangeFilter, limit: int
) -> tuple[list[SettledExchange], tuple[float, str] | None]:
    """Up to `limit` exchanges, newest first, and the cursor of the next page (None at the end).

    Raises LedgerUnavailable.
    """
    with reading(engine) as connection:
        query = _scan_dimension(connection, wanted) if wanted.dimensions else _scan(wanted)
        scanned = connection.execute(query.limit(SCANNED_MAX)).all()
        matching = [row for row in scanned if _matches(row, wanted)]
        page = matching[:limit]
        unread = len(scanned) == SCANNED_MAX  # older entries were not scanned
        last: Any = page[-1] if len(matching) > limit else scanned[-1] if unread else None
        settled = _settled(connection, [row.exchange_id for row in page])
    listed = [settled[row.exchange_id] for row in page]
    return listed, None if last is None else (last.started_at, last.exchange_id)


def _scan(wanted: ExchangeFilter) -> Select[Any]:
    """Newest first, in index order: by start time for one key or model, otherwise by id (a UUIDv7 sorts by time)."""
    query = select(_COLUMNS.exchange_id, _COLUMNS.started_at, _COLUMNS.outcome, _COLUMNS.usage_source)
    query = query.where(_COLUMNS.kind == EntryKind.USAGE, *_span(wanted))
    if wanted.key_id is not None:
        query = query.where(_COLUMNS.key_id == wanted.key_id)
    if wanted.model is not None:
        query = query.where(_COLUMNS.model == wanted.model)
    if wanted.key_id is None and wanted.model is None:
        after = () if wanted.after is None else (_COLUMNS.exchange_id < wanted.after[1],)
        return query.where(*after).order_by(_COLUMNS.exchange_id.desc())
    if wanted.after is not None:
        cursor = tuple_(_COLUMNS.started_at, _COLUMNS.exchange_id)
        query = query.where(_COLUMNS.started_at <= wanted.after[0], cursor < wanted.after)
    return query.order_by(_COLUMNS.started_at.desc(), _COLUMNS.exchange_id.desc())


def _scan_dimension(connection: Connection, wanted: ExchangeFilter) -> Select[Any]:
    """The exchanges with a value of one of the dimensions, newest first. `_matches` checks the other conditions, so
    that one exchange is one row here."""
    dimension, value_ids = next(iter(wanted.dimensions.items()))
    bounds = [] if wanted.after is None else [("<", wanted.after[1])]
    bounds += [] if wanted.since is None else [(">=", id_from(wanted.since - ID_EARLIER_S))]
    bounds += [] if wanted.until is None else [("<", id_from(wanted.until))]
    newest = ExchangePairs(connection).newest(dimension, value_ids, bounds, SCANNED_MAX).subquery()
    fields = (_COLUMNS[name] for name in ("exchange_id", "started_at", "outcome", "usage_source", "key_id", "model"))
    query = select(*fields, _COLUMNS.details[detail_name(EntryDetails.dimensions)].label("dimensions"))
    query = query.select_from(ledger_entries.join(newest, newest.c.exchange_id == _COLUMNS.exchange_id))
    return query.where(_COLUMNS.kind == EntryKind.USAGE).order_by(_COLUMNS.exchange_id.desc())


def _matches(row: Any, wanted: ExchangeFilter) -> bool:
    if wanted.outcome not in (None, row.outcome) or wanted.usage_source not in (None, row.usage_source):
        return False
    if not wanted.dimensions:
        return True
    return (
        wanted.key_id in (None, row.key_id)
        and wanted.model in (None, row.model)
        and (wanted.since is None or row.started_at >= wanted.since)
        and (wanted.until is None or row.started_at < wanted.until)
        and all(row.dimensions.get(name) in value_ids for name, value_ids in wanted.dimensions.items())
    )


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


def _settled(connection: Connection, exchange_ids: Sequence[str]) -> dict[str, SettledExchange]:
    """Exchange id → exchange, for those that have a terminal entry."""
    query = select(*_WHOLE, _COLUMNS.settled_at).where(
        _COLUMNS.exchange_id.in_(bindparam("ids", expanding=True)),
        _COLUMNS.kind.not_in((EntryKind.CREDIT, EntryKind.ATTEMPT)),
    )
    rows: dict[str, list[tuple[LedgerEntry, float]]] = {}
    for row in connection.execute(query, {"ids": list(exchange_ids)}) if exchange_ids else ():
        entry = LedgerEntry(**dict(zip(ENTRY_FIELDS, row, strict=False)))
        rows.setdefault(entry.exchange_id, []).append((entry, row.settled_at))
    settled = {}
    for exchange_id, lines in rows.items():
        lines.sort(key=lambda line: (line[0].kind != EntryKind.USAGE, line[0].seq))
        if lines[0][0].kind == EntryKind.USAGE:
            entries, times = zip(*lines, strict=True)
            settled[exchange_id] = SettledExchange(tuple(entries), tuple(times))
    return settled
