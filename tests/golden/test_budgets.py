"""Holds, sums and claims of 0.1, in Redis and in SQLite files: today's code counts them, and writes the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import CounterState, DenialReason, Denied, Granted, Reservation, SpendDelta, SpendTotal
from proxy.budgets.redis.store import RedisBudgets
from proxy.budgets.sqlite.store import SqliteBudgets
from proxy.budgets.store import BudgetStore, OwnReservations
from proxy.keys.claims_local import LocalClaims
from proxy.keys.claims_redis import RedisClaims
from proxy.keys.idempotency import Claims, ClaimStore, digest_of
from tests.golden.reading import (
    HERE,
    dump,
    exchange_id,
    golden_json,
    load_redis,
    load_sqlite,
    of_this_boot,
    sqlite_lines,
)  # fmt: skip
from tests.support.clock import Clock

pytestmark = pytest.mark.io

NOW = 1_800_000_000.25
NOW_US = 1_800_000_000_250_000
KEY = LimitCounter("key_golden", 1_790_000_000.5, 5_000_000_000, rpm=4, tpm=10_000, parallel=3)
PROJECT = LimitCounter("proj_golden", 1_788_220_800.0, 1_000_000_000_000_000)
CREDIT = LimitCounter("org_golden/credit", 0.0, 0)
COUNTERS = KEY, PROJECT, CREDIT
# spent; held: 750 of x-runs, 900 of x-other, 333 of x-closed; two run, one has ended
STANDINGS = [
    CounterState("key_golden", 1_790_000_000.5, 1_000_001_111, 1_983, 2, 1),
    CounterState("org_golden/credit", 0.0, -2_999_998_889, 1_983, 2, 1),
    CounterState("proj_golden", 1_788_220_800.0, 999_999_990_001_111, 1_983, 2, 1),
]
REDIS_KEYS = [
    "{tokenweir:budgets}:closed",
    "{tokenweir:budgets}:gates",
    "{tokenweir:budgets}:holds",
    "{tokenweir:budgets}:index",
    "{tokenweir:budgets}:life",
    "{tokenweir:budgets}:node:node-one",
    "{tokenweir:budgets}:node:node-other",
    "{tokenweir:budgets}:sums",
    "{tokenweir:budgets}:window:key_golden",
]
PEPPER = (HERE / "pepper").read_bytes()


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture(params=["local", "redis"])
async def node(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, plain: Any, client: Any
) -> AsyncIterator[BudgetStore]:
    """Node `node-one`, restarted on what 0.1 left."""
    if request.param == "local":
        path = of_this_boot(tmp_path)
        yield (local := SqliteBudgets(path, node="node-one", unix_time=clock))
        await local.aclose()
    else:
        await load_redis(plain, "budgets.json")
        yield RedisBudgets(client, node="node-one", unix_time=clock)


def what_node_one_has() -> OwnReservations:
    """As its journal says after the restart."""
    closed = Reservation("x-closed", COUNTERS, 333, 444, NOW)
    return OwnReservations((Reservation("x-runs", COUNTERS, 750, 1_000, NOW),), (closed,), ())


async def test_what_is_held_and_spent_counts(node: BudgetStore, clock: Clock) -> None:
    assert await node.counter_states() == STANDINGS
    assert await node.cursor() == NOW_US + 10
    await node.announce(what_node_one_has)
    assert isinstance(await node.reserve(Reservation("x-runs", COUNTERS, 750, 1_000)), Granted), "it is held already"
    full = await node.reserve(Reservation("x-new", COUNTERS, 1, 1))
    assert isinstance(full, Denied)
    assert (full.why, full.counter_id) == (DenialReason.REQUESTS, "key_golden"), "four were granted in this minute"
    [level] = full.levels
    assert (level.requests_left, level.tokens_left) == (0, 10_000 - 2_444)
    clock.now += 61
    left = 9_998_889 - 1_983
    dear = await node.reserve(Reservation("x-new", COUNTERS, left + 1, 1))
    assert isinstance(dear, Denied)
    assert (dear.why, dear.counter_id) == (DenialReason.MONEY, "proj_golden")
    assert isinstance(await node.reserve(Reservation("x-new", COUNTERS, left, 1)), Granted)
    parallel = await node.reserve(Reservation("x-more", (KEY,), 0, 1))
    assert isinstance(parallel, Denied)
    assert parallel.why is DenialReason.PARALLEL


async def test_what_is_held_is_settled_and_released(node: BudgetStore, clock: Clock) -> None:
    assert not await node.heartbeat(), "it was not this process that announced"
    await node.announce(what_node_one_has)
    assert await node.heartbeat()
    assert await node.counter_states() == STANDINGS
    assert await node.grow("x-runs", 800)
    await node.close([Reservation("x-runs", COUNTERS, 600, 900)])
    clock.now += 3
    assert sorted(await node.overdue(2)) == ["x-closed", "x-runs"]
    ids = tuple(counter.counter_id for counter in COUNTERS)
    change = SpendDelta("x-runs", NOW_US + 20, NOW, 600, ids)
    assert await node.absorb(NOW_US + 10, [change], NOW_US + 30)
    assert await node.abandon("node-other", ()) == 1
    await node.release(["x-closed"])
    assert [(one.spent, one.reserved, one.open, one.closed) for one in await node.counter_states()] == [
        ((before.spent or 0) + 600, 0, 0, 0) for before in STANDINGS
    ]


async def scenario(handle: Callable[[str], BudgetStore], clock: Clock) -> None:
    """What 0.1 did to make the golden files."""
    one, other = handle("node-one"), handle("node-other")
    for clock.now in (NOW - 2, NOW - 1):
        await one.heartbeat()
    clock.now = NOW
    for store in (one, other):
        await store.announce(lambda: OwnReservations((), (), ()))
    await one.seed([SpendTotal(counter.counter_id, counter.since, 1, NOW_US - 9) for counter in COUNTERS])
    await one.forget_sums()
    spent = (1_000_000_000, 999_999_990_000_000, -3_000_000_000)
    await one.seed(
        [
            SpendTotal(counter.counter_id, counter.since, nusd, NOW_US)
            for counter, nusd in zip(COUNTERS, spent, strict=True)
        ]
    )
    for store, name, nusd in ((one, "x-runs", 700), (other, "x-other", 900), (one, "x-closed", 800)):
        assert isinstance(await store.reserve(Reservation(name, COUNTERS, nusd, 1_000)), Granted)
    await one.close([Reservation("x-closed", COUNTERS, 333, 444)])
    assert isinstance(await one.reserve(Reservation("x-free", COUNTERS, 50, 10)), Granted)
    await one.close([Reservation("x-free", COUNTERS, 0, 0)])
    await one.grow("x-runs", 750)
    change = SpendDelta("x-elsewhere", NOW_US + 5, NOW - 9, 1_111, tuple(counter.counter_id for counter in COUNTERS))
    assert await one.absorb(NOW_US, [change], NOW_US + 10)
    assert await one.counter_states() == STANDINGS
    await one.aclose()
    await other.aclose()


# Of each life, and of each announcement; the number of calls.
RANDOM = {"{tokenweir:budgets}:life": ["generation"], "{tokenweir:budgets}:node:node-one": ["e", "n"],
          "{tokenweir:budgets}:node:node-other": ["e", "n"]}  # fmt: skip
# What 0.1 neither writes nor reads.
LATER = "history", "away", "patience", "left", "seen"
LATER_TABLES = ("CREATE TABLE announcements", 'INSERT INTO "announcements"')


def without_random(keys: dict[str, Any]) -> dict[str, Any]:
    for name, fields in RANDOM.items():
        content = keys[name]["content"]
        assert len([field for field, _ in content if field in fields]) == len(fields)
        keys[name]["content"] = [one for one in content if one[0] not in (*fields, *LATER)]
    return keys


async def test_redis_is_written_the_same(plain: Any, client: Any, clock: Clock) -> None:
    await scenario(lambda name: RedisBudgets(client, node=name, unix_time=clock), clock)
    found = await dump(plain)
    assert sorted(found) == REDIS_KEYS
    golden = without_random(golden_json("redis/budgets.json"))
    assert without_random(found) == golden


async def test_the_file_is_written_the_same(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "budgets.db"
    await scenario(lambda name: SqliteBudgets(path, node=name, unix_time=clock), clock)
    random = ('INSERT INTO "life"', 'INSERT INTO "nodes"', *LATER_TABLES)
    golden = (HERE / "budgets.sql").read_text().splitlines()
    assert [line for line in sqlite_lines(path) if not line.startswith(random)] == [
        line for line in golden if not line.startswith(random)
    ]


# -- claims


@pytest.fixture(params=["local", "redis"])
async def claim_store(
    request: pytest.FixtureRequest, tmp_path: Path, plain: Any, client: Any
) -> AsyncIterator[ClaimStore]:
    """With what 0.1 left."""
    if request.param == "local":
        load_sqlite("claims.sql", tmp_path / "claims.db")
        store: Any = LocalClaims(tmp_path / "claims.db", retention_s=86_400, unix_time=lambda: NOW + 1)
    else:
        await load_redis(plain, "claims.json")
        store = RedisClaims(client, retention_s=3_600)
    yield store
    await store.aclose()


def failed(error: OSError) -> None:
    raise AssertionError(error)


async def test_claims_are_recognised(claim_store: ClaimStore) -> None:
    claims = Claims(claim_store, pepper=PEPPER, answer_bytes_max=1_000, on_failure=failed)
    body = b'{"model":"electron"}'
    wanted = {
        "running": (exchange_id(1), True, False, None),
        "ended": (exchange_id(2), True, True, None),
        "kept": (exchange_id(3), True, True, b'{"id":"chatcmpl-3"}'),
    }
    for token, told in wanted.items():
        earlier = await claims.claim("key_golden", token, digest_of([body]), exchange_id(9))
        assert earlier is not None
        assert (earlier.exchange_id, earlier.same_body, earlier.ended, earlier.answer) == told
    other = await claims.claim("key_golden", "kept", digest_of([b"{}"]), exchange_id(9))
    assert other is not None
    assert not other.same_body
    await claims.end("key_golden", "running", exchange_id(1), billed=False, answer=None)
    assert await claims.claim("key_golden", "running", digest_of([body]), exchange_id(9)) is None


async def claim_again(store: ClaimStore) -> None:
    """What 0.1 did to make the golden files."""
    claims = Claims(store, pepper=PEPPER, answer_bytes_max=1_000, on_failure=failed)
    for token, number in (("running", 1), ("ended", 2), ("kept", 3)):
        digest = digest_of([b'{"model":"electron"}'])
        assert await claims.claim("key_golden", token, digest, exchange_id(number)) is None
    await claims.end("key_golden", "ended", exchange_id(2), billed=True, answer=None)
    await claims.end("key_golden", "kept", exchange_id(3), billed=True, answer=b'{"id":"chatcmpl-3"}')
    await claims.aclose()


def without_answers(keys: dict[str, Any]) -> dict[str, Any]:
    """A sealed answer is another one each time."""
    for one in keys.values():
        one["content"] = [[field, field == "r" or value] for field, value in one["content"]]
    return keys


async def test_claims_in_redis_are_written_the_same(plain: Any, client: Any) -> None:
    await claim_again(RedisClaims(client, retention_s=3_600))
    assert without_answers(await dump(plain)) == without_answers(golden_json("redis/claims.json"))


async def test_claims_in_a_file_are_written_the_same(tmp_path: Path) -> None:
    path = tmp_path / "claims.db"
    await claim_again(LocalClaims(path, retention_s=86_400, unix_time=lambda: NOW))
    golden = (HERE / "claims.sql").read_text().splitlines()
    written = [line for line in sqlite_lines(path) if "owners" not in line]  # a later table
    assert [line for line in written if ",X'" not in line] == [line for line in golden if ",X'" not in line]
