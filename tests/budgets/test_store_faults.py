"""What goes wrong with the stores of holds and sums: lost answers, late questions, failovers; damaged, busy files."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import CounterState, DenialReason, Denied, Granted, Reservation, SpendTotal, Unseeded
from proxy.budgets.redis import store as redis_store
from proxy.budgets.redis.known_nodes import KnownNodes
from proxy.budgets.redis.store import CALLS_AT_ONCE, WARM_S_MAX, RedisBudgets
from proxy.budgets.sqlite import file as budget_file
from proxy.budgets.sqlite import store as sqlite_store
from proxy.budgets.sqlite.store import BUSY_S_MAX, SqliteBudgets
from proxy.budgets.store import BudgetsIncomplete, BudgetsUnavailable, OwnReservations
from proxy.storage.redis_client import RedisClient
from tests.budgets.stores import warm
from tests.support.faulty import FaultyPath
from tests.support.valkey import Valkey
from tests.support.waiting import beside, until

pytestmark = pytest.mark.io

KEY = LimitCounter("key_a", nusd_max=1_000)
Open = Callable[..., RedisBudgets]
LONG_S = 60.0


def reservation(exchange_id: str, nusd: int = 10, counter: LimitCounter = KEY) -> Reservation:
    return Reservation(exchange_id, (counter,), nusd, 0, time.time())


def owns(*running: Reservation) -> Callable[[], OwnReservations]:
    return lambda: OwnReservations(running, (), ())


async def seed(store: RedisBudgets | SqliteBudgets, spent: int = 0) -> None:
    await store.seed([SpendTotal("key_a", 0.0, spent, 100)])


# -- Redis


async def begin(store: RedisBudgets) -> None:
    """Seeded, and warm: nobody holds anything in a new store."""
    await seed(store)
    await warm(store)


@pytest.fixture
def connect(redis_to: Callable[[str], RedisClient], prefix: str) -> Open:
    def make(url: str, node: str, *, away_s: float = LONG_S, known_nodes: KnownNodes | None = None) -> RedisBudgets:
        return RedisBudgets(redis_to(url), node=node, prefix=prefix, away_s=away_s, known_nodes=known_nodes)

    return make


async def announced(store: RedisBudgets) -> RedisBudgets:
    """The store, which holds nothing."""
    await store.announce(owns())
    return store


@pytest.fixture
def path(redis_url: str) -> Iterator[FaultyPath]:
    with FaultyPath("127.0.0.1", int(redis_url.rpartition(":")[2])) as made:
        yield made


@pytest.mark.parametrize("skew_s", [-40.0, 0.0, 3_600.0])
async def test_a_heartbeat_tells_the_servers_time(
    redis_to: Callable[[str], RedisClient], redis_url: str, prefix: str, skew_s: float
) -> None:
    skews_s = [skew_s]
    store = RedisBudgets(redis_to(redis_url), node="n", prefix=prefix, own_time=lambda: time.time() + skews_s[0])
    assert store.time() == pytest.approx(time.time() + skew_s, abs=0.3)
    await store.heartbeat()
    assert store.time() == pytest.approx(time.time(), abs=0.3)
    skews_s[0] += 7_200
    assert store.time() == pytest.approx(time.time(), abs=0.3), "this machine's clock was set, and it has not asked yet"


async def test_a_lost_answer_may_have_happened_and_asking_again_is_once(
    connect: Open, redis_url: str, path: FaultyPath
) -> None:
    one, other = await announced(connect(f"redis://127.0.0.1:{path.port}", "one")), connect(redis_url, "other")
    await begin(one)
    assert isinstance(await one.reserve(reservation("w")), Granted)
    path.lose_reply(b"EVALSHA")
    with pytest.raises(BudgetsUnavailable):
        await one.reserve(reservation("x", 900))
    assert path.lost
    assert [found.reserved for found in await other.counter_states(["key_a"])] == [910], "it was sent once"
    assert isinstance(await one.reserve(reservation("x", 900)), Granted)
    assert [found.reserved for found in await other.counter_states(["key_a"])] == [910]
    assert not await one.heartbeat(), "who knows what else it did not hear of"
    await one.announce(owns(reservation("x", 900)))
    assert await one.heartbeat()
    assert await other.counter_states(["key_a"]) == [CounterState("key_a", 0.0, 0, 900, 1, 0)]


async def test_a_lost_announcement_is_made_again(connect: Open, redis_url: str, path: FaultyPath) -> None:
    one = await announced(connect(f"redis://127.0.0.1:{path.port}", "one"))
    path.lose_reply(b"EVALSHA")
    with pytest.raises(BudgetsUnavailable):
        await one.announce(owns(reservation("x")))
    await announces_again(one, reservation("x"))
    assert await one.heartbeat()


async def test_what_arrives_after_the_announcement_does_not_happen(
    connect: Open, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await announced(connect(redis_url, "one"))
    await begin(one)
    await one.reserve(Reservation("first", (), 0, 0))  # loads the script, which the delayed call names by its hash
    client: Any = one._redis
    late: list[tuple[Any, ...]] = []

    async def delayed(*words: Any) -> Any:
        late.append(words)
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(client, "execute_command", delayed)
        with pytest.raises(BudgetsUnavailable):
            await one.reserve(reservation("x"))
    await announces_again(one)
    answer = await client.execute_command(*late[0])
    assert answer[3] == b"stale"
    assert await one.counter_states(["key_a"]) == [CounterState("key_a", 0.0, 0, 0, 0, 0)]
    assert isinstance(await one.reserve(reservation("y")), Granted)


async def test_what_was_on_its_way_while_it_announced_is_sent_again(connect: Open, redis_url: str) -> None:
    """A refusal is an answer: it did not happen, so nothing happens twice."""
    one = await announced(connect(redis_url, "one"))
    await begin(one)
    twin = await announced(connect(redis_url, "one"))
    assert isinstance(await one.reserve(reservation("x")), Granted)
    assert not await one.heartbeat()
    assert await twin.heartbeat()


async def test_a_server_that_is_away_is_said_to_be(connect: Open, valkey: Valkey) -> None:
    one = await announced(connect(valkey.url, "one"))
    valkey.kill()
    for asked in (
        one.reserve(reservation("x")),
        one.heartbeat(),
        one.close([reservation("x")]),
        one.counter_states(),
        one.cursor(),
    ):
        with pytest.raises(BudgetsUnavailable):
            await asked
    valkey.start()
    await announces_again(one)
    assert await one.heartbeat()


async def test_scripts_that_the_server_forgot_are_told_again(connect: Open, valkey: Valkey) -> None:
    one = await announced(connect(valkey.url, "one"))
    valkey.ask("SCRIPT", "FLUSH")
    assert await one.heartbeat()


async def test_a_reservation_is_one_round_trip(
    connect: Open, redis_to: Callable[[str], RedisClient], valkey: Valkey
) -> None:
    one = await announced(connect(valkey.url, "one"))
    await begin(one)
    assert isinstance(await one.reserve(reservation("first")), Granted)  # the server knows the script
    client = redis_to(valkey.url)
    await client.config_resetstat()
    assert [type(await one.reserve(reservation(f"x{number}"))) for number in range(10)] == [Granted] * 10
    asked = await client.info("commandstats")
    sent = {
        name: found["calls"] for name, found in asked.items() if name.startswith(("cmdstat_eval", "cmdstat_script"))
    }
    assert sent == {"cmdstat_evalsha": 10}


async def test_many_calls_at_once_need_few_connections(connect: Open, valkey: Valkey) -> None:
    one = await announced(connect(valkey.url, "one"))
    await begin(one)
    verdicts = await asyncio.gather(*[one.reserve(reservation(f"x{number}", 1)) for number in range(500)])
    assert all(isinstance(verdict, Granted) for verdict in verdicts)
    assert int((await one._redis.info())["connected_clients"]) <= CALLS_AT_ONCE + 2


async def snapshot(client: Any) -> dict[bytes, bytes]:
    return {key: await client.dump(key) async for key in client.scan_iter()}


async def restore(client: Any, kept: dict[bytes, bytes]) -> None:
    """As if the last writes had never reached the server that serves now."""
    await client.flushall()
    for key, dumped in kept.items():
        await client.restore(key, 0, dumped)


async def test_a_failover_that_undid_the_last_writes_opens_nothing(connect: Open, valkey: Valkey) -> None:
    """The money of it: `x` has all there is, and the server has forgotten it."""
    one, other = [await announced(connect(valkey.url, name)) for name in ("one", "other")]
    await begin(one)
    await one.reserve(reservation("w", 1))
    kept = await snapshot(one._redis)
    assert isinstance(await one.reserve(reservation("x", 999)), Granted)
    await other.heartbeat()
    await restore(one._redis, kept)
    asked = asyncio.get_running_loop().create_task(other.reserve(reservation("y", 999)))  # its own look was undone, too
    await asyncio.sleep(0.1)
    assert not asked.done()
    await announces_again(one, reservation("w", 1), reservation("x", 999))
    verdict = await asked
    assert isinstance(verdict, Denied)
    assert verdict.why is DenialReason.MONEY
    await announces_again(other)
    assert await other.heartbeat()


async def two_that_hold_nothing(connect: Open, server: Valkey, away_s: float = LONG_S) -> list[RedisBudgets]:
    """And know of each other."""
    nodes = [await announced(connect(server.url, name, away_s=away_s)) for name in ("one", "other")]
    await begin(nodes[0])
    for node in nodes:
        assert await node.heartbeat()
    return nodes


async def a_sleeper_that_holds_all(connect: Open, server: Valkey, away_s: float = LONG_S) -> list[RedisBudgets]:
    """Two nodes that know each other; the first has 999 of 1,000, and is not asked any more."""
    nodes = await two_that_hold_nothing(connect, server, away_s)
    assert isinstance(await nodes[0].reserve(reservation("x", 999)), Granted)
    return nodes


async def announces_again(store: RedisBudgets | SqliteBudgets, *running: Reservation) -> None:
    """Because its heartbeat says that it must."""
    assert not await store.heartbeat()
    await store.announce(owns(*running))


async def back_again(other: RedisBudgets) -> None:
    await announces_again(other)
    await seed(other)


async def not_granted(other: RedisBudgets) -> None:
    """Nodes that are awake have had their time by then; no client waits for so long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_store, "WARM_S_MAX", 1.8)
        with pytest.raises(BudgetsIncomplete):
            await other.reserve(reservation("y", 2))


