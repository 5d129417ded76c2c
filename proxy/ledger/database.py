"""The door to the SQL database. Law: a transaction that writes says so at its start, and an unreachable
database is always `LedgerUnavailable`, never some driver's error.

SQLite: WAL (readers never wait for the writer), synchronous=FULL (a commit survives power loss), BEGIN
IMMEDIATE for writers (two writers queue up at the start and cannot deadlock half-way).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec
from sqlalchemy import URL, Connection, Engine, create_engine, event, exc

# How long a transaction waits for another process's write. One of ours takes milliseconds; a disk that is
# busy with a checkpoint can take a second.
BUSY_S_MAX = 10


class LedgerUnavailable(OSError):  # noqa: N818  a state of the world, named like its siblings
    """The database cannot be used now: unreachable, locked, full, damaged. Trying again later may work."""


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def open_engine(url: str) -> Engine:
    """An engine for `url`; nothing is connected yet, but a new SQLite file is made, private to its owner.

    Raises LedgerUnavailable for a SQLite file that cannot be written.
    """
    engine = create_engine(url, json_serializer=_json_text, json_deserializer=msgspec.json.decode)
    if engine.dialect.name == "sqlite":
        _make_private(engine.url.database)
        event.listen(engine, "connect", _connected_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of the database. Raises LedgerUnavailable."""
    with _mapped(), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes: committed at the end, undone by any exception. Raises LedgerUnavailable."""
    with _mapped(), engine.connect() as connection:
        connection.execution_options(writes=True)
        with connection.begin():
            yield connection


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError) as error:
        raise LedgerUnavailable(_words(error)) from error
    except exc.DatabaseError as error:
        # SQLite says "not a database", "malformed" with the base class; a subclass is our bug or a bad row.
        if type(error) is not exc.DatabaseError:
            raise
        raise LedgerUnavailable(_words(error)) from error


def _words(error: exc.SQLAlchemyError) -> str:
    """What the driver said, without the statement and its parameters."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    return f"{type(cause).__name__}: {cause}"


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
