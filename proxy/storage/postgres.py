"""How Postgres is reached. Law: what a session promises (UTF-8, UTC, a commit that is on the disk, nothing that waits
for ever) is said by us at its start, whatever the server's own settings are; no error ever holds a password.

Works on versions 14 and later, directly and behind a pooler.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Engine, create_engine, event

# What the URL may say otherwise. A server that does not answer is found out in seconds, also when its machine is gone
# and the connection only looks alive.
_CONNECTING = {
    "application_name": "tokenweir",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

# One of our statements takes milliseconds. A client that stops in mid-transaction (a machine asleep) holds the lock
# that all settlers share: for so long, and no longer.
_SETTINGS = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "15s",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
}
_PROMISED = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SETTINGS.items())
# Whoever wants less than durable commits for other programs does not want it for a ledger; more than `on` stays.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"

# SQLSTATE classes of what a row does wrong by itself: a value that is none, a rule of the table, a limit of the server
# (a name too long for an index). All other classes are states of the database, and no row's fault.
_ROW_CLASSES = frozenset({"22", "23", "54"})

_VERSION_MIN = 14


class LedgerUrlError(ValueError):
    """The URL of the ledger cannot be read; its words do not quote it."""


class UnsuitableDatabaseError(ValueError):
    """This database cannot hold a ledger; its words are for the operator."""


def is_postgres(url: str) -> bool:
    """True if `url` is one of Postgres."""
    return url.startswith(("postgresql:", "postgres:"))


def open_postgres(url: str, **options: Any) -> Engine:
    """An engine for `url`, in the form that libpq takes (several hosts, sslmode, …); nothing is connected yet.

    Raises LedgerUrlError.
    """
    wanted = {**_CONNECTING, **_parsed(url), "client_encoding": "utf8"}

    def connect(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> object:
        return _connected(wanted, parameters)

    # The engine never learns the URL, so it cannot print it.
    engine = create_engine(
        "postgresql+psycopg://", isolation_level="READ COMMITTED", pool_pre_ping=True, pool_timeout=10, **options
    )
    event.listen(engine, "do_connect", connect)
    return engine


def refused_by_row(sqlstate: str) -> bool:
    """True if an error with this SQLSTATE is of the row, False if it is of the database's state."""
    return sqlstate[:2] in _ROW_CLASSES


def words_of(error: psycopg.Error) -> str:
    """What the server said, without DETAIL and CONTEXT: they may quote a row."""
    return error.diag.message_primary or str(error)


def require_suitable(connection: Any) -> None:
    """`connection`: of SQLAlchemy. Raises UnsuitableDatabaseError."""
    version = connection.dialect.server_version_info
    if version < (_VERSION_MIN,):
        raise UnsuitableDatabaseError(
            f"PostgreSQL {_VERSION_MIN} or later is needed, not {'.'.join(map(str, version))}"
        )
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        raise UnsuitableDatabaseError(f"the ledger's database must be encoded in UTF8, not {encoding}")


def _parsed(url: str) -> dict[str, Any]:
    """Raises LedgerUrlError. A password with an unescaped "@" or "/" would go on as a host, a port or a database, and
    then stand in some error."""
    after = re.split("[@/]", url.partition("://")[2], maxsplit=1)
    stray = "@" in after[-1].partition("?")[0]
    try:
        parsed: dict[str, Any] = dict(conninfo_to_dict(url))
    except psycopg.Error:
        stray, parsed = True, {}
    if stray or not re.fullmatch("[0-9,]*", str(parsed.get("port", ""))):
        raise LedgerUrlError(
            "the ledger's URL cannot be read: it must be postgresql://user:password@host:port/database, "
            "with @ : / ? # in the user or password written as %40 %3A %2F %3F %23"
        )
    return parsed


def _connected(wanted: dict[str, Any], parameters: dict[str, Any]) -> object:
    """A session that keeps what is promised above."""
    try:
        connection = psycopg.connect(**{**parameters, **wanted}, autocommit=True)
    except psycopg.ProgrammingError as error:  # an option that libpq does not know: nothing that a row did
        raise psycopg.OperationalError(str(error)) from None
    try:
        # Not in the connection's options: a pooler would refuse those.
        connection.execute(f"SELECT {_PROMISED}")
        connection.execute(_DURABLE)
        connection.autocommit = False
    except BaseException:
        connection.close()
        raise
    return connection