async def its_money_is_granted_to_nobody(one: RedisBudgets, other: RedisBudgets) -> None:
    """Until the sleeper is back, and then neither."""
    await not_granted(other)
    assert isinstance(await other.reserve(Reservation("rate", (LimitCounter("key_r", rpm=1),), 0, 0)), Granted)
    await announces_again(one, reservation("x", 999))
    assert isinstance(await other.reserve(reservation("y", 2)), Denied)
    assert isinstance(await other.reserve(reservation("y", 1)), Granted)


async def test_what_a_sleeper_holds_is_granted_to_nobody_after_a_flush(connect: Open, valkey: Valkey) -> None:
    """Seen: all of a budget twice, 1.6 s after the flush."""
    one, other = await a_sleeper_that_holds_all(connect, valkey)
    valkey.ask("FLUSHALL")
    await back_again(other)
    await its_money_is_granted_to_nobody(one, other)


async def test_nor_by_who_started_shortly_before_the_flush(connect: Open, valkey: Valkey) -> None:
    """It knows the others from its announcement on."""
    one, other = await a_sleeper_that_holds_all(connect, valkey)
    await other.aclose()
    assert await one.heartbeat()
    started = await announced(connect(valkey.url, "started"))
    valkey.ask("FLUSHALL")
    await back_again(started)
    await its_money_is_granted_to_nobody(one, started)


