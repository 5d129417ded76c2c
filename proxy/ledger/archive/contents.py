"""The entries that an archive moves out of the ledger, and the sums and receipts that the ledger keeps of them.

Invariant: every result is a function of the entries of exchanges that began in a month or before. The guard
(schema/archive_guard.py) refuses new ones, so repeated reads are equal until the entries are removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Date,
    Engine,
    Table,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    type_coerce,
    update,
)

from proxy.billing.entries import EntryKind
from proxy.billing.period import Closings, Month
from proxy.ledger.amounts import rows_of, sums_of_entries, utc_day
from proxy.ledger.archive.archives import Archive
from proxy.ledger.schema.partitions import DEFAULT_PARTITION, first_id, partition_name, partitions
from proxy.ledger.schema.tables import archived_receipts, archived_sums, archives, exchange_dimensions, ledger_entries
from proxy.migrations.steps import LOCK_TIMEOUT, retried
from proxy.storage.database import is_shared, writing

Receipts = Sequence[tuple[str, int, int]]
"""(node, first, last journal seq) of consecutive receipts"""

# Rows of one transaction in which the only writer of SQLite does nothing else: a twentieth of a second, and then a
# pause as long.
BATCH_ROWS = 1_000

_ENTRIES = ledger_entries.c


def of_month(month: Month) -> ColumnElement[bool]:
    """An SQL condition: the entry belongs to the archive of the month."""
    return _ENTRIES.exchange_id < first_id(month.end)


def rows(connection: Connection, month: Month) -> Generator[Any]:
    """All columns of the entries, in the order of their exchanges."""
    return rows_of(connection, select(ledger_entries).where(of_month(month)).order_by(*ledger_entries.primary_key))


def totals(connection: Connection, month: Month) -> tuple[int, ...]:
    """The sums of the entries, in the order of the tables of sums."""
    query = select(*sums_of_entries(connection.dialect)).where(of_month(month))
    return tuple(int(value) for value in connection.execute(query).one())


def last_settled(connection: Connection, month: Month) -> float | None:
    """The settlement time of the last of the entries; Unix seconds."""
    latest: float | None = connection.execute(select(func.max(_ENTRIES.settled_at)).where(of_month(month))).scalar()
    return latest


def last_statements(connection: Connection, month: Month, closings: Closings) -> Month:
    """The last month with some of the entries on its statements."""
    later = or_(_ENTRIES.settled_at >= month.until, _ENTRIES.started_at >= month.until)
    query = select(_ENTRIES.kind, _ENTRIES.started_at, _ENTRIES.settled_at).where(of_month(month), later)
    return max((closings.posted_in(*row) for row in rows_of(connection, query)), default=month)


def kept_sums(connection: Connection, month: Month) -> list[dict[str, Any]]:
    """The rows of `archived_sums`."""
    of_entries = list(sums_of_entries(connection.dialect))
    credit = _ENTRIES.kind == EntryKind.CREDIT
    top_ups = select(_ENTRIES.key_id, *of_entries).where(of_month(month), credit).group_by(_ENTRIES.key_id)
    day = type_coerce(utc_day(_ENTRIES.started_at, connection.dialect), Date)
    later = select(day.label("day"), _ENTRIES.key_id, _ENTRIES.model, *of_entries)
    later = later.where(of_month(month), ~credit, _ENTRIES.started_at >= month.until)
    later = later.group_by(day, _ENTRIES.key_id, _ENTRIES.model)
    both = (
        (top_ups, {"month": str(month), "kind": EntryKind.CREDIT, "day": month.first, "model": ""}),
        (later, {"month": str(month), "kind": EntryKind.USAGE}),
    )
    return [{**more, **_plain(row)} for query, more in both for row in connection.execute(query)]


def _plain(row: Any) -> dict[str, Any]:
    """Sums as integers; Postgres adds up money and integers to decimals."""
    return {name: int(value) if isinstance(value, Decimal) else value for name, value in row._asdict().items()}


def receipts(connection: Connection, month: Month) -> Receipts:
    """The receipts of the entries."""
    numbered = select(
        _ENTRIES.node,
        _ENTRIES.journal_seq,
        (
            _ENTRIES.journal_seq - func.row_number().over(partition_by=_ENTRIES.node, order_by=_ENTRIES.journal_seq)
        ).label("run"),
    )
    run = numbered.where(of_month(month), _ENTRIES.node.is_not(None)).subquery().c
    query = select(run.node, func.min(run.journal_seq), func.max(run.journal_seq)).group_by(run.node, run.run)
    return [(node, first, last) for node, first, last in connection.execute(query)]


def record(engine: Engine, archive: Archive, sums: Sequence[Mapping[str, Any]], received: Receipts) -> None:
    """Record a complete archive. From then on no query reads its entries here. Raises LedgerUnavailable."""
    with writing(engine) as connection:
        row = {
            "month": str(archive.month),
            "statements_until": str(archive.statements_until),
            "entries": archive.entries,
            "file": archive.file,
            "sha256": archive.sha256,
            "archived_at": archive.archived_at,
            "archived_by": archive.archived_by,
        }
        connection.execute(insert(archives), row)
        if sums:
            connection.execute(insert(archived_sums), list(sums))
        keep_receipts(connection, received)


def keep_receipts(connection: Connection, received: Receipts) -> None:
    """Add to the archived receipts; adjacent ranges become one."""
    columns = archived_receipts.c
    for node, more in groupby(sorted(received), key=itemgetter(0)):
        there = connection.execute(select(columns.first_seq, columns.last_seq).where(columns.node == node))
        ranges = _joined([*((first, last) for _, first, last in more), *map(tuple, there)])
        connection.execute(delete(archived_receipts).where(columns.node == node))
        new = [{"node": node, "first_seq": first, "last_seq": last} for first, last in ranges]
        connection.execute(insert(archived_receipts), new)


def _joined(ranges: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def remove(engine: Engine, month: Month, now: float, say: Callable[[str], None]) -> None:
    """Delete the entries of a recorded archive, on Postgres also their partitions, and the dimensions of its exchanges.
    Idempotent: call it again after an interruption. `now`: Unix seconds. Raises LedgerUnavailable."""
    for name in _partitions_until(engine, month):
        retried(lambda: _drop(engine, name), name, say)  # noqa: B023  called at once
    for table in (ledger_entries, exchange_dimensions):
        while _delete_some(engine, table, month):
            pass
    with writing(engine) as connection:
        connection.execute(update(archives).where(archives.c.month == str(month)).values(removed_at=now))


def _partitions_until(engine: Engine, month: Month) -> list[str]:
    with engine.connect() as connection:
        if not is_shared(connection):
            return []
        last = partition_name(month.first)
        return [name for name in partitions(connection) if name != DEFAULT_PARTITION and name <= last]


def _drop(engine: Engine, name: str) -> None:
    with writing(engine) as connection:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        connection.exec_driver_sql(f"ALTER TABLE ledger_entries DETACH PARTITION {name}")
        connection.exec_driver_sql(f"DROP TABLE {name}")


def _delete_some(engine: Engine, table: Table, month: Month) -> bool:
    """Delete a batch of rows of exchanges of the archive; of entries, those that are in no monthly partition. False if
    none is left."""
    key, exchange_id = list(table.primary_key), table.c.exchange_id
    began = time.monotonic()
    with writing(engine) as connection:
        some = select(*key).where(exchange_id < first_id(month.end)).order_by(exchange_id).limit(BATCH_ROWS)
        found = connection.execute(delete(table).where(tuple_(*key).in_(some))).rowcount
    time.sleep(time.monotonic() - began)
    return found > 0
