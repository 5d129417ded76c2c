"""Connects to Postgres.

Invariants: each transaction sets UTC, durable commits and timeouts at its beginning, whatever the server's settings
are. Nothing is set for a session, because behind a pooler the next transaction may be in another session. Every wait
for an answer is limited: a server that hangs keeps its connections open, and would block our threads. No error message
contains a password. Works on versions 14 and later, directly and behind a pooler. The driver is loaded by the first URL
of Postgres.
"""

from __future__ import annotations

import re
from functools import cache
from time import monotonic
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
# machine) keeps the clock of its shard.
_SETTINGS = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "15s",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
}
# A server default of `off` is not for a ledger; a stronger setting than `on` stays.
_DURABLE = "CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
_SET_SETTINGS = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in _SETTINGS.items())
_BEGIN = f"SELECT {_SET_SETTINGS}, {_DURABLE}"
# More than the server's own limit of a statement: only a server that hangs, or whose answer is lost, exceeds it.
ANSWER_S_MAX = 45.0

# SQLSTATE classes of errors that a row causes: an invalid value, a violated constraint, a limit of the server (a name
# too long for an index). All other classes describe the state of the database.
_ROW_CLASSES = frozenset({"22", "23", "54"})

_VERSION_MIN = 14


class LedgerUrlError(ValueError):
    """The URL of the ledger is invalid; the message does not quote it."""


_PARAMETER = re.compile(r"[A-Za-z_]{1,40}", re.ASCII)
_INSTEAD = {"schema": "options=-csearch_path%3DNAME", "sslaccept": "sslmode=verify-full or sslmode=require"}


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
    event.listen(engine, "begin", _begin)
    return engine


def remove_time_limits(connection: Any) -> None:
    """Remove the time limits of this transaction, except those of lock waits. `connection`: SQLAlchemy's."""
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.exec_driver_sql(f"SET LOCAL {name} = 0")
    set_answer_limit(connection, None)


def set_answer_limit(connection: Any, seconds: float | None) -> None:
    """Limit this transaction's wait for an answer; None: no limit. `connection`: SQLAlchemy's."""
    connection.connection.dbapi_connection.answer_s = seconds


def refused_by_row(sqlstate: str) -> bool:
    """True if the row causes an error with this SQLSTATE, False if the state of the database does."""
    return sqlstate[:2] in _ROW_CLASSES


def primary_message(error: BaseException | None) -> str:
    """The server's message, without DETAIL and CONTEXT, which may quote a row. For another driver's error: the complete
    text."""
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
        if (name := _unknown_parameter(url)) is not None:
            raise LedgerUrlError(_without(name)) from None
        stray, parsed = True, {}
    if stray or not re.fullmatch("[0-9,]*", str(parsed.get("port", ""))):
        raise LedgerUrlError(
            "the ledger's URL is invalid: it must be postgresql://user:password@host:port/database, "
            "with @ : / ? # in the user or password written as %40 %3A %2F %3F %23"
        )
    return parsed


def _unknown_parameter(url: str) -> str | None:
    """The name of a parameter in the URL's query that libpq does not know; None if there is none, or if what looks like
    a query may be a part of a password."""
    from psycopg import pq

    query = url.partition("?")[2]
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    names = [] if "@" in query else [part.partition("=")[0] for part in query.split("&")]
    return next((name for name in names if _PARAMETER.fullmatch(name) and name not in known), None)


def _without(name: str) -> str:
    """What to do about an unknown parameter. Prisma's URLs have some, and LiteLLM's are Prisma's."""
    instead = f"write {_INSTEAD[name]} in its place" if name in _INSTEAD else "remove it"
    return f"the ledger's URL has the parameter {name!r}, which PostgreSQL's library does not know: {instead}"


def _begin(connection: Any) -> None:
    set_answer_limit(connection, ANSWER_S_MAX)
    connection.exec_driver_sql(_BEGIN)


def _connected(conninfo: dict[str, Any], parameters: dict[str, Any]) -> object:
    """A new session. Behind a pooler it prepares no statements: its next transaction may be in a session of the server
    in which another client's statement has an equal name."""
    import psycopg

    try:
        connection = _session_class().connect(**{**parameters, **conninfo}, autocommit=True)
    except psycopg.ProgrammingError as error:  # an unknown option in the URL; ProgrammingError means a refused row
        raise psycopg.OperationalError(str(error)) from None
    try:
        (pid,) = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
        if pid != connection.info.backend_pid:  # a pooler reported its own
            connection.prepare_threshold = None
        connection.autocommit = False
    except BaseException:
        connection.close()
        raise
    return connection


@cache
def _session_class() -> Any:
    """The driver's connection class, with a limited wait for an answer."""
    import psycopg

    class Session(psycopg.Connection[Any]):
        answer_s: float | None = ANSWER_S_MAX

        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            limit_s = self.answer_s if timeout is None else timeout
            began = monotonic()
            try:
                return super().wait(gen, interval, limit_s)
            except psycopg.OperationalError:
                if limit_s is None or monotonic() - began < limit_s:
                    raise
                self.pgconn.finish()  # else its rollback would wait as long again
                raise psycopg.OperationalError(f"the server has not answered for {limit_s:g} s") from None

    return Session