async def test_nor_by_who_was_restarted_during_the_flush(connect: Open, valkey: Valkey, tmp_path: Path) -> None:
    """The disk knows the others."""
    file = tmp_path / "nodes.json"
    one, other = await a_sleeper_that_holds_all(connect, valkey)
    await other.aclose()
    assert await one.heartbeat()
    await announced(connect(valkey.url, "again", known_nodes=KnownNodes(file)))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    valkey.ask("FLUSHALL")
    again = connect(valkey.url, "again", known_nodes=KnownNodes(file))
    await back_again(again)
    await its_money_is_granted_to_nobody(one, again)


@pytest.mark.parametrize("text", ["", "[", "7", '["one", 7]'])
def test_a_file_of_known_nodes_that_cannot_be_read_knows_nobody(tmp_path: Path, text: str) -> None:
    file = tmp_path / "nodes.json"
    file.write_text(text)
    known = KnownNodes(file)
    assert (known.generation, known.names) == ("", frozenset())
    known.update("g", {"one"})
    assert KnownNodes(file).names == {"one"}
    file.unlink()
    file.mkdir()
    known.update("g", {"two"})
    assert known.names == {"two"}


async def test_nor_by_who_starts_after_the_flush_of_a_server_that_then_sleeps(connect: Open, valkey: Valkey) -> None:
    """It knows nobody, and the others could not announce: the time for that begins again."""
    one, _ = await a_sleeper_that_holds_all(connect, valkey)
    valkey.ask("FLUSHALL")
    started = await announced(connect(valkey.url, "started"))
    await seed(started)
    valkey.pause()
    await asyncio.sleep(1.7)
    valkey.resume()
    asked = asyncio.get_running_loop().create_task(started.reserve(reservation("y", 2)))
    await asyncio.sleep(0.3)
    assert not asked.done()
    await announces_again(one, reservation("x", 999))
    assert isinstance(await asked, Denied)


