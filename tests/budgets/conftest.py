"""Stores of budgets: both kinds, each with any number of nodes, under a clock that tests set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from proxy.budgets.store import BudgetStore, OwnReservations
from tests.budgets.receiver import Receiver
from tests.budgets.stores import NOW, LocalStores, RedisStores, Stores
from tests.support.web_server import serving


@pytest.fixture(params=["local", "redis"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    """Empty, and warmed."""
    async with AsyncExitStack() as stack:
        if request.param == "local":
            made: Stores = LocalStores(tmp_path)
        else:
            made = RedisStores(request.getfixturevalue("redis_url"), request.getfixturevalue("prefix"))
            stack.push_async_callback(made.redis.aclose)
        first = made.node("first")
        made.clock.now = NOW - 2
        await first.heartbeat()
        await made.warmed()
        made.clock.now = NOW
        yield made
        for node in made.nodes:
            await node.aclose()


async def announced(stores: Stores, name: str) -> BudgetStore:
    """A node that holds nothing."""
    store = stores.node(name)
    await store.announce(lambda: OwnReservations((), (), ()))
    return store


@pytest.fixture
async def one(stores: Stores) -> BudgetStore:
    return await announced(stores, "one")


@pytest.fixture
async def other(stores: Stores) -> BudgetStore:
    return await announced(stores, "other")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """Gets nothing that is wrong."""
    made = Receiver()
    async with serving(made.serve) as made.url:
        yield made
    assert made.wrong == []


@pytest.fixture
def exchange_ids() -> Iterator[str]:
    return (f"exchange-{number:04}" for number in range(10_000))
