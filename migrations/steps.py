"""Steps of revisions that run beside a live deployment, on ledgers of many million rows.

Invariants: on Postgres each step commits by itself; none waits longer than LOCK_TIMEOUT for a lock behind which others
wait; a step that is done already does nothing, so that an upgrade which was cut off is simply run again. On SQLite all
steps belong to the one transaction of the upgrade.

A revision calls these functions, and of `op` only what no large table has to wait for. Alembic's own transaction then
has nothing to do but to store the revision's number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from proxy.storage.database import LedgerUnavailable, is_shared, lock_timed_out, outside_transactions, reading, writing

if TYPE_CHECKING:
    from alembic.operations import Operations

# A request for a table's lock that waits makes all later ones wait, too: half a second is a slow settlement, no outage.
LOCK_TIMEOUT = "500ms"
# Until the next try of a step whose lock was not free, so that those that waited behind it get their turn.
RETRY_S = 1.0
# The longest transactions of ours, exports, take minutes.
LOCK_WAIT_S_MAX = 900.0
# A batch takes about as long as a settlement may wait for its rows, and then pauses as long.
BATCH_S = 0.1
BATCH_ROWS_MIN, BATCH_ROWS_MAX = 100, 20_000
# Between two lines of progress.
SAY_S = 5.0
_NAME_CHARS_MAX = 63

_T = TypeVar("_T")


def retried(run: Callable[[], _T], what: str, say: Callable[[str], None]) -> _T:
    """The result of `run`, a transaction that is tried again while a lock that it needs is not free.

    Raises LedgerUnavailable.
    """
    until = time.monotonic() + LOCK_WAIT_S_MAX
    waiting = False
    while True:
        try:
            return run()
        except LedgerUnavailable as error:
            if not lock_timed_out(error) or time.monotonic() > until:
                raise
        if not waiting:
            say(f"{what}: another transaction has the lock; trying every {RETRY_S:g} s")
            waiting = True
        time.sleep(RETRY_S)


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column that may be null or has a constant default: neither rewrites the table."""
    assert column.nullable or column.server_default is not None, "the rows that are there need a value"

    def add(operations: Operations) -> None:
        connection = operations.get_bind()
        if column.name not in {one["name"] for one in sa.inspect(connection).get_columns(table)}:
            operations.add_column(table, column)

    _step(f"column {table}.{column.name}", add)


def create_index(name: str, table: str, columns: Sequence[str], *, where: str | None = None) -> None:
    """Create an index while rows are written: on Postgres concurrently, on one partition after the other."""
    on = f"({', '.join(columns)})" + (f" WHERE {where}" if where else "")
    bind = _bind()
    if not is_shared(bind):
        bind.exec_driver_sql(f"CREATE INDEX IF NOT EXISTS {name} ON {table} {on}")
        return
    if not _is_partitioned(table):
        _create_concurrently(name, table, on)
        return
    _step(f"index {name}", _executing(f"CREATE INDEX IF NOT EXISTS {name} ON ONLY {table} {on}"))
    while partitions := _partitions_without(name, table):  # one that is made meanwhile gets its index with it
        for partition in partitions:
            own = name.replace(table, partition) if table in name else f"{partition}_{name}"
            _create_concurrently(own, partition, on)
            _step(f"index {own}", _executing(f"ALTER INDEX {name} ATTACH PARTITION {own}"))


def in_batches(table: str, key: str, change: str, todo: str) -> None:
    """UPDATE the rows of `table` for which `todo` holds (it must not afterwards) by `change`, in the order of `key`.

    `key`: an indexed column. A batch that was committed is not done again by the next run.
    """
    bind = _bind()
    if not is_shared(bind):
        bind.exec_driver_sql(f"UPDATE {table} SET {change} WHERE {todo}")  # noqa: S608  the revision's own text
        return
    after, rows, done, said_at = None, BATCH_ROWS_MIN, 0, time.monotonic()
    while True:
        began = time.monotonic()
        after, changed = _batch(table, key, change, todo, after, rows)
        took = time.monotonic() - began
        done += changed
        if after is None:
            _say(f"{table}: {done:,} rows changed")
            return
        if began - said_at > SAY_S:
            said_at = began
            _say(f"{table}: {done:,} rows changed so far, up to {key} {after}")
        rows = min(max(BATCH_ROWS_MIN, int(rows * min(2.0, BATCH_S / took))), BATCH_ROWS_MAX)
        time.sleep(took)


