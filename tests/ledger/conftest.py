"""A ledger of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from proxy.ledger.store import LedgerStore
from tests.ledger.making import a_ledger, a_store


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A migrated SQLite file."""
    engine = a_ledger(tmp_path)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> LedgerStore:
    """Writes to it."""
    return a_store(engine)
