"""The values of dimensions, and the value ids that stand for them everywhere else.

Invariants: a value id is random and belongs to one value of one dimension of one project; while the value is stored, it
has no other id. A value that was erased gets a new id when it comes again, so its earlier usage stays anonymous.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, Engine, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from proxy.billing.money import Nusd
from proxy.ledger.run_caps import RunOfKey, lower_cap, read_caps
from proxy.ledger.schema.tables import dimension_values
from proxy.ledger.settling.spend import batches
from proxy.storage.database import is_shared, reading, writing

# Values per statement: each has three parameters, of which SQLite takes some thousand.
VALUES_MAX = 300
_RANDOM_BYTES = 12

_COLUMNS = dimension_values.c
_KEY = (_COLUMNS.project_id, _COLUMNS.dimension, _COLUMNS.value)
_QUERY = select(_COLUMNS.value_id, *_KEY)


class DimensionValue(NamedTuple):
    """A value of one dimension, in one project."""

    project_id: str
    dimension: str
    value: str


class DimensionValues:
    """Reads, creates and erases values. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix seconds."""
        self._engine, self._clock = engine, clock

    def ids(
        self, wanted: Iterable[DimensionValue], may_create: Callable[[DimensionValue], bool]
    ) -> dict[DimensionValue, str]:
        """The value ids of these values. A value without an id gets one if `may_create` allows it, which is asked once
        for each such value; else it is left out."""
        every = sorted(set(wanted))  # in one order, so that two processes cannot deadlock
        with reading(self._engine) as connection:
            ids = _stored(connection, every)
        if new := [value for value in every if value not in ids and may_create(value)]:
            ids |= self._create(new)
        return ids

    def ids_of(self, project_id: str, values: Mapping[str, str]) -> dict[str, str]:
        """Dimension → value id, of these values of a project by their dimensions; each gets an id."""
        wanted = {dimension: DimensionValue(project_id, dimension, value) for dimension, value in values.items()}
        ids = self.ids(wanted.values(), lambda _: True) if wanted else {}
        return {dimension: ids[value] for dimension, value in wanted.items()}

    def names(self, value_ids: Collection[str]) -> dict[str, str]:
        """Value id → value, without the ids that have no value (any more)."""
        with reading(self._engine) as connection:
            return {
                row.value_id: row.value
                for ids in batches(value_ids, VALUES_MAX)
                for row in connection.execute(
                    select(_COLUMNS.value_id, _COLUMNS.value).where(_COLUMNS.value_id.in_(ids))
                )
            }

    def caps(self, value_ids: Collection[str]) -> dict[RunOfKey, Nusd]:
        """The caps of the runs with these value ids, of all keys."""
        return read_caps(self._engine, value_ids)

    def lower_cap(self, run: RunOfKey, cap_nusd: Nusd) -> Nusd:
        """Set the cap of a run, or lower it. Returns the cap."""
        return lower_cap(self._engine, run, cap_nusd, self._clock())

    def find(self, dimension: str, values: Collection[str], project_id: str | None = None) -> dict[str, DimensionValue]:
        """The value ids of any of these values, with project and value; of one project, or of all (None)."""
        query = _QUERY.where(_COLUMNS.dimension == dimension, _COLUMNS.value.in_(values))
        if project_id is not None:
            query = query.where(_COLUMNS.project_id == project_id)
        with reading(self._engine) as connection:
            return {value_id: DimensionValue(*value) for value_id, *value in connection.execute(query)}

    def erase(self, value_ids: Collection[str]) -> int:
        """Delete the values; the ids stay wherever they are. Returns how many there were."""
        erased = 0
        with writing(self._engine) as connection:
            if not is_shared(connection):
                connection.exec_driver_sql("PRAGMA secure_delete = ON")  # or the text stays in the file's free pages
            for ids in batches(value_ids, VALUES_MAX):
                erased += connection.execute(delete(dimension_values).where(_COLUMNS.value_id.in_(ids))).rowcount
        return erased

    def _create(self, new: Iterable[DimensionValue]) -> dict[DimensionValue, str]:
        now = self._clock()
        with writing(self._engine) as connection:
            insert = (postgresql if is_shared(connection) else sqlite).insert(dimension_values)
            rows = [{**value._asdict(), "value_id": _new_id(), "created_at": now} for value in new]
            connection.execute(insert.on_conflict_do_nothing(), rows)
            return _stored(connection, list(new))


def _new_id() -> str:
    return f"v_{secrets.token_urlsafe(_RANDOM_BYTES)}"


def _stored(connection: Connection, values: Collection[DimensionValue]) -> dict[DimensionValue, str]:
    rows = (
        row for some in batches(values, VALUES_MAX) for row in connection.execute(_QUERY.where(tuple_(*_KEY).in_(some)))
    )
    return {DimensionValue(*value): value_id for value_id, *value in rows}
