"""Copies a ledger on SQLite into a database on Postgres.

Invariants: the source is only read, in one snapshot; its write lock is held during the copy. The row of `ledger_clock`
is copied last, after all other rows were compared with the source's: nothing can be settled in a ledger without it.
Each batch is one transaction, so a copy that was interrupted is continued by another run. An entry of the target is
never changed.

Every table of the schema is copied, whatever it has: there is no list to forget a new one in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, exc, func, insert, select, tuple_

from proxy.billing.keys import DEFAULT_ORGANIZATION, DEFAULT_PROJECT
from proxy.ledger.archive.archives import archived_until
from proxy.ledger.schema.account_tables import accounts, grant_clock
from proxy.ledger.schema.archive_guard import refuse_until
from proxy.ledger.schema.migrate import OutdatedLedgerError, is_newest
from proxy.ledger.schema.partitions import add_months, months_of_entries
from proxy.ledger.schema.tables import account_clock, dimension_clock, ledger_clock, ledger_entries, metadata
from proxy.ledger.transfer.comparing import (
    DifferentLedgerError,
    LedgerSums,
    batches,
    key_of,
    require_equal_rows,
    require_equal_sums,
)
from proxy.storage.database import outside_transactions, refused_row, writing
from proxy.storage.postgres import primary_message
from proxy.storage.prepared import PreparedInsert, prepared_insert

Progress = Callable[[str, str, int, int], None]
"""receives the current step (`copying`, `comparing`), the unit of the numbers, how many so far, and of all"""

# The entries first: they show whether the target is an interrupted copy, or the ledger of another deployment.
_TABLES = (ledger_entries, *(table for table in metadata.sorted_tables if table not in (ledger_entries, ledger_clock)))
# These have rows in a new ledger.
_FILLED = (accounts, account_clock, dimension_clock, grant_clock, ledger_clock)


def require_current(source: Connection) -> None:
    """Raises OutdatedLedgerError for a source of an earlier version, NewerDatabaseError for one of a later."""
    if not is_newest(source):
        raise OutdatedLedgerError(
            "the ledger to copy is of an earlier version: run `tokenweir migrate` with its configuration first"
        )


def copy_ledger(source: Connection, target: Engine, progress: Progress, say: Callable[[str], None]) -> LedgerSums:
    """Copy all rows that the target lacks, then compare all of them. `source`: a write transaction, so that others
    wait. Both are of this version. Raises DifferentLedgerError, LedgerUnavailable."""
    is_whole = not _begin(target)
    if not is_whole:
        _copy_all(source, target, progress)
    try:
        for table, batch in _all_batches(source, target, "comparing", progress):
            require_equal_rows(batch, table)
    except DifferentLedgerError as difference:
        if not is_whole:
            raise
        raise DifferentLedgerError(f"the target is in use, or is another ledger: {difference}") from None
    if not is_whole:
        refuse_until(target, archived_until(source), say)
        with writing(target) as connection:
            connection.execute(insert(ledger_clock), [row._asdict() for row in source.execute(select(ledger_clock))])
    return require_equal_sums(source, target)


def _begin(target: Engine) -> bool:
    """Remove the rows that a new ledger begins with. True if the target is to be filled: it was new, or a copy was
    interrupted. Raises DifferentLedgerError."""
    with writing(target) as connection:
        if not _has_rows(connection, ledger_clock):
            return True
        if not _is_new(connection):
            return False
        for table in _FILLED:
            connection.execute(delete(table))
    return True


def _is_new(connection: Connection) -> bool:
    """True if the ledger is as `migrate` makes it."""
    if any(_has_rows(connection, table) for table in metadata.sorted_tables if table not in _FILLED):
        return False
    used = accounts.c.limits.is_not(None) | accounts.c.blocked_at.is_not(None)
    others = accounts.c.account_id.not_in((DEFAULT_ORGANIZATION, DEFAULT_PROJECT)) | used
    return connection.execute(select(accounts.c.account_id).where(others).limit(1)).first() is None


def _has_rows(connection: Connection, table: Table) -> bool:
    return connection.execute(select(*table.primary_key).limit(1)).first() is not None


def _copy_all(source: Connection, target: Engine, progress: Progress) -> None:
    _add_partitions(source, target)
    inserts = {table: prepared_insert(table, lambda statement: statement, target.dialect) for table in _TABLES}
    for table, batch in _all_batches(source, target, "copying", progress):
        if table is ledger_entries and batch.wrong:
            require_equal_rows(batch, table)
        if batch.wrong:
            with writing(target) as connection:
                connection.execute(delete(table).where(tuple_(*table.primary_key).in_(batch.wrong)))
        if batch.missing:
            _insert(target, table, inserts[table], batch.missing)
    with outside_transactions(target) as connection:
        for table in _TABLES:
            connection.exec_driver_sql(f"ANALYZE {table.name}")


def _add_partitions(source: Connection, target: Engine) -> None:
    archived = archived_until(source)
    months = [
        month
        for month in months_of_entries(source, time.time())
        if archived is None or month.timestamp() >= archived.until
    ]
    with writing(target) as connection:
        add_months(connection, months)


def _all_batches(source: Connection, target: Engine, what: str, progress: Progress) -> Iterator[tuple[Table, Any]]:
    total = sum(source.execute(select(func.count()).select_from(table)).scalar_one() for table in _TABLES)
    done = 0
    for table in _TABLES:
        for batch in batches(source, target, table):
            yield table, batch
            done += len(batch.source)
            progress(what, "rows", done, total)


def _insert(target: Engine, table: Table, prepared: PreparedInsert, rows: Sequence[Sequence[Any]]) -> None:
    """In one transaction; row by row if the database refuses one, which the error then names."""
    try:
        with writing(target) as connection:
            prepared.execute(connection, prepared.bound(rows))
    except Exception as error:
        if not refused_row(error):
            raise
        if len(rows) > 1:
            for row in rows:
                _insert(target, table, prepared, [row])
            return
        name = ", ".join(map(str, key_of(table)(rows[0])))
        reason = primary_message(error.orig) if isinstance(error, exc.DBAPIError) else str(error)
        raise DifferentLedgerError(f"table {table.name}: Postgres cannot store the row {name}: {reason}") from None
