"""Dimensions as reports show them, and the conditions of filters by them.

Invariants: an exchange has a dimension from its settlement on, whether it is in `exchange_dimensions` or not yet.
Corrections and failed attempts have the dimensions of their exchange. The values are those of now: an erased value is
shown by its id.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Engine, FromClause, Select, func, select, union_all

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.dimensions import END_USER, OVERFLOW, Dimensions, hashed, value_of
from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.billing.limit_rules import CAP_ID
from proxy.ledger.dimensions.sums import dimensions_of
from proxy.ledger.dimensions.values import DimensionValues
from proxy.ledger.schema.tables import dimension_clock, exchange_dimensions, ledger_entries
from proxy.ledger.settling.spend import IDS_MAX, batches
from proxy.ledger.settling.sum_clocks import added_until
from proxy.storage.database import reading

NONE = "(none)"
"""shown for usage without the dimension"""
OTHER = "(other)"
"""shown for values without an id of their own"""

DimensionFilter = Mapping[str, Collection[str]]
"""dimension → the value ids of which an exchange has one; all of these dimensions"""

_VALUE_ID = re.compile(r"(?:\(erased )?(v_[A-Za-z0-9_-]{16})\)?", re.ASCII)
_ENTRIES, _PAIRS = ledger_entries.c, exchange_dimensions.c


class ShownDimension(NamedTuple):
    """One dimension of an exchange, or of a group."""

    value_id: str
    value: str | None
    """the text that the client sent; None: erased, an overflow, or the cap of a narrowed key"""

    @property
    def text(self) -> str:
        """The value for people."""
        if self.value_id == OVERFLOW:
            return OTHER
        if self.value_id.startswith(CAP_ID):
            return self.value_id
        return f"(erased {self.value_id})" if self.value is None else self.value

    @property
    def text_with_id(self) -> str:
        """The value for people, and its id."""
        return self.text if self.value is None else f"{self.value} ({self.value_id})"


class ValueReader:
    """Looks up the values of ids, and the ids of values. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, pepper: bytes | None) -> None:
        """`pepper`: that of the keys, where end users are stored as a hash; else None."""
        self._values = DimensionValues(engine)
        self._pepper = pepper

    def shown(self, value_ids: Iterable[str]) -> dict[str, ShownDimension]:
        """Value id → the value in the form that reports show."""
        ids = set(value_ids)
        names = self._values.names(ids - {OVERFLOW})
        return {value_id: ShownDimension(value_id, names.get(value_id)) for value_id in ids}

    def ids(self, dimension: str, texts: Iterable[str]) -> set[str]:
        """The value ids of these values in all projects. A text that a report shows in place of a value, as an erased
        one's id, is understood too."""
        given = set(texts)
        values = {value for text in given if (value := value_of(text))}
        if self._pepper is not None and dimension == END_USER:
            values |= {hashed(value, self._pepper) for value in values}
        ids = {match[1] for text in given if (match := _VALUE_ID.fullmatch(text))}
        return ids.union({OVERFLOW} if OTHER in given else (), self._values.find(dimension, values))


def stored_dimensions(details: Any) -> Dimensions:
    """The dimensions in a terminal entry's details; empty without any, and for unreadable details."""
    found = EntryDetails.of(details).dimensions
    return (
        {name: value_id for name, value_id in found.items() if isinstance(value_id, str)}
        if isinstance(found, Mapping)
        else {}
    )


def of_exchanges(engine: Engine, exchange_ids: Collection[str]) -> dict[str, Dimensions]:
    """Exchange id → dimensions, of those exchanges that have some. Raises LedgerUnavailable."""
    column = _ENTRIES.details[detail_name(EntryDetails.dimensions)]
    query = select(_ENTRIES.exchange_id, _ENTRIES.details).where(_ENTRIES.kind == EntryKind.USAGE, column.is_not(None))
    with reading(engine) as connection:
        rows = (
            row
            for ids in batches(exchange_ids, IDS_MAX)
            for row in connection.execute(query.where(_ENTRIES.exchange_id.in_(ids)))
        )
        return {exchange_id: found for exchange_id, details in rows if (found := stored_dimensions(details))}


