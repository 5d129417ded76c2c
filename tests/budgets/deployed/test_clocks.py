"""Clocks that are wrong, or were: what is spent counts in the window in which it was admitted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from proxy.ledger.schema.tables import api_keys
from proxy.storage.database import open_engine, sqlite_url, writing
from tests.budgets.deployed.limited import Limited, deployment, served
from tests.support.provider import ScriptedProvider

pytestmark = pytest.mark.thorough


@pytest.fixture
def unstarted(tmp_path: Path, provider: ScriptedProvider) -> Iterator[Limited]:
    with closing(deployment(tmp_path, provider)) as tokenweir:
        yield Limited(tokenweir, provider)


async def test_a_key_that_was_made_while_the_clock_was_ahead_spends_its_budget(unstarted: Limited) -> None:
    """Its first window begins in an hour. Seen from the code: until then, nothing that it spent counted."""
    key_id, key = unstarted.key("--budget", "0.001", "--budget-window", "30d")
    engine = open_engine(sqlite_url(unstarted.tokenweir.folder / "data" / "ledger.db"))
    with writing(engine) as ledger:
        assert ledger.execute(update(api_keys).values(created_at=time.time() + 3_600)).rowcount == 1
    engine.dispose()
    unstarted.tokenweir.start()
    model = unstarted.model(100)
    for count in (6, 4, 0):
        assert served(await unstarted.many(key, model, 10 if count < 6 else 6)) == count
        counter = await unstarted.at_rest(key_id)
    assert counter.spent == 1_000_000
    assert len(unstarted.entries(key_id, 10)) == 10
