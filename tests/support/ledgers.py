"""Migrated ledgers for tests, on each of the databases. Those of a session are emptied for each test that uses them.

A test with a ledger runs on SQLite in `make test` and on Postgres in `make test-thorough`. What depends on the database
(uniqueness, transactions, locks, sums, time types, statements of its own) is marked `on_both_databases` and runs on
both in `make test`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from shutil import copyfile

import pytest
from sqlalchemy import Engine

from proxy.ledger.schema.migrate import migrate
from proxy.ledger.settling.store import LedgerStore
from proxy.storage.database import open_engine, sqlite_url
from tests.ledger.entries import a_store, emptied
from tests.support.postgres import MIGRATED, PostgresServer, Server
from tests.support.sqlite import empty_ledger

ON_EACH = ["sqlite", pytest.param("postgres", marks=pytest.mark.thorough)]
on_both_databases = pytest.mark.parametrize("ledger_url", ["sqlite", "postgres"], indirect=True)
"""mark of a test with the fixture `ledger_url`, `engine` or `store` that depends on the database"""


@pytest.fixture(scope="session")
def migrated(postgres: Server) -> Iterator[str]:
    """The name of a migrated database on Postgres, to be copied."""
    if isinstance(postgres, PostgresServer):
        yield MIGRATED
        return
    name = postgres.new_database()
    migrate(postgres.url(name))
    yield name
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def kept_on_postgres(postgres: Server, migrated: str) -> Iterator[str]:
    """A Postgres database for many tests: its creation takes longer than most of them."""
    name = postgres.new_database(migrated)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def kept_on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An SQLite file for many tests, and beside it a copy with nothing in it."""
    url = empty_ledger(file := tmp_path_factory.mktemp("kept") / "ledger.db")
    engine = open_engine(url)
    emptied(engine)
    engine.dispose()
    copyfile(file, f"{file}.empty")
    return url


@pytest.fixture(scope="session")
def kept_engines() -> Callable[[str], Engine]:
    """One engine for each kept database, with its cache of compiled statements."""
    return cache(open_engine)


@pytest.fixture(params=ON_EACH)
def ledger_url(request: pytest.FixtureRequest, kept_engines: Callable[[str], Engine]) -> Iterator[str]:
    """A migrated database with nothing in it, once of each kind."""
    url = str(request.getfixturevalue(f"kept_on_{request.param}"))
    engine = kept_engines(url)
    if engine.dialect.name == "sqlite":  # a copy takes less than to delete rows; nobody has the file open
        copyfile(f"{engine.url.database}.empty", str(engine.url.database))
    else:
        emptied(engine)
    yield url
    engine.dispose()


@pytest.fixture
def engine(ledger_url: str, kept_engines: Callable[[str], Engine]) -> Engine:
    """Reaches a migrated ledger. Connections and events are this test's own."""
    return kept_engines(ledger_url).execution_options()


@pytest.fixture
def store(engine: Engine) -> LedgerStore:
    return a_store(engine)


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """An empty database on Postgres."""
    name = postgres.new_database()
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def postgres_ledger_url(postgres: Server, migrated: str) -> Iterator[str]:
    """A migrated one."""
    name = postgres.new_database(migrated)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(params=ON_EACH)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, once of each kind."""
    on_disk = sqlite_url(tmp_path / "ledger.db")
    return on_disk if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=ON_EACH)
def fresh_ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated database, once of each kind: for a test that changes more than rows."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_ledger_url"))
    return empty_ledger(tmp_path / "ledger.db")
