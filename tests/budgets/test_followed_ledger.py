"""The real thing: settlers write the ledger, followers bring it to a store of budgets, and both say the same."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from proxy.billing.entries import EntryKind
from proxy.billing.keys import DEFAULT_ORGANIZATION, DEFAULT_PROJECT
from proxy.billing.limits import LimitCounter, credit_counter_id
from proxy.billing.reservation import Granted, Reservation
from proxy.budgets.followed_ledger import FollowedLedger
from proxy.budgets.follower import Follower
from proxy.budgets.redis.store import RedisBudgets
from proxy.budgets.sqlite.store import SqliteBudgets
from proxy.budgets.store import BudgetStore, OwnReservations
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.settling.store import LedgerStore
from proxy.storage.redis_client import open_redis
from tests.budgets.recorder import FollowerRecorder
from tests.budgets.stores import warm
from tests.ledger.entries import a_store, an_entry, arriving
from tests.support.examples import repeats

_NOTHING = OwnReservations((), (), ())
NODES, EACH = 3, repeats(25, gate=6)
KEYS = ("key_1", "key_2")


@pytest.fixture(params=["local", "redis"])
async def budgets(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, prefix: str
) -> AsyncIterator[list[BudgetStore]]:
    """One store, as several nodes see it."""
    made: list[BudgetStore] = []
    clients = []
    for number in range(NODES):
        if request.param == "local":
            made.append(SqliteBudgets(tmp_path / "budgets.db", node=f"node-{number}", unix_time=time.time))
        else:
            clients.append(open_redis(redis_url))
            made.append(RedisBudgets(clients[-1], node=f"node-{number}", prefix=prefix))
    for one in made:
        await one.announce(lambda: _NOTHING)
    if isinstance(made[0], RedisBudgets):
        await warm(made[0])
    yield made
    for one in (*made, *clients):
        await one.aclose()


@pytest.fixture
def keys(engine: Engine) -> None:
    """In the default project."""
    making = KeyStore(engine, clock=time.time)
    for key_id in KEYS:
        making.create(key_id=key_id, alias=key_id, digest=key_id.encode(), hint="", models=None, expires_at=None)


def gates_of(key_id: str, since: float) -> tuple[LimitCounter, ...]:
    """All that one request passes."""
    bound = 10**15
    scopes = (key_id, DEFAULT_PROJECT, DEFAULT_ORGANIZATION)
    return (
        *(LimitCounter(one, since, bound) for one in scopes),
        *(LimitCounter(credit_counter_id(one), nusd_max=bound) for one in scopes),
    )


@pytest.mark.hypothesis
@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("ledger_url", "budgets"),
    [
        ("sqlite", "local"),
        pytest.param("postgres", "redis", marks=pytest.mark.thorough),
        pytest.param("sqlite", "redis", marks=pytest.mark.slow),
        pytest.param("postgres", "local", marks=pytest.mark.slow),
    ],
    indirect=True,
)
async def test_what_was_held_is_spent_once_it_is_settled(
    engine: Engine, store: LedgerStore, budgets: list[BudgetStore]
) -> None:
    """Requests are admitted by several nodes, end, and are settled by several settlers, while followers follow: at the
    end nothing is held, and what is spent is what the ledger says."""
    seen, chance, now = FollowerRecorder(), random.Random(7), time.time()
    followers = [Follower(one, FollowedLedger(engine), on_spent=seen.on_spent, observer=seen) for one in budgets]
    since = now - 3_600
    settlers = [a_store(engine) for _ in range(2)]
    serial = asyncio.Lock()  # SQLite's writers would only wait for each other
    running = True

    async def serve(node: int) -> None:
        for number in range(node * 100, node * 100 + EACH):
            key_id = chance.choice(KEYS)
            charge, entry = chance.randint(1, 10**9), an_entry(number)
            reservation = Reservation(entry.exchange_id, gates_of(key_id, since), 2 * 10**9, 10)
            while not isinstance(verdict := await budgets[node].reserve(reservation), Granted):
                await followers[node].seed(verdict.counters)  # type: ignore[union-attr]
            settled = arriving(an_entry(number, key_id=key_id, charge_nusd=charge, started_at=now))
            if number % 5 == 0:
                settled += arriving(an_entry(number + 1_000, kind=EntryKind.CREDIT, key_id=key_id, charge_nusd=-charge))
            async with serial:
                await asyncio.to_thread(settlers[node % 2].settle, settled)
            if number % 2:  # the ledger is faster than the word that it ended
                await followers[node].follow()
            await budgets[node].close([Reservation(reservation.exchange_id, reservation.counters, charge, 10)])

    async def follow(one: Follower) -> None:
        while running:
            await one.follow()
            drift = await one._drift([*KEYS, DEFAULT_ORGANIZATION, credit_counter_id(KEYS[0])])
            assert not any(drift.values())
            await asyncio.sleep(0.01)

    following = [asyncio.get_running_loop().create_task(follow(one)) for one in followers]
    await asyncio.gather(*map(serve, range(NODES)))
    running = False
    await asyncio.gather(*following)
    await followers[0].follow()
    overdue = await budgets[0].overdue(-1.0)
    ledger = FollowedLedger(engine)
    await budgets[0].release(await ledger.settled(overdue, await budgets[0].cursor()))
    standings = await budgets[0].counter_states()
    assert len(standings) == 8
    sums = await ledger.sums([(one.counter_id, one.since) for one in standings])
    assert [one.spent for one in standings] == [one.amount for one in sums]
    assert {(one.reserved, one.open, one.closed) for one in standings} == {(0, 0, 0)}
    assert set((await followers[1].rebuild()).values()) == {0}
    assert await budgets[0].counter_states() == standings
    assert seen.failures == []
