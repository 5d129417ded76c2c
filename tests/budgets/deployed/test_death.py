"""What dead processes held: it is free again, and nothing that was delivered is forgotten."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import AsyncExitStack

import pytest

from tests.budgets.deployed.limited import Limited, reservation, served

STREAMS = 20


async def test_a_killed_proxy_with_reservations(alone: Limited) -> None:
    """Each of them has got a token or two; all the rest of the budget is there when it is back."""
    key_id, key = alone.key("--budget", "0.002", "--budget-window", "none")  # as many as run, to the last
    async with AsyncExitStack() as stack:
        await reservation(alone, key, stack, STREAMS)
        assert (await alone.counter(key_id)).reserved == 2_000_000
        assert (await alone.post(key, alone.model())).status == 402
        alone.tokenweir.kill()
    await asyncio.to_thread(alone.tokenweir.start)
    entries = alone.entries(key_id, STREAMS)
    assert {entry["outcome"] for entry in entries} == {"crashed"}
    counter = await alone.at_rest(key_id)
    assert counter.spent is not None
    assert counter.spent == round(sum(float(entry["charge_usd"]) for entry in entries) * 1e9)
    assert counter.spent < 400_000
    left = (2_000_000 - counter.spent) // 100_000
    assert served(await alone.many(key, alone.model(100), left + 20)) == left


@pytest.mark.thorough
async def test_what_waits_in_the_journal_counts_before_the_ledger_has_it(alone: Limited) -> None:
    """The ledger is locked: nothing is settled, and still nobody overspends, not even after a kill."""
    key_id, key = alone.key("--budget", "0.001", "--budget-window", "none")
    model = alone.model(100)
    assert (await alone.post(key, model)).status == 200
    lock = sqlite3.connect(alone.tokenweir.folder / "data" / "ledger.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        assert served([await alone.post(key, model) for _ in range(4)]) == 4
        alone.tokenweir.kill()
    finally:
        lock.execute("ROLLBACK")
        lock.close()
    await asyncio.to_thread(alone.tokenweir.start)
    assert served(await alone.many(key, model, 20)) == 5
    assert (await alone.at_rest(key_id)).spent == 1_000_000
    alone.entries(key_id, 10)