async def test_nor_by_a_server_that_is_behind(connect: Open, valkey: Valkey) -> None:
    """It has all that the other one did: only the sleeper could miss something."""
    one, other = await two_that_hold_nothing(connect, valkey)
    valkey.ask("SAVE")
    assert isinstance(await one.reserve(reservation("x", 999)), Granted)
    valkey.kill()
    valkey.start()
    with suppress(BudgetsUnavailable):  # connections may have ended without a word
        await other.cursor()
    await not_granted(other)
    await back_again(other)
    await its_money_is_granted_to_nobody(one, other)


async def test_nor_by_a_server_that_followed_another_meanwhile(connect: Open, valkey: Valkey, tmp_path: Path) -> None:
    """The same process, with the data of a replica that had been promoted, and behind."""
    with closing(Valkey(tmp_path / "behind").start()) as behind:
        behind.ask("REPLICAOF", "127.0.0.1", str(valkey.port))
        behind.until("master_link_status:up", "INFO", "replication")
        one, other = await two_that_hold_nothing(connect, valkey)
        behind.until(":2", "HLEN", one._key("nodes"))
        behind.ask("REPLICAOF", "NO", "ONE")
        assert isinstance(await one.reserve(reservation("x", 999)), Granted)
        valkey.ask("REPLICAOF", "127.0.0.1", str(behind.port))
        valkey.until("master_link_status:up", "INFO", "replication")
    valkey.ask("REPLICAOF", "NO", "ONE")
    await not_granted(other)
    await back_again(other)
    await its_money_is_granted_to_nobody(one, other)


async def test_a_sleeper_is_not_waited_for_for_ever(connect: Open, valkey: Valkey) -> None:
    one, other = await a_sleeper_that_holds_all(connect, valkey, away_s=1.0)
    valkey.ask("FLUSHALL")
    began = time.monotonic()
    await back_again(other)
    assert isinstance(await other.reserve(reservation("y", 1_000)), Granted)
    assert 2.5 <= time.monotonic() - began <= WARM_S_MAX + 0.5
    assert await other.heartbeat()
    valkey.ask("FLUSHALL")
    await back_again(other)
    began = time.monotonic()
    assert isinstance(await other.reserve(reservation("z", 1_000)), Granted)
    assert time.monotonic() - began < 2.4, "it is forgotten"
    with pytest.raises(BudgetsIncomplete):  # as long as it has not announced
        await one.reserve(reservation("w", 1, LimitCounter("key_b", parallel=1)))
    await one.announce(owns(reservation("x", 999)))
    assert not await one.grow("x", 999), "its money has been granted again: a stream to cut is cut"


async def test_a_node_that_stopped_is_not_waited_for(connect: Open, valkey: Valkey) -> None:
    one, other = await a_sleeper_that_holds_all(connect, valkey)
    await one.aclose()
    assert await other.heartbeat()
    valkey.ask("FLUSHALL")
    await back_again(other)
    assert isinstance(await other.reserve(reservation("y", 1)), Granted)


