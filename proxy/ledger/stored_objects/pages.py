"""Pages of a key's own objects, by the time of their creation.

Invariant: a page has objects of the key and of its project, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, literal, or_, select, tuple_

from proxy.billing.keys import DEFAULT_PROJECT, ApiKey
from proxy.ledger.schema.column_types import UtcTime
from proxy.metering.stored_objects.api import Order, PageAsked


class UnknownCursorError(Exception):
    """The first or last object of the requested page does not exist. The message is the object's id."""


def owned(table: Table, key: ApiKey) -> ColumnElement[bool]:
    """An SQL condition: `key.shares` is true for the row's owner."""
    mine = table.c.key_id == key.key_id
    return mine if key.project_id == DEFAULT_PROJECT else or_(mine, table.c.project_id == key.project_id)


def page(
    connection: Connection,
    columns: Sequence[ColumnElement[Any]],
    of: ColumnElement[str],
    where: ColumnElement[bool],
    asked: PageAsked,
) -> tuple[list[Any], bool]:
    """The columns of the rows of a page, and True if there are more in the page's direction. `of`: the column of ids;
    `where`: the condition of all pages. Raises UnknownCursorError."""
    at = next(column for column in columns if column.key == "created_at")
    backwards = asked.before is not None
    falling = (asked.order is Order.NEWEST_FIRST) != backwards
    if (cursor := asked.before if backwards else asked.after) is not None:
        created_at = connection.execute(select(at).where(where, of == cursor)).scalar_one_or_none()
        if created_at is None:
            raise UnknownCursorError(cursor)
        place, beyond = tuple_(at, of), tuple_(literal(created_at, UtcTime()), literal(cursor))
        where = and_(where, place < beyond if falling else place > beyond)
    order = [column.desc() if falling else column.asc() for column in (at, of)]
    rows = list(connection.execute(select(*columns).where(where).order_by(*order).limit(asked.limit + 1)))
    more, rows = len(rows) > asked.limit, rows[: asked.limit]
    return rows[::-1] if backwards else rows, more
