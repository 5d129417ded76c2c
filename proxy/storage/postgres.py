"""Connects to Postgres.

Invariants: each session sets UTF-8, UTC, durable commits and timeouts at its start, whatever the server's settings
are; no error message contains a password.

Works on versions 14 and later, directly and behind a pooler. The driver is loaded by the first URL of Postgres.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Engine, create_engine, event

# Defaults that the URL may override. They detect a dead server in seconds, also when its machine is gone and no
# packet says so.
_CONNECTING = {
    "application_name": "tokenweir",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

# A statement takes milliseconds. The idle timeout bounds how long a client that stops in mid-transaction (a suspended
# machine) keeps the lock that all settlers share.
_SETTINGS = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "15s",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
}
_SET_SETTINGS = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SETTINGS.items())
# A server default of `off` is not for a ledger; a stronger setting than `on` stays.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"

# SQLSTATE classes of errors that a row causes: an invalid value, a violated constraint, a limit of the server (a name
# too long for an index). All other classes describe the state of the database.
_ROW_CLASSES = frozenset({"22", "23", "54"})

_VERSION_MIN = 14


class LedgerUrlError(ValueError):
    """The URL of the ledger is invalid; the message does not quote it."""


class UnsuitableDatabaseError(ValueError):
    """This database cannot hold a ledger; the message is for the operator."""


def is_postgres(url: str) -> bool:
    """True for the URL of a Postgres server."""
    return url.startswith(("postgresql:", "postgres:"))


def open_postgres(url: str, **options: Any) -> Engine:
    """An engine for `url` in libpq's form (several hosts, sslmode, …), not connected yet.

    Raises LedgerUrlError.
    """
    conninfo = {**_CONNECTING, **_parsed(url), "client_encoding": "utf8"}

    def connect(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> object:
        return _connected(conninfo, parameters)

    # The engine does not get the URL, so it cannot print it.
    engine = create_engine(
        "postgresql+psycopg://", isolation_level="READ COMMITTED", pool_pre_ping=True, pool_timeout=10, **options
    )
    event.listen(engine, "do_connect", connect)
    return engine


def refused_by_row(sqlstate: str) -> bool:
    """True if the row causes an error with this SQLSTATE, False if the state of the database does."""
    return sqlstate[:2] in _ROW_CLASSES


def primary_message(error: BaseException | None) -> str:
    """The server's message, without DETAIL and CONTEXT: they may quote a row. Of another driver's error: all of it."""
    diagnosis = getattr(error, "diag", None)
    return getattr(diagnosis, "message_primary", None) or str(error)


def require_suitable(connection: Any) -> None:
    """Check the server's version and encoding. `connection`: SQLAlchemy's. Raises UnsuitableDatabaseError."""
    version = connection.dialect.server_version_info
    if version < (_VERSION_MIN,):
        raise UnsuitableDatabaseError(
            f"the ledger needs PostgreSQL {_VERSION_MIN} or later, not {'.'.join(map(str, version))}"
        )
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        raise UnsuitableDatabaseError(f"the ledger's database must be encoded in UTF8, not {encoding}")


def _parsed(url: str) -> dict[str, Any]:
    """The URL's connection parameters. Raises LedgerUrlError.

    A password with an unescaped "@" or "/" would be parsed as a host, a port or a database, and errors would show it.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    after = re.split("[@/]", url.partition("://")[2], maxsplit=1)
    stray = "@" in after[-1].partition("?")[0]
    try:
        parsed: dict[str, Any] = dict(conninfo_to_dict(url))
    except psycopg.Error:
        stray, parsed = True, {}
    if stray or not re.fullmatch("[0-9,]*", str(parsed.get("port", ""))):
        raise LedgerUrlError(
            "the ledger's URL is invalid: it must be postgresql://user:password@host:port/database, "
            "with @ : / ? # in the user or password written as %40 %3A %2F %3F %23"
        )
    return parsed


def _connected(conninfo: dict[str, Any], parameters: dict[str, Any]) -> object:
    """A session with the settings above."""
    import psycopg

    try:
        connection = psycopg.connect(**{**parameters, **conninfo}, autocommit=True)
    except psycopg.ProgrammingError as error:  # an unknown option in the URL; ProgrammingError means a refused row
        raise psycopg.OperationalError(str(error)) from None
    try:
        # Not as connection options: a pooler refuses those.
        connection.execute(f"SELECT {_SET_SETTINGS}")
        connection.execute(_DURABLE)
        connection.autocommit = False
    except BaseException:
        connection.close()
        raise
    return connection
