"""One ledger of each kind for all tests of a module, emptied before each: to make one costs more than most tests.

Import `kept_url`, `ledger_url` and `engine`; they take the place of those that make a new one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from proxy.ledger.database import open_engine, sqlite_url
from proxy.ledger.migrate import migrate
from tests.ledger.making import emptied
from tests.support.postgres import Server

__all__ = ["engine", "kept_url", "ledger_url"]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def kept_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A migrated ledger for this module, once of each kind."""
    if request.param == "sqlite":
        migrate(url := sqlite_url(tmp_path_factory.mktemp("kept") / "ledger.db"))
        yield url
        return
    server: Server = request.getfixturevalue("postgres")
    name = server.new_database(request.getfixturevalue("migrated"))
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
def ledger_url(kept_url: str) -> str:
    """The same, with nothing in it."""
    engine = open_engine(kept_url)
    emptied(engine)
    engine.dispose()
    return kept_url


@pytest.fixture
def engine(ledger_url: str) -> Iterator[Engine]:
    """Reaches it."""
    engine = open_engine(ledger_url)
    yield engine
    engine.dispose()