def _batch(table: str, key: str, change: str, todo: str, after: Any, rows: int) -> tuple[Any, int]:
    """Change about `rows` rows after the key `after` → the last key of them, None at the end; how many were changed."""

    def run(operations: Operations) -> tuple[Any, int]:
        connection = operations.get_bind()
        values = {"after": after, "skipped": rows - 1}
        beyond = "" if after is None else f"{key} > :after"
        last = f"SELECT {key} FROM {table} {beyond and 'WHERE'} {beyond} ORDER BY {key} OFFSET :skipped LIMIT 1"  # noqa: S608
        until = connection.execute(sa.text(last), values).scalar()
        bounds = [one for one in (beyond, "" if until is None else f"{key} <= :until") if one]
        where = " AND ".join([*bounds, f"({todo})"])
        update = sa.text(f"UPDATE {table} SET {change} WHERE {where}")  # noqa: S608
        return until, connection.execute(update, {**values, "until": until}).rowcount

    return _step(f"rows of {table}", run)


def _step(what: str, run: Callable[[Operations], _T]) -> _T:
    """Run it in a transaction of its own, on Postgres; in that of the upgrade, on SQLite."""
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    bind = _bind()
    if not is_shared(bind):
        return run(Operations(MigrationContext.configure(bind)))

    def transaction() -> _T:
        with writing(bind.engine) as connection:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            return run(Operations(MigrationContext.configure(connection)))

    return retried(transaction, what, _say)


def _executing(sql: str) -> Callable[[Operations], None]:
    return lambda operations: operations.execute(sql)


def _bind() -> sa.Connection:
    """The upgrade's own connection. On Postgres its transaction must be alive: it keeps other upgrades out."""
    from alembic import op

    bind = op.get_bind()
    if is_shared(bind):
        # Not prepared: a prepared statement's portal keeps its snapshot, and CREATE INDEX CONCURRENTLY waits for those.
        with bind.connection.driver_connection.cursor() as cursor:  # type: ignore[union-attr]
            cursor.execute("SELECT 1", prepare=False)
    return bind


def _ask(query: str, **values: str) -> list[Any]:
    """The first column of an answer, in a transaction of its own."""
    with reading(_bind().engine) as connection:
        return list(connection.execute(sa.text(query), values).scalars())


def _say(line: str) -> None:
    from alembic import context

    context.config.attributes["say"](line)


def _is_partitioned(table: str) -> bool:
    [found] = _ask("SELECT relkind = 'p' FROM pg_class WHERE oid = CAST(:name AS regclass)", name=table)
    return bool(found)


def _partitions_without(index: str, table: str) -> list[str]:
    """The partitions of `table` that have no part of `index`, the newest first."""
    query = """
        SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = CAST(:table AS regclass)
        EXCEPT SELECT indrelid::regclass::text FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid
        WHERE inhparent = CAST(:index AS regclass) ORDER BY 1 DESC
    """
    return _ask(query, table=table, index=index)


def _create_concurrently(name: str, table: str, on: str) -> None:
    """Create an index of one table; one that an interrupted run has left unfinished is dropped first."""
    assert len(name) <= _NAME_CHARS_MAX, f"{name} is too long"

    def create() -> None:
        valid = _ask("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)", name=name)
        if valid == [True]:
            return
        with outside_transactions(_bind().engine) as connection:
            if valid:
                connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            _say(f"index {name}")
            connection.exec_driver_sql(f"CREATE INDEX CONCURRENTLY {name} ON {table} {on}")

    retried(create, f"index {name}", _say)