def of_entries(
    engine: Engine, entries: Collection[LedgerEntry], values: ValueReader | None = None
) -> dict[str, dict[str, str]]:
    """Exchange id → dimensions of the exchanges of these entries, with value ids; with `values`, with the value of each
    id that has one. Raises LedgerUnavailable."""
    found = {entry.exchange_id: stored_dimensions(entry.details) for entry in entries if entry.kind == EntryKind.USAGE}
    found |= of_exchanges(engine, {entry.exchange_id for entry in entries} - found.keys())
    names: dict[str, str] = {}
    if values is not None:
        shown = values.shown(value_id for dimensions in found.values() for value_id in dimensions.values())
        names = {one.value_id: one.value for one in shown.values() if one.value is not None}
    return {
        exchange_id: {name: names.get(value_id, value_id) for name, value_id in dimensions.items()}
        for exchange_id, dimensions in found.items()
    }


class ExchangePairs:
    """The dimensions of all exchanges, in one transaction."""

    def __init__(self, connection: Connection) -> None:
        """Raises LedgerUnavailable."""
        later = _ENTRIES.settled_at > added_until(connection, dimension_clock)
        self._later = dimensions_of(later, connection.dialect)

    def of_entries(self, wanted: DimensionFilter) -> list[ColumnElement[bool]]:
        """SQL conditions: the entry's exchange has these dimensions."""
        return [_ENTRIES.exchange_id.in_(self.exchanges(name, ids)) for name, ids in wanted.items()]

    def exchanges(self, dimension: str, value_ids: Collection[str]) -> Any:
        """Selects the ids of the exchanges with one of these values."""
        later = self._later.subquery()
        return union_all(*(
            select(pairs.exchange_id).where(pairs.dimension == dimension, pairs.value_id.in_(sorted(value_ids)))
            for pairs in (_PAIRS, later.c)
        ))  # fmt: skip

    def newest(
        self, dimension: str, value_ids: Collection[str], bounds: Iterable[tuple[str, str]], count: int
    ) -> Select[Any]:
        """Selects the ids of the newest exchanges with one of these values. `bounds`: comparisons with the id."""
        later = self._later.subquery()
        wanted = [
            select(pairs.exchange_id)
            .where(pairs.dimension == dimension, pairs.value_id.in_(sorted(value_ids)))
            .where(*(pairs.exchange_id.op(compared, is_comparison=True)(to) for compared, to in bounds))
            for pairs in (_PAIRS, later.c)
        ]
        # Each in the order of the index, so that not all exchanges of a value are read.
        each = (select(query.order_by(query.selected_columns[0].desc()).limit(count).subquery()) for query in wanted)
        every = union_all(*each).subquery()
        return select(every.c.exchange_id).order_by(every.c.exchange_id.desc()).limit(count)

    def joined(self, entries: FromClause, dimension: str) -> tuple[FromClause, ColumnElement[Any]]:
        """The entries joined with their dimension, and its value id; null: the exchange does not have it."""
        stored, later = unindexed(exchange_dimensions), self._later.subquery()
        for pairs in (stored, later):
            same = (pairs.c.exchange_id == _ENTRIES.exchange_id) & (pairs.c.dimension == dimension)
            entries = entries.outerjoin(pairs, same)
        return entries, func.coalesce(stored.c.value_id, later.c.value_id)


def unindexed(pairs: FromClause) -> FromClause:
    """Returns equal rows, without an index on dimension or value: with it, SQLite would read all exchanges of a
    dimension instead of the requested ones."""
    columns = (
        column.concat("").label(column.key) if column.key in ("dimension", "value_id") else column for column in pairs.c
    )
    return select(*columns).subquery()


def dimensions_text(dimensions: Dimensions, shown: Mapping[str, ShownDimension]) -> str:
    """`end_user alice (v_…), tag:team red (v_…)`; empty without dimensions. `shown`: by value id."""
    return ", ".join(f"{name} {shown[value_id].text_with_id}" for name, value_id in sorted(dimensions.items()))
