"""The door to the SQL database. Law: a transaction that writes says so at its start, and an unreachable
database is always `LedgerUnavailable`, never some driver's error.

SQLite: WAL (readers never wait for the writer), synchronous=FULL (a commit survives power loss), BEGIN
IMMEDIATE for writers (two writers queue up at the start and cannot deadlock half-way).
Postgres: READ COMMITTED for writers, who queue up at a lock of their own choice; readers see one snapshot.
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
import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, func, select

from proxy.storage.postgres import is_postgres, open_postgres, refused_by_row, words_of

# How long a transaction waits for another process's write. One of ours takes milliseconds; a disk that is
# busy with a checkpoint can take a second.
BUSY_S_MAX = 10


# The namespace of our advisory locks on Postgres: "tknw".
_LOCKS = 0x746B6E77


class LedgerUnavailable(OSError):  # noqa: N818  a state of the world, named like its siblings
    """The database cannot be used now: unreachable, locked, full, damaged. Trying again later may work."""


class Lock(IntEnum):
    """What only one transaction at a time may change."""

    SCHEMA = 1
    KEYS = 2


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def open_engine(url: str) -> Engine:
    """An engine for `url`; nothing is connected yet, but a new SQLite file is made, private to its owner.

    Raises LedgerUnavailable for a SQLite file that cannot be written, LedgerUrlError for a URL that cannot be read.
    """
    # Parameters are what is in the ledger: no error is to quote them.
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
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of the database. Raises LedgerUnavailable."""
    with _mapped(), engine.connect() as connection:
        if is_shared(connection):
            connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes: committed at the end, undone by any exception. Raises LedgerUnavailable."""
    with _mapped(), engine.connect() as connection:
        connection.execution_options(writes=True)
        with connection.begin():
            yield connection


def is_shared(connection: Connection) -> bool:
    """True on Postgres, where several may write at once."""
    return connection.dialect.name == "postgresql"


def hold(connection: Connection, lock: Lock) -> None:
    """Be the only transaction with `lock`, to its end. On SQLite whoever writes is alone anyway."""
    if is_shared(connection):
        connection.execute(select(func.pg_advisory_xact_lock(_LOCKS, int(lock))))


def refused_row(error: Exception) -> bool:
    """True if a row cannot be stored as it is; False if the database cannot be used, or for a bug of ours.

    Without an SQLSTATE it is SQLite or the driver that speaks, or Python (text that is not Unicode, a number of more
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
        raise LedgerUnavailable(_words(error)) from error


def _words(error: exc.DBAPIError) -> str:
    """What the driver said, without the statement and its parameters."""
    cause = error.orig
    said = words_of(cause) if isinstance(cause, psycopg.Error) else str(cause)
    return f"{type(cause).__name__}: {said}"


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _make_private(database: str | None) -> None:
    """Make the file before SQLite does, so that nobody else may read it (its WAL inherits the mode).

    Raises LedgerUnavailable if it cannot be written: SQLite would say so only at the first entry.
    """
    if not database or database == ":memory:":
        return
    # One that is there is not opened: whoever closes a file gives up all locks that this process has on it, SQLite's
    # own among them.
    if not os.path.exists(database):
        Path(database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(database, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    elif not os.access(database, os.W_OK):
        raise LedgerUnavailable(f"the ledger {database} may not be written to")


def _connected_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver starts no transactions of its own: `_begin_sqlite` does
    connection.execute(f"PRAGMA busy_timeout={BUSY_S_MAX * 1000}")
    _to_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _to_wal(connection: sqlite3.Connection) -> None:
    """The one step for which SQLite itself does not wait: another process may be doing the same to a new file."""
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
