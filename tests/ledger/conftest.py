"""A ledger of its own for each test, on each of the databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.storage.database import sqlite_url
from tests.support.ledgers import engine, ledger_url, store
from tests.support.postgres import Server
from tests.support.sqlite import empty_ledger

__all__ = ["engine", "ledger_url", "store"]


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


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, once of each kind."""
    on_disk = sqlite_url(tmp_path / "ledger.db")
    return on_disk if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["sqlite", "postgres"])
def fresh_ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated database, once of each kind: for a test that changes more than rows."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_ledger_url"))
    return empty_ledger(tmp_path / "ledger.db")
