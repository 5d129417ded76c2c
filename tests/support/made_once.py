"""Objects that every deployment makes for itself, made once for all tests: they take longer than most tests.

They are the statements of a ledger, each statement's SQL, a configuration's document, the parser of each command's
options, and the certificates that this machine trusts. None has a state. SQLite does not sync to the disk: what tests
kill are processes, and the page cache survives them.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import ssl
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, lru_cache, partial, wraps
from typing import Any

from sqlalchemy import Dialect, create_engine

from proxy import cli
from proxy.billing.entries import LedgerEntry
from proxy.foundation import tls
from proxy.gateway.upstream import client
from proxy.ledger.settling import store
from proxy.ledger.settling.settling import Statements
from proxy.settings import reading
from proxy.storage import database, postgres

Setter = Callable[[object, str, object], None]


class _Compiled(dict[tuple[Any, ...], Any]):
    """The SQL of statements, for all engines of one kind of database. SQLAlchemy's keys begin with one engine's
    dialect."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        dialect, *rest = key
        return super().get((dialect.name, *rest), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        dialect, *rest = key
        super().__setitem__((dialect.name, *rest), compiled)


def share(replace: Setter) -> None:
    """Share them in this process. `replace`: `setattr`, or that of a MonkeyPatch."""
    made: dict[tuple[Any, ...], Statements] = {}

    def statements(dialect: Dialect, content_hash: Callable[[LedgerEntry], str], clock_id: int) -> Statements:
        name = dialect.name, content_hash, clock_id
        if name not in made:
            made[name] = Statements(dialect, content_hash, clock_id)
        return made[name]

    @cache
    def trusted(*_files: str | None) -> ssl.SSLContext:
        return tls.client_context()

    def client_context() -> ssl.SSLContext:
        return trusted(*map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))

    parser_of = cache(cli._parser)

    def parser(typed: Sequence[str] = ()) -> argparse.ArgumentParser:
        return parser_of(tuple(typed[:1]))  # of the first word alone it depends

    parsed = lru_cache(64)(reading.parsed_yaml)
    connected = database._connected_sqlite

    @wraps(connected)
    def connected_unsynced(connection: sqlite3.Connection, record: object) -> None:
        connected(connection, record)
        connection.execute("PRAGMA synchronous=OFF")

    replace(database, "_connected_sqlite", connected_unsynced)
    replace(cli, "_parser", parser)
    replace(reading, "parsed_yaml", lambda text: deepcopy(parsed(text)))
    replace(client, "client_context", client_context)
    replace(store, "Statements", statements)
    engine = partial(create_engine, execution_options={"compiled_cache": _Compiled()})
    for module in (database, postgres):
        replace(module, "create_engine", engine)
