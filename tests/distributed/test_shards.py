"""Several shards: workers that come and go divide them, and each record is settled once wherever it was sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from sqlalchemy import func, select

from proxy.delivery.redis_queue import RedisQueue
from proxy.delivery.sharded_queue import ShardedQueue
from proxy.journal.frames import record_payload
from proxy.journal.journal import Pending
from proxy.ledger.schema.tables import ledger_clock
from proxy.storage.database import open_engine, reading
from proxy.storage.redis_client import open_redis
from tests.distributed.apart import Apart
from tests.ledger.entries import assert_sums
from tests.ledger.priced_entries import FIRST, NODE, a_real_record

pytestmark = pytest.mark.thorough

SHARDS, KEYS = 3, 20
PATIENCE_S = 120.0


@pytest.fixture
async def streams(queue_url: str) -> AsyncIterator[list[RedisQueue]]:
    """As a proxy sends to them."""
    redis = open_redis(queue_url)
    yield [RedisQueue(redis, shard=shard, consumer="-") for shard in range(SHARDS)]
    with suppress(Exception):
        await redis.aclose()


def pending(number: int) -> Pending:
    return Pending(FIRST + number, record_payload(a_real_record(number, key=f"key_{number % KEYS}")))


@pytest.mark.waits
@pytest.mark.parametrize("apart", [{"queue_shards": SHARDS}], indirect=True, ids=["shards"])
@pytest.mark.parametrize("count", [300, pytest.param(1_500, marks=pytest.mark.slow)])
async def test_workers_come_and_go_and_each_record_is_settled_once(
    apart: Apart, streams: list[RedisQueue], ledger_url: str, count: int
) -> None:
    """Versions before 0.2 sent to any stream; a record that is sent again may be in two."""
    step = count // 15
    records = [pending(number) for number in range(count)]
    workers = [apart.unstarted_worker() for _ in range(3)]
    await asyncio.gather(*(asyncio.to_thread(one.start) for one in workers))
    for at in range(0, count, step):
        part = records[at : at + step]
        await ShardedQueue(streams).add(part, NODE)
        await streams[at // step % SHARDS].add(part[::10], NODE)
        if at == count // 3:
            workers[0].kill()
        if at == 7 * step:
            await asyncio.to_thread(workers[1].stop)
    async with asyncio.timeout(PATIENCE_S):
        while any([await stream.depth() for stream in streams]):
            await asyncio.sleep(0.1)
    proxy = apart.proxies[0]
    entries = await asyncio.to_thread(proxy.until, lambda all_: len(all_) >= count, timeout_s=PATIENCE_S)
    assert Counter(entry["exchange_id"] for entry in entries) == Counter(
        a_real_record(number).opened.exchange_id for number in range(count)
    )
    engine = open_engine(ledger_url)
    assert_sums(engine)
    with reading(engine) as connection:
        assert connection.execute(select(func.count()).select_from(ledger_clock)).scalar_one() == SHARDS
    engine.dispose()
