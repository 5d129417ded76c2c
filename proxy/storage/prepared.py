"""Statements compiled once. Law: nothing here knows what a statement means.

SQLAlchemy looks the compiled form up again at every execution and then works out every parameter of every row
by name; settling would spend more there than in the database. Types, quoting and dialects stay SQLAlchemy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
from sqlalchemy import Column, Connection, Dialect, String, Table, TypeDecorator, bindparam, cast, column, func, select
from sqlalchemy.dialects import postgresql, sqlite

OnConflict = Callable[[Any], Any]
"""INSERT → the same with ON CONFLICT, which SQLAlchemy keeps per dialect though both write the same words"""


class PreparedInsert(Protocol):
    """An insert of whole rows: every column of its table that is not computed, in the table's order."""

    def bound(self, rows: Iterable[Sequence[Any]]) -> Any:
        """`rows` (not none) as `execute` takes them: most of the work, and it needs no transaction.

        A bad row raises what its type raises.
        """

    def execute(self, connection: Connection, bound: Any) -> int:
        """Insert them → how many went in. A bad row raises what its driver raises."""


def prepared_insert(
    table: Table, on_conflict: OnConflict, dialect: Dialect, computed: Mapping[str, Any] = MappingProxyType({})
) -> PreparedInsert:
    """The fastest way there is into this database. `computed`: columns that the database works out, and how."""
    if dialect.name == "postgresql":
        return _JsonInsert(table, on_conflict, dialect, computed)
    return _ManyInserts(table, on_conflict, dialect, computed)


class _ManyInserts:
    """SQLite, which runs in this process: one short statement, many times."""

    def __init__(self, table: Table, on_conflict: OnConflict, dialect: Dialect, computed: Mapping[str, Any]) -> None:
        values = {c.name: computed.get(c.name, bindparam(c.name, type_=c.type)) for c in table.columns}
        self._sql = str(on_conflict(sqlite.insert(table).values(values)).compile(dialect=dialect))
        binders = [c.type.dialect_impl(dialect).bind_processor(dialect) for c in _given(table, computed)]
        self._binders = [(i, binder) for i, binder in enumerate(binders) if binder is not None]

    def bound(self, rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """As the protocol says."""
        return [self._parameters(row) for row in rows]

    def execute(self, connection: Connection, bound: list[tuple[Any, ...]]) -> int:
        """As the protocol says."""
        return connection.exec_driver_sql(self._sql, bound).rowcount

    def _parameters(self, row: Sequence[Any]) -> tuple[Any, ...]:
        values = list(row)
        for index, binder in self._binders:
            values[index] = binder(values[index])
        return tuple(values)


class _JsonInsert:
    """Postgres, which is far away: one statement with all rows in one parameter, as JSON.

    A quarter of what a parameter for each value costs this process, and one round trip.
    """

    def __init__(self, table: Table, on_conflict: OnConflict, dialect: Dialect, computed: Mapping[str, Any]) -> None:
        given = _given(table, computed)
        names = [str(c.name) for c in given]
        batch = cast(bindparam("batch", type_=String), postgresql.JSON)
        rows = func.json_to_recordset(batch).table_valued(*(column(c.name, c.type) for c in given), name="batch")
        source = select(*rows.render_derived(with_types=True).c, *computed.values())
        insert = postgresql.insert(table).from_select([*names, *computed], source)
        self._sql = str(on_conflict(insert).compile(dialect=dialect))
        self._row = msgspec.defstruct("Row", names)
        self._binders = [(i, binder) for i, c in enumerate(given) if (binder := _binder(c, dialect))]

    def bound(self, rows: Iterable[Sequence[Any]]) -> str:
        """As the protocol says."""
        return msgspec.json.encode([self._made(row) for row in rows]).decode()

    def execute(self, connection: Connection, bound: str) -> int:
        """As the protocol says."""
        return connection.exec_driver_sql(self._sql, {"batch": bound}).rowcount

    def _made(self, row: Sequence[Any]) -> msgspec.Struct:
        values = list(row)
        for index, binder in self._binders:
            values[index] = binder(values[index])
        return self._row(*values)


def _given(table: Table, computed: Mapping[str, Any]) -> list[Column[Any]]:
    """The columns that a row has a value for."""
    return [c for c in table.columns if c.name not in computed]


def _binder(one: Column[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """What makes of a value something that JSON can carry; a JSON column's is carried as it is."""
    kind = one.type
    return (lambda value: kind.process_bind_param(value, dialect)) if isinstance(kind, TypeDecorator) else None
