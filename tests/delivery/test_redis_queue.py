"""The stream of records on a real server that is killed, stopped, emptied and filled up, with workers that die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from proxy.delivery.delivery import DeliveredRecord
from proxy.delivery.redis_queue import CLAIM_AFTER_MS, GROUP, TIDY_S, ReclaimLock, RedisQueue
from proxy.journal.frames import UndecodableError
from proxy.journal.journal import Pending
from proxy.ledger.settling.settler import DELIVERIES_MAX
from proxy.storage.redis_client import ANSWER_S, BLOCK_MS, QueueUnavailable, RedisClient
from tests.support.clock import Clock
from tests.support.faulty import FaultyPath
from tests.support.scripted_redis import ScriptedRedis, bulk
from tests.support.valkey import Valkey

pytestmark = pytest.mark.io

LONG_MS = 10 * CLAIM_AFTER_MS
BLOCK_SHORT_MS = 20

Make = Callable[..., RedisQueue]


def records(count: int, first: int = 1, *, length: int = 0) -> list[Pending]:
    filler = b"x" * length
    return [Pending(seq, b'{"number": %d, "filler": "%s"}' % (seq, filler)) for seq in range(first, first + count)]


def seqs(taken: Sequence[DeliveredRecord]) -> list[int]:
    return [one.seq for one in taken]


@pytest.fixture
def make(redis_to: Callable[[str], RedisClient], redis_url: str, prefix: str) -> Make:
    """Queues on one stream: each with a client of its own, as in a process of its own."""

    def queue(consumer: str = "w1", *, url: str = redis_url, **options: Any) -> RedisQueue:
        options = {"block_ms": BLOCK_SHORT_MS, "linger_s": 0.0, **options}
        return RedisQueue(redis_to(url), prefix=prefix, consumer=consumer, **options)

    return queue


async def pending(queue: RedisQueue) -> list[dict[str, Any]]:
    client, key = queue._redis, queue._key
    found: list[dict[str, Any]] = await client.xpending_range(key, GROUP, "-", "+", 1_000)
    return found


async def let_time_pass(queue: RedisQueue) -> None:
    """For the messages that are pending: nobody has touched them for long."""
    client, key = queue._redis, queue._key
    for one in await pending(queue):
        await client.xclaim(key, GROUP, one["consumer"], 0, [one["message_id"]], idle=LONG_MS, justid=True)


async def taken_within(queue: RedisQueue, limit: int = 100, *, within_s: float = 10.0) -> Sequence[DeliveredRecord]:
    async with asyncio.timeout(within_s):
        while not (taken := await queue.take(limit)):
            pass
    return taken


# -- what is lost on the way ---------------------------------------------------------------------------------------


async def test_a_lost_reply_to_a_send_is_an_error_and_nothing_is_sent_behind_our_back(
    make: Make, path: FaultyPath, hurt_url: str
) -> None:
    sender, receiver = make(url=hurt_url), make("w2")
    await sender.add(records(1), "node")
    path.lose_reply(to=b"XADD")
    with pytest.raises(QueueUnavailable):
        await sender.add(records(10, 2), "node")
    assert path.lost
    assert await receiver.depth() == 11
    await sender.add(records(10, 2), "node")
    assert await receiver.depth() == 21


async def test_tickets_come_in_the_order_of_their_records(make: Make) -> None:
    queue = make()
    tickets = await queue.add(records(50), "node")
    taken = await queue.take(100)
    assert [one.message_id for one in taken] == tickets
    assert seqs(taken) == list(range(1, 51))


async def test_a_waiting_take_is_not_cut_by_a_timeout_of_the_library(
    make: Make, path: FaultyPath, hurt_url: str
) -> None:
    assert ANSWER_S > 2 * BLOCK_MS / 1000
    queue = make(url=hurt_url, block_ms=BLOCK_MS)
    assert list(await queue.take(10)) == []
    assert path.accepted == 1


async def test_after_a_lost_reply_what_is_still_held_does_not_come_again(
    make: Make, path: FaultyPath, hurt_url: str
) -> None:
    queue, sender = make(url=hurt_url), make("sender")
    await sender.add(records(3), "node")
    held = await queue.take(2)
    path.lose_reply(to=b"XREADGROUP")
    with pytest.raises(QueueUnavailable):
        await queue.take(10)
    assert seqs(await queue.take(10)) == [3]
    await queue.settled(held)
    assert await sender.depth() == 1


@pytest.mark.parametrize("claims_lost", [0, 4])
async def test_what_a_lost_reply_held_comes_again_at_once_and_lost_replies_are_no_tries(
    make: Make, path: FaultyPath, hurt_url: str, claims_lost: int
) -> None:
    queue, sender = make(url=hurt_url), make("sender")
    assert list(await queue.take(10)) == []
    await sender.add(records(3), "node")
    for command in (b"XREADGROUP", *[b"XCLAIM"] * claims_lost):
        path.lose_reply(to=command)
        with pytest.raises(QueueUnavailable):
            await queue.take(10)
    taken = await queue.take(10)
    assert seqs(taken) == [1, 2, 3]
    assert {one.deliveries for one in taken} == {2}
    await queue.settled(taken)
    assert await sender.depth() == 0


async def test_an_acknowledgement_that_was_lost_is_repeated(make: Make, path: FaultyPath, hurt_url: str) -> None:
    queue, sender = make(url=hurt_url), make("sender")
    await sender.add(records(3), "node")
    taken = await queue.take(10)
    path.cut()
    await queue.settled(taken)
    assert await sender.depth() == 3
    path.heal()
    assert list(await queue.take(10)) == []
    assert await sender.depth() == 0
    assert await pending(sender) == []


async def test_words_of_an_error_hold_no_record_and_no_password(make: Make) -> None:
    queue = make()
    client, key = queue._redis, queue._key
    await client.set(key, "not a stream")
    with pytest.raises(QueueUnavailable, match="WRONGTYPE") as caught:
        await queue.add([Pending(1, b'{"secret": "canary"}')], "node")
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


# -- what happens to the server ------------------------------------------------------------------------------------


async def test_after_flushall_the_stream_begins_anew(make: Make, valkey: Valkey) -> None:
    queue = make(url=valkey.url)
    await queue.add(records(3), "node")
    assert len(await queue.take(10)) == 3
    valkey.ask("FLUSHALL")
    await queue.add(records(2, 4), "node")
    assert seqs(await queue.take(10)) == [4, 5]


async def test_flushall_is_no_error_for_who_tidies_up(make: Make, valkey: Valkey) -> None:
    clock = Clock(1_000.0)
    queue = make(url=valkey.url, monotonic=clock)
    await queue.add(records(1), "node")
    await queue.settled(await queue.take(10))
    valkey.ask("FLUSHALL")
    clock.now += TIDY_S
    assert list(await queue.take(10)) == []


async def test_flushall_under_a_waiting_take(make: Make, valkey: Valkey) -> None:
    queue, sender = make(url=valkey.url, block_ms=BLOCK_MS), make("sender", url=valkey.url)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(taken_within(queue))
        await asyncio.to_thread(valkey.until, "blocked_clients:1", "INFO", "clients")
        valkey.ask("FLUSHALL")
        await sender.add(records(1), "node")
    assert seqs(waiting.result()) == [1]


async def test_a_group_that_was_destroyed_is_made_again_and_loses_nothing(make: Make) -> None:
    queue = make()
    await queue.add(records(6), "node")
    await queue.settled(await queue.take(2))
    held = await queue.take(2)
    client, key = queue._redis, queue._key
    await client.xgroup_destroy(key, GROUP)
    assert seqs(await queue.take(10)) == [3, 4, 5, 6], "what was held comes again, what was settled does not"
    await queue.settled(held)


async def test_kill_9_with_everysec_and_a_start_on_what_was_kept(make: Make, tmp_path: Path) -> None:
    with closing(Valkey(tmp_path / "kept", "--appendonly", "yes", "--appendfsync", "everysec").start()) as server:
        queue = make(url=server.url)
        await queue.add(records(100), "node")
        held = await queue.take(40)
        # While an fsync runs, "everysec" keeps what follows in the server's own memory, for up to two seconds.
        server.until("aof_buffer_length:0", "INFO", "persistence")
        server.kill()
        with pytest.raises(QueueUnavailable):
            await queue.take(10)
        with pytest.raises(QueueUnavailable):
            await queue.add(records(1, 101), "node")
        server.start()
        await queue.settled(held)
        rest = await queue.take(100)
        assert seqs(rest) == list(range(41, 101)), "the page cache had it all"
        await queue.settled(rest)
        assert await queue.depth() == 0


async def test_a_server_that_is_stopped_for_two_seconds_is_waited_for(make: Make, valkey: Valkey) -> None:
    queue = make(url=valkey.url)
    await queue.add(records(1), "node")
    valkey.pause()
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(queue.add(records(5, 2), "node"))
        await asyncio.sleep(2)
        assert not sending.done()
        valkey.resume()
    assert len(sending.result()) == 5
    assert await queue.depth() == 6


async def fill(queue: RedisQueue) -> None:
    for first in range(1, 10_000, 100):
        await queue.add(records(100, first, length=1_000), "node")


async def test_a_full_server_refuses_records_and_gives_them_out(make: Make, tmp_path: Path) -> None:
    options = "--maxmemory", "2mb", "--maxmemory-policy", "noeviction"
    with closing(Valkey(tmp_path / "small", *options).start()) as server:
        queue = make(url=server.url)
        with pytest.raises(QueueUnavailable, match="has no memory left"):
            await fill(queue)
        assert await queue.depth() > 0
        while taken := await queue.take(100):
            await queue.settled(taken)
        await queue.add(records(1, 5_000, length=1_000), "node")
        assert await queue.depth() == 1


async def test_a_server_that_became_a_replica_refuses_until_it_is_a_primary_again(make: Make, valkey: Valkey) -> None:
    queue = make(url=valkey.url)
    await queue.add(records(2), "node")
    await queue.take(1)
    valkey.ask("REPLICAOF", "127.0.0.1", "1")
    connections = valkey.ask("INFO", "stats").partition(b"total_connections_received:")[2].split()[0]
    with pytest.raises(QueueUnavailable, match="is a replica"):
        await queue.add(records(1, 3), "node")
    with pytest.raises(QueueUnavailable):
        await queue.take(10)
    valkey.ask("REPLICAOF", "NO", "ONE")
    await queue.add(records(1, 3), "node")
    more = valkey.ask("INFO", "stats").partition(b"total_connections_received:")[2].split()[0]
    assert int(more) - int(connections) >= 3, "its name is looked up anew: it may lead elsewhere"
    assert await queue.depth() == 3


# -- workers that die ----------------------------------------------------------------------------------------------


async def test_what_a_dead_worker_held_comes_to_another_in_one_batch_before_what_is_new(make: Make) -> None:
    dead, other, alive = make("dead"), make("other"), make("alive")
    await dead.add(records(10), "node")
    assert len(await dead.take(10)) == 10
    await dead.add(records(1, 11), "node")
    assert seqs(await other.take(100)) == [11], "it is not known to be dead yet"
    await other.settled([])
    await let_time_pass(dead)
    await dead.add(records(1, 12), "node")
    taken = await alive.take(100)
    assert seqs(taken) == list(range(1, 12))
    assert {one.deliveries for one in taken} == {2}
    await alive.settled(taken)
    assert seqs(await alive.take(100)) == [12]


async def test_queues_of_one_process_try_again_one_at_a_time(make: Make) -> None:
    """Or a record that kills would take whatever the other has with it, again and again."""
    turn = ReclaimLock()
    dead, next_one, one, other = make("dead"), make("next"), make("one", reclaim=turn), make("other", reclaim=turn)
    await dead.add(records(2), "node")
    for dying in (dead, next_one):
        assert seqs(await dying.take(10)) == [1, 2]
        await let_time_pass(dying)
    taken = await one.take(10)
    assert seqs(taken) == [1]
    assert list(await other.take(10)) == []
    await one.settled(taken)
    assert seqs(await other.take(10)) == [2]


async def test_a_batch_that_a_living_worker_holds_is_not_taken(make: Make) -> None:
    slow, other = make("slow"), make("other")
    await slow.add(records(5), "node")
    held = await slow.take(5)
    await let_time_pass(slow)
    await slow.extend_claim(held)
    assert list(await other.take(10)) == []
    assert {one["times_delivered"] for one in await pending(slow)} == {1}, "holding is no try"
    await slow.settled(held)
    assert await slow.depth() == 0


async def test_a_poison_record_is_alone_from_its_third_delivery_on_and_its_neighbours_settle(make: Make) -> None:
    """Every worker dies when it tries record 3, until its deliveries say that it must not be tried."""
    sender = make("sender")
    await sender.add(records(6), "node")
    settled: list[int] = []
    tries: list[list[int]] = []
    for number in range(DELIVERIES_MAX + 1):
        worker = make(f"worker-{number}")
        while 3 not in seqs(taken := await taken_within(worker)):
            settled += seqs(taken)
            await worker.settled(taken)
        tries.append(seqs(taken))
        assert next(one for one in taken if one.seq == 3).deliveries == len(tries)
        await let_time_pass(sender)  # it is dead, and all that it held is nobody's
    await worker.settled(taken)  # in the dead letters
    while taken := await worker.take(10):
        settled += seqs(taken)
        await worker.settled(taken)
    assert tries == [[1, 2, 3, 4, 5, 6]] * 2 + [[3]] * (DELIVERIES_MAX - 1)
    assert sorted(settled) == [1, 2, 4, 5, 6]
    assert await sender.depth() == 0


async def test_many_workers_share_the_stream_and_nothing_comes_twice(make: Make) -> None:
    workers = [make(f"worker-{number}") for number in range(4)]
    got: list[int] = []

    async def work(queue: RedisQueue) -> None:
        while len(got) < 400:
            taken = await queue.take(7)
            got.extend(seqs(taken))
            await queue.settled(taken)

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for worker in workers:
            tasks.create_task(work(worker))
        for first in range(1, 401, 50):
            await workers[0].add(records(50, first), "node")
    assert sorted(got) == list(range(1, 401))


async def test_two_workers_that_want_the_same_orphans_do_not_share_them(make: Make) -> None:
    dead = make("dead")
    await dead.add(records(20), "node")
    await dead.take(20)
    await let_time_pass(dead)
    heirs = [make(f"heir-{number}") for number in range(4)]
    shares = await asyncio.gather(*(heir.take(100) for heir in heirs))
    assert sorted(seq for share in shares for seq in seqs(share)) == list(range(1, 21))


async def test_a_worker_that_comes_back_under_its_name_has_its_own_at_once(make: Make) -> None:
    before, after = make("same"), make("same")
    await before.add(records(3), "node")
    await before.take(10)
    assert seqs(await after.take(10)) == [1, 2, 3]


async def test_a_pending_message_that_is_in_no_stream_any_more_is_forgotten(make: Make) -> None:
    dead, alive = make("dead"), make("alive")
    tickets = await dead.add(records(3), "node")
    await dead.take(10)
    await let_time_pass(dead)
    client, key = dead._redis, dead._key
    await client.xdel(key, tickets[1])
    assert seqs(await taken_within(alive)) == [1, 3]
    assert [one["message_id"] for one in await pending(alive)] == [tickets[0], tickets[2]]


async def test_redis_6_2_says_nil_for_it_and_it_is_forgotten_too(redis_to: Callable[[str], RedisClient]) -> None:
    """Redis 7 and Valkey forget it by themselves."""
    found = b"*2\r\n" + b"".join(
        b"*4\r\n" + bulk(f"{number}-0") + bulk("dead") + b":99999\r\n:1\r\n" for number in (1, 2)
    )
    fields = "".join(bulk(word).decode() for word in ("v", "1", "n", "node", "s", "7", "r", "{}")).encode()
    entry = b"*2\r\n" + bulk("2-0") + b"*8\r\n" + fields
    answers = {"XPENDING": found, "XCLAIM": b"*2\r\n*-1\r\n" + entry, "XRANGE": b"*0\r\n", "XACK": b":1\r\n"}
    async with ScriptedRedis(answers) as server:
        queue = RedisQueue(redis_to(server.url), consumer="w1")
        assert seqs(await queue.take(10)) == [7]
        [acknowledged] = [words for words in server.asked if words[0] == b"XACK"]
        assert acknowledged[-1] == b"1-0"


# -- tidying -------------------------------------------------------------------------------------------------------


async def consumers(queue: RedisQueue) -> set[str]:
    client, key = queue._redis, queue._key
    return {one["name"].decode() for one in await client.xinfo_consumers(key, GROUP)}


async def test_names_of_workers_that_died_long_ago_are_removed_once_they_hold_nothing(make: Make) -> None:
    clock = Clock(1_000.0)
    idle, holding = make("idle", claim_after_ms=5), make("holding", claim_after_ms=5)
    alive = make("alive", claim_after_ms=5, monotonic=clock)
    await idle.add(records(2), "node")
    await idle.settled(await idle.take(1))
    assert len(await holding.take(1)) == 1
    assert await consumers(idle) == {"idle", "holding"}
    await asyncio.sleep(0.2)
    clock.now += TIDY_S
    orphans = await alive.take(1)
    assert seqs(orphans) == [2]
    assert await consumers(alive) == {"holding", "alive"}
    clock.now += TIDY_S
    await alive.take(1)
    assert await consumers(alive) == {"alive"}


async def test_what_is_pending_with_nobody_is_found(make: Make) -> None:
    """An operator removed a worker's name by hand: its messages are delivered, and nobody's."""
    clock = Clock(1_000.0)
    dead, alive = make("dead"), make("alive", monotonic=clock)
    await dead.add(records(3), "node")
    await dead.take(2)
    client, key = dead._redis, dead._key
    assert await client.xgroup_delconsumer(key, GROUP, "dead") == 2
    last = await alive.take(10)
    assert seqs(last) == [3]
    await alive.settled(last)
    assert list(await alive.take(10)) == []
    clock.now += TIDY_S
    taken = await alive.take(10)
    assert seqs(taken) == [1, 2]
    await alive.settled(taken)
    clock.now += TIDY_S
    assert list(await alive.take(10)) == []


async def test_a_worker_that_stops_takes_no_more_and_acknowledges_what_it_has(make: Make, valkey: Valkey) -> None:
    queue, other = make(url=valkey.url), make("other", url=valkey.url)
    await queue.add(records(5), "node")
    taken = await queue.take(3)
    queue.drain()
    valkey.ask("CLIENT", "KILL", "TYPE", "normal")
    await queue.settled(taken)
    with suppress(QueueUnavailable):
        assert list(await queue.take(10)) == []
    assert list(await queue.take(10)) == []
    assert seqs(await other.take(10)) == [4, 5]
    assert await other.depth() == 2


# -- what others wrote ---------------------------------------------------------------------------------------------


async def test_a_message_that_cannot_be_read_goes_on_with_its_receipt(make: Make) -> None:
    queue = make()
    client, key = queue._redis, queue._key
    await client.xadd(key, {"v": "2", "n": "node", "s": "7", "z": "new \udcff".encode("utf-8", "surrogateescape")})
    await client.xadd(key, {"hello": "world"})
    await client.xadd(key, {"v": "1", "n": "node", "s": "9" * 30, "r": "{}"})
    newer, foreign, odd = await queue.take(10)
    assert (newer.node, newer.seq) == ("node", 7)
    assert msgspec.json.decode(newer.payload)["z"] == "new \ufffd"
    assert (foreign.node, foreign.seq) == (odd.node, odd.seq) == ("", 0)
    for one in (newer, foreign, odd):
        with pytest.raises(UndecodableError):
            _ = one.record


# -- what is asked about the stream --------------------------------------------------------------------------------


async def test_missing_says_what_is_not_there(make: Make) -> None:
    queue = make()
    tickets = await queue.add(records(5), "node")
    taken = await queue.take(2)
    assert await queue.missing(tickets) == []
    await queue.settled(taken)
    assert await queue.missing(tickets) == tickets[:2]
    assert await queue.missing([]) == []


async def test_depth_and_age(make: Make) -> None:
    queue = make(unix_time=lambda: time.time() + 100)
    assert (await queue.depth(), await queue.oldest_age_s()) == (0, 0.0)
    await queue.add(records(3), "node")
    assert await queue.depth() == 3
    assert 99 < await queue.oldest_age_s() < 120


async def test_shards_are_streams_of_their_own_each_in_one_slot(make: Make) -> None:
    first, second = make(shard=0), make(shard=1)
    await first.add(records(1), "node")
    assert list(await second.take(10)) == []
    client, key = first._redis, first._key
    assert isinstance(client, Redis)
    assert key.startswith(b"{")
    assert b"}:" in key
