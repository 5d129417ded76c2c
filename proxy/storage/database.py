"""Connections to the SQL database.

Invariants: a transaction that writes is opened with `writing`; an unreachable database raises `LedgerUnavailable`,
never a driver's error.

SQLite: WAL (readers never wait for the writer), synchronous=FULL (a commit survives power loss), BEGIN
IMMEDIATE for writers (they wait at the start and cannot deadlock later).
Postgres: READ COMMITTED for writers, which serialise by an advisory lock where they need one; readers see one
snapshot.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec
from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, func, select

from proxy.storage.postgres import is_postgres, open_postgres, primary_message, refused_by_row, set_answer_limit

# How long a transaction waits for another process's write. A write takes milliseconds; during a checkpoint, up to a
# second.
BUSY_S_MAX = 10


# The namespace of this program's advisory locks on Postgres: "tknw".
_LOCKS = 0x746B6E77


class LedgerUnavailable(OSError):  # noqa: N818  a state of the database, named like QueueUnavailable
    """The database is unreachable, locked, full or damaged. A later retry may succeed."""


class Lock(IntEnum):
    """Advisory locks: one transaction at a time holds each."""

    SCHEMA = 1
    KEYS = 2
    PERIODS = 3
    ARCHIVE = 4
    AUDIT = 5


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def open_engine(url: str) -> Engine:
    """An engine for `url`, not connected yet; a missing SQLite file is created with mode 0600.

    Raises LedgerUnavailable for a SQLite file that cannot be written, LedgerUrlError for an invalid URL.
    """
    # Parameters hold ledger data: errors must not quote them.
    options: dict[str, Any] = {
        "json_serializer": _json_text,
        "json_deserializer": msgspec.json.decode,
        "hide_parameters": True,
    }
    if is_postgres(url):
        return open_postgres(url, **options)
    engine = create_engine(url, **options)
    _make_private(engine.url.database)
    event.listen(engine, "connect", _connected_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """An engine for one task; its connections are closed at the end. Raises as `open_engine`."""
    engine = open_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A read-only transaction on one snapshot. Raises LedgerUnavailable."""
    with _mapped(), engine.connect() as connection:
        if is_shared(connection):
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A write transaction: committed at the end, rolled back on any exception. Raises LedgerUnavailable."""
    with _mapped(), engine.connect() as connection:
        connection.execution_options(writes=True)
        with connection.begin():
            yield connection


@contextmanager
def outside_transactions(engine: Engine) -> Iterator[Connection]:
    """A connection to Postgres for statements that no transaction may contain. They have no time limit, and the session
    ends with them. Raises LedgerUnavailable."""
    with _mapped(), engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        with connection.begin():
            connection.detach()
            for name in ("statement_timeout", "lock_timeout"):
                connection.exec_driver_sql(f"SET {name} = 0")
            set_answer_limit(connection, None)
            yield connection


def is_shared(database: Connection | Engine) -> bool:
    """True on Postgres, which allows concurrent writers."""
    return database.dialect.name == "postgresql"


def hold(connection: Connection, lock: Lock) -> None:
    """Take `lock` until the transaction ends. No-op on SQLite, which has one writer at a time."""
    if is_shared(connection):
        connection.execute(select(func.pg_advisory_xact_lock(_LOCKS, int(lock))))


def try_hold(connection: Connection, lock: Lock) -> bool:
    """Take `lock` until the transaction ends, without waiting; False: another transaction has the lock."""
    if not is_shared(connection):
        return True
    return bool(connection.execute(select(func.pg_try_advisory_xact_lock(_LOCKS, int(lock)))).scalar_one())


def lock_timed_out(error: LedgerUnavailable) -> bool:
    """True if a statement waited for a lock longer than its `lock_timeout`, or would have caused a deadlock."""
    cause = error.__cause__
    return isinstance(cause, exc.DBAPIError) and getattr(cause.orig, "sqlstate", None) in ("55P03", "40P01")


def refused_statement(error: LedgerUnavailable) -> bool:
    """True if the server lacks a function, or refuses this role the call."""
    cause = error.__cause__
    return isinstance(cause, exc.DBAPIError) and getattr(cause.orig, "sqlstate", None) in ("42883", "42501", "0A000")


def refused_row(error: Exception) -> bool:
    """True if a row's values cannot be stored; False if the database is unavailable, or for a bug.

    An error without an SQLSTATE comes from SQLite, from the driver, or from Python (invalid Unicode, a number of more
    than 64 bits).
    """
    if not isinstance(error, exc.DBAPIError):
        return isinstance(error, TypeError | ValueError | OverflowError)
    sqlstate = getattr(error.orig, "sqlstate", None)
    if sqlstate is not None:
        return refused_by_row(sqlstate)
    return isinstance(error, exc.IntegrityError | exc.DataError | exc.ProgrammingError)


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except exc.TimeoutError as error:
        raise LedgerUnavailable(str(error)) from error
    except exc.DBAPIError as error:
        if refused_row(error):
            raise
        raise LedgerUnavailable(_message(error)) from error


def _message(error: exc.DBAPIError) -> str:
    """The driver's message, without the statement and its parameters."""
    cause = error.orig
    return f"{type(cause).__name__}: {primary_message(cause)}"


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _make_private(database: str | None) -> None:
    """Create the file with mode 0600 before SQLite opens it (its WAL inherits the mode).

    Raises LedgerUnavailable if it cannot be written: SQLite would fail only at the first write.
    """
    if not database or database == ":memory:":
        return
    # Do not open an existing file: closing a file releases all locks of this process on it, SQLite's included.
    if not os.path.exists(database):
        Path(database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(database, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    elif not os.access(database, os.W_OK):
        raise LedgerUnavailable(f"no permission to write the ledger {database}")


def _connected_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # `_begin_sqlite` starts transactions, not the driver
    connection.execute(f"PRAGMA busy_timeout={BUSY_S_MAX * 1000}")
    _to_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _to_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite's busy timeout does not cover this statement; another process may switch at the same
    time."""
    until = monotonic() + BUSY_S_MAX
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > until:
                raise
            sleep(0.01)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
