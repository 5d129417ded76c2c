"""INSERT statements compiled once, for any table.

SQLAlchemy looks up the compiled form at every execution and then computes every parameter of every row by name;
settling would spend more time there than in the database. SQLAlchemy still provides types, quoting and SQL dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    Dialect,
    LargeBinary,
    String,
    Table,
    TypeDecorator,
    bindparam,
    cast,
    column,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

OnConflict = Callable[[Any], Any]
"""adds ON CONFLICT to an INSERT; SQLAlchemy has one function per SQL dialect, although the syntax is equal"""


class PreparedInsert(Protocol):
    """An insert of whole rows: every column of its table that is not computed, in the table's order."""

    def bound(self, rows: Iterable[Sequence[Any]]) -> Any:
        """At least one row → the parameters for `execute`. Most of the work; it needs no transaction.

        A bad row raises its column type's error.
        """

    def execute(self, connection: Connection, bound: Any) -> int:
        """Insert the bound rows, and return the number of inserted rows. A bad row raises the driver's error."""


def prepared_insert(
    table: Table, on_conflict: OnConflict, dialect: Dialect, computed: Mapping[str, Any] = MappingProxyType({})
) -> PreparedInsert:
    """The fastest insert for this database. `computed`: key of a column → SQL expression that computes it."""
    if dialect.name == "postgresql":
        return _JsonInsert(table, on_conflict, dialect, computed)
    return _ManyInserts(table, on_conflict, dialect, computed)


class _ManyInserts:
    """SQLite, in this process: one short statement, executed many times."""

    def __init__(self, table: Table, on_conflict: OnConflict, dialect: Dialect, computed: Mapping[str, Any]) -> None:
        values = {c.key: computed.get(c.key, bindparam(c.key, type_=c.type)) for c in table.columns}
        self._sql = str(on_conflict(sqlite.insert(table).values(values)).compile(dialect=dialect))
        binders = [c.type.dialect_impl(dialect).bind_processor(dialect) for c in _input_columns(table, computed)]
        self._binders = [(i, binder) for i, binder in enumerate(binders) if binder is not None]

    def bound(self, rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
        return [self._parameters(row) for row in rows]

    def execute(self, connection: Connection, bound: list[tuple[Any, ...]]) -> int:
        return connection.exec_driver_sql(self._sql, bound).rowcount

    def _parameters(self, row: Sequence[Any]) -> tuple[Any, ...]:
        values = list(row)
        for index, binder in self._binders:
            values[index] = binder(values[index])
        return tuple(values)


class _JsonInsert:
    """Postgres, over the network: one statement with all rows in one JSON parameter.

    One round trip, and a quarter of the CPU time that a parameter for each value takes in this process.
    """

    def __init__(self, table: Table, on_conflict: OnConflict, dialect: Dialect, computed: Mapping[str, Any]) -> None:
        columns = _input_columns(table, computed)
        names = [str(c.key) for c in columns]
        batch = cast(bindparam("batch", type_=String), postgresql.JSON)
        rows = func.json_to_recordset(batch).table_valued(*(column(c.key, c.type) for c in columns), name="batch")
        source = select(*rows.render_derived(with_types=True).c, *computed.values())
        insert = postgresql.insert(table).from_select([*names, *computed], source)
        self._sql = str(on_conflict(insert).compile(dialect=dialect))
        self._row = msgspec.defstruct("Row", names)
        self._binders = [(i, binder) for i, c in enumerate(columns) if (binder := _binder(c, dialect))]

    def bound(self, rows: Iterable[Sequence[Any]]) -> str:
        return msgspec.json.encode([self._json_row(row) for row in rows]).decode()

    def execute(self, connection: Connection, bound: str) -> int:
        return connection.exec_driver_sql(self._sql, {"batch": bound}).rowcount

    def _json_row(self, row: Sequence[Any]) -> msgspec.Struct:
        values = list(row)
        for index, binder in self._binders:
            values[index] = binder(values[index])
        return self._row(*values)


def _input_columns(table: Table, computed: Mapping[str, Any]) -> list[Column[Any]]:
    """The columns for which each row has a value."""
    return [c for c in table.columns if c.key not in computed]


def _binder(one: Column[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """Converts a value to a JSON type; None if the column needs no conversion."""
    kind = one.type
    if isinstance(kind, LargeBinary):
        return lambda value: None if value is None else f"\\x{value.hex()}"
    return (lambda value: kind.process_bind_param(value, dialect)) if isinstance(kind, TypeDecorator) else None
