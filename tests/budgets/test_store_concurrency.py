"""A thousand requests at once for what is enough for ten: ten pass, through however many nodes or processes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import Denied, Granted, Reservation, SpendTotal, Unseeded, Verdict
from proxy.budgets.redis.store import RedisBudgets
from proxy.budgets.sqlite.store import SqliteBudgets
from proxy.budgets.store import BudgetStore, OwnReservations
from proxy.storage.redis_client import open_redis
from tests.budgets.stores import warm
from tests.support.long_runs import part_of
from tests.support.processes import CLEAN

AT_ONCE, FIT, NUSD = 1_000, 10, 97
# Of `make test`.
FEW_AT_ONCE = 200
NODES = 4
QUICK, LONG = 2, part_of(1_000)


def counters_of(number: int) -> tuple[LimitCounter, ...]:
    """One that is enough for ten, and one for all of them that never is the reason."""
    return LimitCounter(f"key_{number}", nusd_max=FIT * NUSD + NUSD - 1), LimitCounter("org", nusd_max=10**12)


async def contend(stores: list[BudgetStore], number: int, exchanges: range, *, within_s: float = 0.0) -> int:
    """How many were granted, of so many that come within so long."""
    counters = counters_of(number)

    async def one(each: int) -> Verdict:
        if within_s:
            await asyncio.sleep(random.random() * within_s)
        return await stores[each % len(stores)].reserve(Reservation(f"x{number}-{each}", counters, NUSD, 1))

    verdicts = await asyncio.gather(*[one(each) for each in exchanges])
    assert not any(isinstance(one, Unseeded) for one in verdicts)
    assert all(one.why == "money" for one in verdicts if isinstance(one, Denied))
    return sum(isinstance(one, Granted) for one in verdicts)


async def seed(store: BudgetStore, number: int) -> None:
    await store.seed([SpendTotal(counter.counter_id, 0.0, 0, 1) for counter in counters_of(number)])


async def all_is_counted(store: BudgetStore, rounds: int) -> None:
    [org] = await store.counter_states(["org"])
    assert (org.reserved, org.open) == (rounds * FIT * NUSD, rounds * FIT)


# -- on Redis


@pytest.fixture
async def nodes(redis_url: str, prefix: str) -> AsyncIterator[list[BudgetStore]]:
    """Each with connections of its own."""
    clients = [open_redis(redis_url) for _ in range(NODES)]
    stores = [RedisBudgets(client, node=f"n{number}", prefix=prefix) for number, client in enumerate(clients)]
    for store in stores:
        await store.announce(lambda: OwnReservations((), (), ()))
    await warm(stores[0])
    yield list(stores)
    for client in clients:
        await client.aclose()


async def through_nodes(nodes: list[BudgetStore], rounds: int, at_once: int) -> None:
    for number in range(rounds):
        await seed(nodes[0], number)
        assert await contend(nodes, number, range(at_once)) == FIT
    await all_is_counted(nodes[0], rounds)


async def test_ten_pass_through_many_nodes(nodes: list[BudgetStore]) -> None:
    await through_nodes(nodes, QUICK, FEW_AT_ONCE)


@pytest.mark.slow
async def test_ten_pass_through_many_nodes_a_thousand_times(nodes: list[BudgetStore]) -> None:
    await through_nodes(nodes, LONG, AT_ONCE)


# -- on a file


_together: list[Barrier] = []
"""in a process of the pool: what all wait at before each round"""


def in_a_process(path: Path, worker: int, rounds: int) -> list[tuple[int, float, float]]:
    """One process's share of each round: how many were granted, from when to when (`time.monotonic`)."""

    async def run() -> list[tuple[int, float, float]]:
        store = SqliteBudgets(path, node=f"worker-{worker}", unix_time=time.time)
        share = AT_ONCE // NODES
        granted = []
        async with aclosing(store):
            for number in range(rounds):
                _together[0].wait(60)
                mine = range(worker * share, (worker + 1) * share)
                began = time.monotonic()
                granted.append((await contend([store], number, mine, within_s=0.01), began, time.monotonic()))
        return granted

    return asyncio.run(run())


def _join(barrier: Barrier) -> None:
    _together.append(barrier)


@pytest.fixture
def processes() -> Iterator[Pool]:
    """Started anew, as servers are."""
    with CLEAN.Pool(NODES, _join, (CLEAN.Barrier(NODES),)) as pool:
        yield pool
        pool.close()
        pool.join()


async def through_processes(processes: Pool, path: Path, rounds: int) -> None:
    store = SqliteBudgets(path, node="seeder", unix_time=time.time)
    for number in range(rounds):
        await seed(store, number)
    asked = [processes.apply_async(in_a_process, (path, worker, rounds)) for worker in range(NODES)]
    shares = [await asyncio.to_thread(one.get, 600) for one in asked]
    each_round = list(zip(*shares, strict=True))
    assert [sum(granted for granted, _, _ in each) for each in each_round] == [FIT] * rounds
    together = [max(began for _, began, _ in each) < min(ended for _, _, ended in each) for each in each_round]
    assert any(together), "they were never at it at the same time"
    await all_is_counted(store, rounds)
    await store.aclose()


@pytest.mark.process
async def test_ten_pass_through_many_processes(processes: Pool, tmp_path: Path) -> None:
    await through_processes(processes, tmp_path / "budgets.db", QUICK)


@pytest.mark.slow
async def test_ten_pass_through_many_processes_a_thousand_times(processes: Pool, tmp_path: Path) -> None:
    await through_processes(processes, tmp_path / "budgets.db", LONG)
