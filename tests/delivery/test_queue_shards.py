"""Several streams: records by key, and workers that divide the streams among themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from proxy.billing.record import key_id_in
from proxy.delivery import redis_queue, roster
from proxy.delivery.redis_queue import RedisQueue
from proxy.delivery.roster import WorkerRoster
from proxy.delivery.sharded_queue import ShardedQueue, shard_of
from proxy.journal.journal import Pending
from proxy.storage.redis_client import RedisClient
from tests.support.waiting import beside, until

SHARDS = 4


@pytest.fixture
def redis(redis_to: Callable[[str], RedisClient], redis_url: str) -> RedisClient:
    return redis_to(redis_url)


@pytest.fixture
def streams(redis: RedisClient, prefix: str) -> list[RedisQueue]:
    """Every stream, as one worker takes from it."""
    return [
        RedisQueue(redis, prefix=prefix, shard=shard, consumer="w", block_ms=20, linger_s=0.0)
        for shard in range(SHARDS)
    ]


@pytest.fixture
def member(redis: RedisClient, prefix: str) -> Callable[[str], WorkerRoster]:
    return partial(WorkerRoster, redis, shards=SHARDS, prefix=prefix)


def records(*keys: str) -> list[Pending]:
    numbers = count(1)
    return [Pending(next(numbers), b'{"version": 9, "opened": {"key_id": "%b"}}' % key.encode()) for key in keys]


async def taken(stream: RedisQueue) -> list[int]:
    return [one.seq for one in await stream.take(100)]


def test_a_key_has_the_same_shard_in_every_version() -> None:
    assert [shard_of(key, 4) for key in ("key_1", "key_2", "key_3", "key_4", "łódź")] == [2, 0, 2, 1, 3]
    assert shard_of("\ud800", 64) < 64


def test_the_key_of_a_record_that_cannot_be_read_is_unknown() -> None:
    assert key_id_in(b'{"version": 9, "opened": {"key_id": "key_1", "more": []}}') == "key_1"
    for payload in (b"", b"\xff", b"[]", b'{"opened": {"key_id": 1}}', b"[" * 100_000):
        assert key_id_in(payload) is None


async def test_records_of_a_key_are_in_one_stream_in_order(streams: list[RedisQueue]) -> None:
    sent = records(*[f"key_{number % 7}" for number in range(60)])
    names = await ShardedQueue(streams).add(sent, "node")
    assert [int(name.partition(b"/")[0]) for name in names] == [shard_of(f"key_{n % 7}", SHARDS) for n in range(60)]
    for shard, stream in enumerate(streams):
        expected = [one.seq for one in sent if shard_of(key_id_in(one.payload) or "", SHARDS) == shard]
        assert await taken(stream) == expected


async def test_what_is_settled_is_missing_in_its_stream(streams: list[RedisQueue]) -> None:
    queue = ShardedQueue(streams)
    names = await queue.add(records("key_1", "key_2", "key_3", "key_4"), "node")
    assert await queue.missing(names) == []
    await streams[2].settled(await streams[2].take(100))
    assert await queue.missing(names) == [names[0], names[2]]


async def test_one_stream_takes_what_cannot_be_read(streams: list[RedisQueue]) -> None:
    await ShardedQueue(streams[:1]).add([Pending(1, b"?")], "node")
    await ShardedQueue(streams).add([Pending(2, b"?")], "node")
    assert await taken(streams[0]) == [1, 2]


async def test_workers_divide_the_shards(member: Callable[[str], WorkerRoster]) -> None:
    workers = [member(name) for name in ("b", "a", "c")]
    assert not any(one.settles(shard) for one in workers for shard in range(SHARDS))
    for one in workers * 2:
        await one.renew()
    shares = [[shard for shard in range(SHARDS) if one.settles(shard)] for one in workers]
    assert shares == [[1], [0, 3], [2]]
    await workers[1].leave()
    assert not any(workers[1].settles(shard) for shard in range(SHARDS))
    await workers[0].renew()
    assert [shard for shard in range(SHARDS) if workers[0].settles(shard)] == [0, 2]


async def test_the_shards_of_a_dead_worker_are_divided(
    member: Callable[[str], WorkerRoster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "LIVE_S", 0.2)
    monkeypatch.setattr(roster, "RENEW_S", 0.02)
    dead, living = member("a"), member("b")
    await dead.renew()
    async with asyncio.timeout(10), beside(living.run()):
        await until(lambda: all(living.settles(shard) for shard in range(SHARDS)))


async def test_a_single_shard_is_everybodys(redis: RedisClient, prefix: str) -> None:
    assert WorkerRoster(redis, "a", shards=1, prefix=prefix).settles(0)


async def test_a_worker_that_stands_by_takes_nothing_until_its_turn(
    redis: RedisClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_queue, "STANDBY_S", 0.01)
    turn = False
    stream = RedisQueue(redis, prefix=prefix, consumer="w", block_ms=20, linger_s=0.0, settles=lambda: turn)
    await stream.add(records("key_1"), "node")
    assert await taken(stream) == []
    turn = True
    assert await taken(stream) == [1]


async def test_workers_with_another_number_of_shards_divide_theirs(redis: RedisClient, prefix: str) -> None:
    few, many = (WorkerRoster(redis, "a", shards=number, prefix=prefix) for number in (2, 3))
    await few.renew()
    await many.renew()
    assert [few.settles(shard) for shard in range(2)] == [True] * 2
    assert [many.settles(shard) for shard in range(3)] == [True] * 3
