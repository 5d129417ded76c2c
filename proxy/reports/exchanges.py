"""Lookup of settled exchanges by their ids, or by their providers' ids. Invariant: each is found by an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Engine, and_, bindparam, select, text

from proxy.billing.dimensions import Dimensions
from proxy.billing.entries import ENTRY_FIELDS, EntryKind, LedgerEntry
from proxy.ledger.schema.tables import ledger_entries
from proxy.reports.dimensions import stored_dimensions
from proxy.storage.database import reading

_COLUMNS = ledger_entries.c
# A literal, not a parameter: only then does the planner use the partial index with this condition.
_IS_USAGE = text(f"ledger_entries.kind = '{EntryKind.USAGE}'")
_WHOLE = tuple(_COLUMNS[name] for name in ENTRY_FIELDS)


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
        return settled(connection, [exchange_id]).get(exchange_id)


def read_own_exchange(engine: Engine, key_id: str, named: str) -> SettledExchange | None:
    """The exchange of this key with the id `named`, or with this provider's response id. None: there is none, or it is
    not settled yet. Raises LedgerUnavailable."""
    own = _COLUMNS.key_id == key_id
    with reading(engine) as connection:
        found = settled(connection, [named]).get(named)
        if found is None:
            by_response = select(_COLUMNS.exchange_id).where(has_response_id(named), own).limit(1)
            exchange_id = connection.execute(by_response).scalar()
            found = None if exchange_id is None else settled(connection, [exchange_id]).get(exchange_id)
    return found if found is not None and found.terminal.key_id == key_id else None


def has_response_id(response_id: str) -> ColumnElement[bool]:
    """An SQL condition: the terminal entry of an answer with this id of its provider; by an index."""
    return and_(_IS_USAGE, _COLUMNS.provider_response_id == response_id)


def settled(connection: Connection, exchange_ids: Sequence[str]) -> dict[str, SettledExchange]:
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