async def test_who_was_taken_for_dead_announces_before_it_reserves(connect: Open, valkey: Valkey) -> None:
    one, other = await a_sleeper_that_holds_all(connect, valkey)
    assert await other.abandon("one", ()) == 1
    asked = asyncio.get_running_loop().create_task(one.reserve(reservation("y", 2)))
    await asyncio.sleep(0.3)
    assert not asked.done()
    await announces_again(one, reservation("x", 999))
    assert isinstance(await asked, Denied)


async def test_a_server_that_does_not_tell_who_it_is_serves_too(connect: Open, valkey: Valkey) -> None:
    valkey.ask("ACL", "SETUSER", "default", "-info")
    await a_sleeper_that_holds_all(connect, valkey)


async def test_a_cluster_serves_too(connect: Open, cluster_url: str) -> None:
    one = await announced(connect(cluster_url, "one"))
    await begin(one)
    rated = LimitCounter("key_r", rpm=5, tpm=5)
    assert isinstance(await one.reserve(Reservation("x", (KEY, rated), 10, 2)), Granted)
    await one.close([Reservation("x", (KEY, rated), 7, 1)])
    assert [found.counter_id for found in await one.counter_states()] == ["key_a", "key_r"]
    assert await one.abandon("two", ()) == 0
    assert await one.heartbeat()


# -- a file


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[Callable[[str], SqliteBudgets]]:
    """Opens a node's handle on the one file."""
    made: list[SqliteBudgets] = []

    def make(node: str) -> SqliteBudgets:
        made.append(SqliteBudgets(tmp_path / "budgets.db", node=node, unix_time=time.time))
        return made[-1]

    yield make
    for store in made:
        await store.aclose()


File = Callable[[str], SqliteBudgets]


async def test_the_file_is_its_owners_only(file: File, tmp_path: Path) -> None:
    await seed(file("one"))
    modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in tmp_path.iterdir()}
    assert len(modes) == 5, "the link, the lock, and three of SQLite's"
    assert set(modes.values()) == {0o600}


async def test_what_is_held_outlives_the_processes(file: File) -> None:
    one = file("one")
    await seed(one)
    await one.reserve(reservation("x", 999))
    await one.aclose()
    assert [found.reserved for found in await file("two").counter_states()] == [999]
    assert [found.reserved for found in await one.counter_states()] == [999], "it opens again when it is used"


async def test_bounds_that_change_within_one_moment(file: File) -> None:
    store = file("one")
    await seed(store)
    tighter, later = structs.replace(KEY, nusd_max=500), structs.replace(KEY, since=1.0)
    asked = [(KEY, 400), (tighter, 101), (KEY, 300), (tighter, 1), (later, 1), (KEY, 300)]
    reservations = [reservation(f"x{at}", nusd, counter) for at, (counter, nusd) in enumerate(asked)]
    verdicts = await asyncio.gather(*(store.reserve(each) for each in reservations))
    assert [type(one) for one in verdicts] == [Granted, Denied, Granted, Denied, Unseeded, Granted]
    [found] = await store.counter_states()
    assert (found.reserved, found.open) == (1_000, 3)


async def test_what_ends_makes_room_for_the_next_request(file: File) -> None:
    store, handed_back = file("one"), []
    await seed(store)
    assert isinstance(await store.reserve(reservation("x", 900)), Granted)
    store.close_soon([reservation("x", 300)], handed_back.extend)
    asked = await asyncio.gather(*(store.reserve(reservation(name, 350)) for name in "yz"))
    assert (list(map(type, asked)), handed_back) == ([Granted, Granted], [])
    [found] = await store.counter_states()
    assert (found.reserved, found.open, found.closed) == (1_000, 2, 1)


async def test_what_ends_is_told_without_a_request_too(file: File) -> None:
    one, other, handed_back = file("one"), file("other"), []
    await seed(one)
    for name in "xyz":
        assert isinstance(await one.reserve(reservation(name, 300)), Granted)
    for name in "xyz":
        one.close_soon([reservation(name, 0)], handed_back.extend)

    async def all_are_told() -> bool:
        return [(found.open, found.reserved) for found in await other.counter_states()] == [(0, 0)]

    await until(all_are_told)
    assert handed_back == []


