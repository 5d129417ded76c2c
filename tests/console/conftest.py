"""A console for each test, on a ledger of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.stand import Stand
from tests.ledger.entries import a_ledger


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    engine = a_ledger(tmp_path)
    made = Stand(tmp_path, engine)
    yield made
    made.close()
    engine.dispose()
