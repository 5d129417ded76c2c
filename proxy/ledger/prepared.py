"""Statements compiled once. Law: nothing here knows what a statement means.

SQLAlchemy looks the compiled form up again at every execution and then works out every parameter of every row
by name; settling would spend more there than in the database. Types, quoting and dialects stay SQLAlchemy's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Insert, Select, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_into(table: Table, dialect: Dialect) -> Any:
    """INSERT with ON CONFLICT, which SQLAlchemy keeps per dialect though both write the same words."""
    return postgresql.insert(table) if dialect.name == "postgresql" else sqlite.insert(table)


class PreparedInsert:
    """An insert of whole rows: every column of its table, in the table's order."""

    def __init__(self, statement: Insert, table: Table, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self._sql = str(compiled)
        self._names = [column.name for column in table.columns]
        self._positional = compiled.positional
        binders = [c.type.dialect_impl(dialect).bind_processor(dialect) for c in table.columns]
        self._binders = [(i, binder) for i, binder in enumerate(binders) if binder is not None]

    def execute(self, connection: Connection, rows: Iterable[Sequence[Any]]) -> int:
        """Insert all `rows` (not none) → how many went in. A bad row raises what its driver or type raises."""
        return connection.exec_driver_sql(self._sql, [self._parameters(row) for row in rows]).rowcount

    def _parameters(self, row: Sequence[Any]) -> Any:
        values = list(row)
        for index, binder in self._binders:
            values[index] = binder(values[index])
        return tuple(values) if self._positional else dict(zip(self._names, values, strict=True))


class PreparedScalar:
    """A query without parameters for one value."""

    def __init__(self, statement: Select[Any], dialect: Dialect) -> None:
        self._sql = str(statement.compile(dialect=dialect))
        column = next(iter(statement.selected_columns))
        self._result = column.type.dialect_impl(dialect).result_processor(dialect, None)

    def execute(self, connection: Connection) -> Any:
        """The value, or None."""
        value = connection.exec_driver_sql(self._sql).scalar()
        return self._result(value) if self._result else value