async def test_the_first_request_of_all_does_not_wait(file: File) -> None:
    one = file("one")
    await seed(one)
    async with asyncio.timeout(0.5):
        assert isinstance(await one.reserve(reservation("x")), Granted)


def executed(statement: str) -> Callable[[Path], None]:
    def execute(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)

    return execute


HURTS: dict[str, Callable[[Path], object]] = {
    "overwritten": lambda path: path.write_bytes(b"no database at all, but as long as a page of one " * 100),
    "emptied": lambda path: os.truncate(path, 0),
    "another version": executed("PRAGMA user_version = 99"),
    "before a power cut": executed("UPDATE life SET boot = 'another'"),
    "without a table": executed("DROP TABLE holds"),
    "a file of others": lambda path: (path.unlink(), path.write_text("not a link")),
}


@pytest.mark.parametrize("hurt", HURTS)
async def test_what_cannot_be_used_is_begun_anew(
    file: File, tmp_path: Path, hurt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_file, "WARM_S", 0.3)
    one = file("one")
    await seed(one)
    await one.announce(owns())
    await one.reserve(reservation("x", 999))
    await one.aclose()
    HURTS[hurt](tmp_path / "budgets.db")
    two = file("two")
    if hurt == "without a table":
        await two.reserve(reservation("z", 1, LimitCounter("key_r", rpm=1)))
    await announces_again(one, reservation("x", 999))
    await seed(two)
    verdict = await two.reserve(reservation("y", 2))
    assert isinstance(verdict, Denied)
    assert verdict.why is DenialReason.MONEY
    await one.aclose()
    await two.aclose()
    assert await file("three").cursor() == 100
    assert len(list(tmp_path.iterdir())) == 5, "what is over is removed"


@pytest.mark.parametrize("name", ["budgets.db", "budgets.db.*"])
async def test_a_file_that_is_deleted_while_it_is_used(file: File, tmp_path: Path, name: str) -> None:
    one, two = file("one"), file("two")
    await seed(one)
    await one.announce(owns())
    await two.announce(owns())
    await one.reserve(reservation("x", 999))
    for found in tmp_path.glob(name):
        found.unlink()
    assert not await two.heartbeat()
    assert not await one.heartbeat()
    await two.announce(owns())
    await seed(two)
    asked = asyncio.get_running_loop().create_task(two.reserve(reservation("y", 2)))
    await asyncio.sleep(0.05)
    assert not asked.done(), "others may hold something"
    await one.announce(owns(reservation("x", 999)))
    assert isinstance(await asked, Denied)
    assert await one.heartbeat()


async def test_where_nothing_can_be_kept_nobody_can_say(tmp_path: Path) -> None:
    store = SqliteBudgets(tmp_path / "nowhere" / "budgets.db", node="one", unix_time=time.time)
    with pytest.raises(BudgetsUnavailable):
        await store.reserve(reservation("x"))
    await store.aclose()


async def test_a_file_that_is_lost_again_and_again_locks_nobody_in(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _other = file("one"), await file("other").heartbeat()
    monkeypatch.setattr(budget_file, "WARM_S", 60.0)
    monkeypatch.setattr(sqlite_store, "WARM_S_MAX", 0.5)
    one._file._begin_generation(warm_s=60.0)
    began = time.monotonic()
    with pytest.raises(BudgetsUnavailable):
        await one.reserve(reservation("x", 1, LimitCounter("key_p", parallel=1)))
    assert time.monotonic() - began == pytest.approx(0.5, abs=0.4)


async def test_a_process_that_stands_still_within_a_transaction_is_not_waited_for(file: File, tmp_path: Path) -> None:
    one = file("one")
    await seed(one)
    ticks = count()

    async def stream() -> None:
        for _ in ticks:
            await asyncio.sleep(0.001)

    other = sqlite3.connect(tmp_path / "budgets.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    async with beside(stream()):
        with pytest.raises(BudgetsUnavailable):
            await one.reserve(reservation("x"))
    assert time.monotonic() - began == pytest.approx(BUSY_S_MAX, abs=0.9)
    assert next(ticks) > 50, "streams go on"
    asked = asyncio.get_running_loop().create_task(one.reserve(reservation("x")))
    await asyncio.sleep(0.05)
    assert not asked.done()
    other.execute("COMMIT")
    assert isinstance(await asked, Granted)
    other.close()
