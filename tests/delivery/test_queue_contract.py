"""What every queue promises to a settler, on the journal itself and on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from proxy.delivery.local_queue import LocalQueue
from proxy.delivery.redis_queue import RedisQueue
from proxy.journal.journal import Journal
from proxy.storage.redis_client import RedisClient
from tests.journal.journals import run_through


@dataclass
class Bench:
    """A queue, and the journal whose records get into it."""

    queue: LocalQueue | RedisQueue
    journal: Journal
    sent: int = 0

    async def feed(self, count: int) -> None:
        """So many more records."""
        run_through(self.journal, range(self.journal.depth, self.journal.depth + count))
        if isinstance(self.queue, RedisQueue):
            pending = self.journal.pending(10_000, after=self.sent)
            self.sent = pending[-1].seq
            await self.queue.add(pending, self.journal.node.node_id)


@pytest.fixture(params=["local", "redis"])
def bench(
    request: pytest.FixtureRequest, journal: Journal, redis_to: Callable[[str], RedisClient], prefix: str
) -> Iterator[Bench]:
    if request.param == "local":
        yield Bench(LocalQueue(journal, linger_s=0.001), journal)
    else:
        client = redis_to(request.getfixturevalue("redis_url"))
        yield Bench(RedisQueue(client, prefix=prefix, consumer="w1", block_ms=200, linger_s=0.001), journal)
    journal.close()


async def test_records_come_in_order_whole_and_with_their_receipt(bench: Bench) -> None:
    await bench.feed(5)
    taken = await bench.queue.take(10)
    expected = bench.journal.pending(10)
    assert [(one.node, one.seq, one.payload) for one in taken] == [
        (bench.journal.node.node_id, one.seq, one.payload) for one in expected
    ]
    assert [one.record for one in taken] == [one.record for one in expected]
    assert {one.deliveries for one in taken} == {1}


async def test_no_more_come_than_were_asked_for_and_the_rest_comes_next(bench: Bench) -> None:
    await bench.feed(7)
    seqs: list[int] = []
    for expected in (3, 3, 1):
        taken = await bench.queue.take(3)
        assert len(taken) == expected
        seqs += [one.seq for one in taken]
        await bench.queue.settled(taken)
    assert seqs == sorted(seqs)
    assert len(set(seqs)) == 7


async def test_what_is_settled_does_not_come_again(bench: Bench) -> None:
    await bench.feed(3)
    taken = await bench.queue.take(10)
    await bench.queue.settled(taken[:2])
    await bench.queue.settled(taken[2:])
    await bench.queue.settled(taken)  # twice changes nothing
    await bench.feed(1)
    more = await bench.queue.take(10)
    assert [one.seq for one in more] == [taken[-1].seq + 1]


async def test_an_empty_queue_waits_for_a_while_and_then_gives_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.delivery.local_queue.POLL_S", 0.2)
    loop = asyncio.get_running_loop()
    assert list(await bench.queue.take(10)) == []
    began = loop.time()
    assert list(await bench.queue.take(10)) == []
    assert loop.time() - began >= 0.19


async def test_a_wait_ends_with_the_first_record(bench: Bench) -> None:
    assert list(await bench.queue.take(1)) == []
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(bench.queue.take(10))
        await asyncio.sleep(0.05)
        await bench.feed(1)
    assert len(waiting.result()) == 1


async def test_a_take_can_be_cancelled_and_nothing_is_lost(bench: Bench) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(bench.queue.take(10))
        await asyncio.sleep(0.05)
        waiting.cancel()
    await bench.feed(2)
    assert len(await bench.queue.take(10)) == 2


async def test_holding_changes_nothing_for_the_holder(bench: Bench) -> None:
    await bench.feed(2)
    taken = await bench.queue.take(10)
    await bench.queue.extend_claim(taken)
    await bench.queue.settled(taken)
    await bench.feed(1)
    assert len(await bench.queue.take(10)) == 1


@pytest.mark.parametrize("bench", ["local"], indirect=True)
async def test_a_local_queue_that_drains_waits_for_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.delivery.local_queue.POLL_S", 3_600.0)
    async with asyncio.timeout(10):
        assert isinstance(bench.queue, LocalQueue)
        await bench.feed(1)
        taken = await bench.queue.take(10)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(bench.queue.take(10))
            await asyncio.sleep(0)
            await bench.queue.settled(taken)
            bench.queue.drain()
        assert list(waiting.result()) == []
        assert list(await bench.queue.take(10)) == []
