"""Finds the values that an operator erases, and where their ids are.

Invariant: erasing deletes values and nothing else: it changes no entry, digest, sum or amount.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, false, func, select, true, union_all

from proxy.billing.dimensions import END_USER, hashed
from proxy.billing.entries import EntryKind
from proxy.foundation.times import iso_utc
from proxy.ledger.archive.archives import read_archives
from proxy.ledger.dimensions.sums import dimensions_of, later_usage
from proxy.ledger.dimensions.values import DimensionValues
from proxy.ledger.schema.tables import (
    acts,
    dimension_clock,
    dimension_daily,
    dimension_values,
    exchange_dimensions,
    ledger_entries,
    sinks,
)
from proxy.ledger.settling.sum_clocks import added_until
from proxy.storage.database import reading

EXPORT = "export"
"""the action, in the audit log, of an export that contains values and their ids"""
ERASE = "dimension.erase"

_ENTRIES = ledger_entries.c


@dataclass(frozen=True, slots=True)
class ValueTraces:
    """What contains some value ids."""

    exchanges: int
    """the number of exchanges in the ledger; those of archived months are not counted"""
    months: dict[str, int]
    """month → number of its entries, including archived ones"""
    archives: list[str]
    """the files of archived months"""
    sinks: list[str]
    """the sinks that have passed one of these entries"""
    exports: list[str]
    """exports with values since the creation of these values: time, operator, command line"""


@dataclass(frozen=True, slots=True)
class ErasableValue:
    """A value of one dimension, in one project or in several."""

    dimension: str
    projects: list[str]
    value_ids: list[str]
    traces: ValueTraces

    @property
    def audited(self) -> dict[str, Any]:
        """The fields for the audit log; the value is not among them."""
        return {"dimension": self.dimension, "projects": self.projects, "value_ids": self.value_ids}


def read_erasable(
    engine: Engine, dimension: str, value: str, pepper: bytes, project_id: str | None
) -> ErasableValue | None:
    """A value as `value_of` returns it, or as a hash by the pepper of the keys; of one project, or of all (None). None:
    it is not stored, or was erased. Raises LedgerUnavailable."""
    forms = [value, hashed(value, pepper)] if dimension == END_USER else [value]
    found = DimensionValues(engine).find(dimension, forms, project_id)
    if not found:
        return None
    projects = sorted({one.project_id for one in found.values()})
    return ErasableValue(dimension, projects, sorted(found), _traces(engine, found))


def _traces(engine: Engine, value_ids: Collection[str]) -> ValueTraces:
    """The traces of values that are not erased yet. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        months = _months(connection, value_ids)
        exchanges, first = connection.execute(_exchanges(connection, value_ids)).one()
        archived = [one.file for one in read_archives(connection) if str(one.month) in months]
        # An archive contains only what every sink has passed.
        passed = true() if archived else false() if first is None else sinks.c.settled_at >= first
        made = select(func.min(dimension_values.c.created_at)).where(dimension_values.c.value_id.in_(value_ids))
        exports = select(acts.c.at, acts.c.actor, acts.c.details).order_by(acts.c.act_id)
        exports = exports.where(acts.c.action == EXPORT, acts.c.at >= made.scalar_subquery())
        return ValueTraces(
            exchanges=exchanges,
            months=months,
            archives=archived,
            sinks=list(connection.execute(select(sinks.c.name).where(passed).order_by(sinks.c.name)).scalars()),
            exports=[_export(*row) for row in connection.execute(exports)],
        )


def _export(at: float, actor: str, details: Any) -> str:
    typed = details.get("typed", ()) if isinstance(details, dict) else ()
    return f"{iso_utc(at)} by {actor}: {' '.join(map(str, typed)) or EXPORT}"


def _months(connection: Connection, value_ids: Collection[str]) -> dict[str, int]:
    """Month → entries, in the order of the months."""
    every = union_all(select(dimension_daily), *later_usage(connection)).subquery().c
    query = select(every.day, func.sum(every.entries)).where(every.value_id.in_(value_ids)).group_by(every.day)
    months = Counter[str]()
    for day, entries in connection.execute(query.order_by(every.day)):
        months[str(day)[:7]] += int(entries)
    return dict(months)


def _exchanges(connection: Connection, value_ids: Collection[str]) -> Any:
    """Selects the number of exchanges, and when the first of them was settled."""
    later = _ENTRIES.settled_at > added_until(connection, dimension_clock)
    named = dimensions_of(later, connection.dialect).subquery().c
    ids = union_all(*(
        select(pairs.exchange_id).where(pairs.value_id.in_(value_ids)) for pairs in (exchange_dimensions.c, named)
    ))  # fmt: skip
    return select(func.count(), func.min(_ENTRIES.settled_at)).where(
        _ENTRIES.kind == EntryKind.USAGE, _ENTRIES.exchange_id.in_(ids)
    )
