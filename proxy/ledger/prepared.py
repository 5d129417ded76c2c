"""Statements compiled once. Law: nothing here knows what a statement means.

SQLAlchemy looks the compiled form up again at every execution and then works out every parameter of every row
by name; settling would spend more there than in the database. Types, quoting and dialects stay SQLAlchemy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from sqlalchemy import Column, Connection, Dialect, String, Table, TypeDecorator, bindparam, cast, column, func, select
from sqlalchemy.dialects import postgresql, sqlite

OnConflict = Callable[[Any], Any]
"""INSERT → the same with ON CONFLICT, which SQLAlchemy keeps per dialect though both write the same words"""


class PreparedInsert(Protocol):
    """An insert of whole rows: every column of its table, in the table's order."""

    def execute(self, connection: Connection, rows: Iterable[Sequence[Any]]) -> int:
        """Insert all `rows` (not none) → how many went in. A bad row raises what its driver or type raises."""


def prepared_insert(table: Table, on_conflict: OnConflict, dialect: Dialect) -> PreparedInsert:
    """The fastest way there is into this database."""
    if dialect.name == "postgresql":
        return _JsonInsert(table, on_conflict, dialect)
    return _ManyInserts(table, on_conflict, dialect)


class _ManyInserts:
    """SQLite, which runs in this process: one short statement, many times."""

    def __init__(self, table: Table, on_conflict: OnConflict, dialect: Dialect) -> None:
        self._sql = str(on_conflict(sqlite.insert(table)).compile(dialect=dialect))
        binders = [c.type.dialect_impl(dialect).bind_processor(dialect) for c in table.columns]
        self._binders = [(i, binder) for i, binder in enumerate(binders) if binder is not None]

    def execute(self, connection: Connection, rows: Iterable[Sequence[Any]]) -> int:
        """As the protocol says."""
        return connection.exec_driver_sql(self._sql, [self._parameters(row) for row in rows]).rowcount

    def _parameters(self, row: Sequence[Any]) -> tuple[Any, ...]:
        values = list(row)
        for index, binder in self._binders:
            values[index] = binder(values[index])
        return tuple(values)


class _JsonInsert:
    """Postgres, which is far away: one statement with all rows in one parameter, as JSON.

    A quarter of what a parameter for each value costs this process, and one round trip.
    """

    def __init__(self, table: Table, on_conflict: OnConflict, dialect: Dialect) -> None:
        names = [str(c.name) for c in table.columns]
        batch = cast(bindparam("batch", type_=String), postgresql.JSON)
        rows = func.json_to_recordset(batch).table_valued(
            *(column(c.name, c.type) for c in table.columns), name="batch"
        )
        source = select(*rows.render_derived(with_types=True).c)
        self._sql = str(on_conflict(postgresql.insert(table).from_select(names, source)).compile(dialect=dialect))
        self._row = msgspec.defstruct("Row", names)
        self._binders = [(i, binder) for i, c in enumerate(table.columns) if (binder := _binder(c, dialect))]

    def execute(self, connection: Connection, rows: Iterable[Sequence[Any]]) -> int:
        """As the protocol says."""
        batch = msgspec.json.encode([self._made(row) for row in rows]).decode()
        return connection.exec_driver_sql(self._sql, {"batch": batch}).rowcount

    def _made(self, row: Sequence[Any]) -> msgspec.Struct:
        values = list(row)
        for index, binder in self._binders:
            values[index] = binder(values[index])
        return self._row(*values)


def _binder(one: Column[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """What makes of a value something that JSON can carry; a JSON column's is carried as it is."""
    kind = one.type
    return (lambda value: kind.process_bind_param(value, dialect)) if isinstance(kind, TypeDecorator) else None
