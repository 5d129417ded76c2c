"""Every board of leases keeps the same promises: in memory, on a server, on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proxy.delivery.leases import LeaseCount, LeaseParts, LeaseRegistry
from proxy.delivery.redis_leases import RedisLeases
from proxy.storage.redis_client import QueueUnavailable, RedisClient
from tests.journal.records import exchange_id
from tests.support.leases import LocalLeases
from tests.support.valkey import Valkey

Clients = Callable[[str], RedisClient]

FIRST, SECOND, THIRD = (exchange_id(number) for number in range(1, 4))
NEW = LeaseParts(b'{"opened":"first"}', b"\x00progress\xff")


@pytest.fixture(params=["local", "redis", "cluster"])
async def board(request: pytest.FixtureRequest, prefix: str, redis_to: Clients) -> LeaseRegistry:
    if request.param == "local":
        return LocalLeases()
    url = request.getfixturevalue("redis_url" if request.param == "redis" else "cluster_url")
    return RedisLeases(redis_to(url), prefix=prefix)


async def test_a_new_node_is_seen_with_its_leases(board: LeaseRegistry) -> None:
    assert (await board.nodes(), await board.ids("a"), await board.of("a")) == ({}, set(), {})
    assert await board.renew("a", "1.1", {FIRST: NEW, SECOND: NEW}, []) == LeaseCount(2, None)
    assert (await board.nodes(), await board.ids("a")) == ({"a": "1.1"}, {FIRST, SECOND})
    assert await board.of("a") == {FIRST: NEW, SECOND: NEW}
    assert (await board.counts(["a", "nobody"]), await board.counts([])) == ({"a": 2, "nobody": 0}, {})


async def test_a_renewal_says_what_beat_was_there_before_and_what_is_there_now(board: LeaseRegistry) -> None:
    await board.renew("a", "1.1", {FIRST: NEW}, [])
    assert await board.renew("a", "1.2", {}, []) == LeaseCount(1, "1.1")
    assert await board.renew("a", "2.1", {SECOND: NEW, THIRD: NEW}, [FIRST]) == LeaseCount(2, "1.2")
    assert (await board.nodes(), await board.ids("a")) == ({"a": "2.1"}, {SECOND, THIRD})


async def test_progress_moves_and_what_was_opened_stays(board: LeaseRegistry) -> None:
    await board.renew("a", "1.1", {FIRST: NEW}, [])
    await board.renew("a", "1.2", {FIRST: LeaseParts(None, b"later")}, [])
    assert await board.of("a") == {FIRST: LeaseParts(NEW.opened, b"later")}


async def test_progress_of_what_was_never_announced_is_no_lease(board: LeaseRegistry) -> None:
    assert (await board.renew("a", "1.1", {FIRST: NEW, SECOND: LeaseParts(None, b"stray")}, [])).leases == -1
    assert await board.of("a") == {FIRST: NEW}
    assert await board.ids("a") == {FIRST, SECOND}, "it can be found, to be removed"
    assert (await board.renew("a", "1.2", {}, [SECOND])).leases == 1


async def test_a_lease_whose_progress_is_not_known_is_one_all_the_same(board: LeaseRegistry) -> None:
    assert (await board.renew("a", "1.1", {FIRST: LeaseParts(b"{}", b"")}, [])).leases == 1
    assert await board.of("a") == {FIRST: LeaseParts(b"{}", b"")}


async def test_ending_twice_or_without_a_beginning_changes_nothing(board: LeaseRegistry) -> None:
    await board.renew("a", "1.1", {FIRST: NEW, SECOND: NEW}, [THIRD])
    assert (await board.renew("a", "1.2", {}, [SECOND])).leases == 1
    assert (await board.renew("a", "1.3", {}, [SECOND])).leases == 1


async def test_a_lease_is_found_whichever_node_has_it(board: LeaseRegistry) -> None:
    assert await board.opened(FIRST) is None
    await board.renew("a", "1.1", {FIRST: NEW, SECOND: LeaseParts(None, b"stray")}, [])
    await board.renew("b", "7.1", {THIRD: LeaseParts(b"{}", b"")}, [])
    assert [await board.opened(one) for one in (FIRST, SECOND, THIRD)] == [NEW.opened, None, b"{}"]
    await board.renew("a", "1.2", {}, [FIRST])
    assert await board.opened(FIRST) is None


async def test_nodes_do_not_mix(board: LeaseRegistry) -> None:
    await board.renew("a", "1.1", {FIRST: NEW}, [])
    await board.renew("b", "7.1", {SECOND: NEW}, [FIRST])
    assert (await board.ids("a"), await board.ids("b")) == ({FIRST}, {SECOND})
    assert await board.nodes() == {"a": "1.1", "b": "7.1"}


async def test_settled_leases_are_dropped_and_the_others_stay(board: LeaseRegistry) -> None:
    many = [exchange_id(number) for number in range(1_200)]
    await board.renew("a", "1.1", dict.fromkeys(many, NEW), [])
    await board.drop("a", many[1:])
    await board.drop("a", [])
    await board.drop("nobody", [FIRST])
    assert (await board.ids("a"), await board.nodes()) == ({many[0]}, {"a": "1.1"})


async def test_a_dismissed_node_leaves_nothing(board: LeaseRegistry) -> None:
    await board.renew("a", "1.1", {FIRST: NEW}, [])
    await board.dismiss("a", "1.1")
    await board.dismiss("a", "1.1")
    assert (await board.nodes(), await board.ids("a")) == ({}, set())
    assert await board.renew("a", "1.2", {}, []) == LeaseCount(0, None), (
        "one that comes back sees that it was forgotten"
    )


async def test_a_node_that_has_had_another_beat_is_not_dismissed(board: LeaseRegistry) -> None:
    await board.renew("a", "1.1", {FIRST: NEW}, [])
    await board.renew("a", "1.2", {}, [])
    await board.dismiss("a", "1.1")
    assert (await board.nodes(), await board.ids("a")) == ({"a": "1.2"}, {FIRST})


async def test_a_node_that_wakes_up_in_the_middle_of_its_dismissal_is_not_forgotten(
    redis_to: Clients, redis_url: str, prefix: str
) -> None:
    redis = redis_to(redis_url)
    board = RedisLeases(redis, prefix=prefix)

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(redis, name)

        async def eval(self, *asked: Any) -> Any:
            await board.renew("a", "1.2", {SECOND: NEW}, [])
            return await redis.eval(*asked)

    await board.renew("a", "1.1", {FIRST: NEW}, [])
    dismissing = RedisLeases(redis, prefix=prefix)
    dismissing._redis = Interrupted()
    await dismissing.dismiss("a", "1.1")
    assert (await board.nodes(), await board.ids("a")) == ({"a": "1.2"}, {SECOND})


async def test_whatever_stands_on_a_server_is_read_and_can_be_dismissed(
    redis_to: Clients, redis_url: str, prefix: str
) -> None:
    redis = redis_to(redis_url)
    board = RedisLeases(redis, prefix=prefix)
    await redis.hset(f"{prefix}:nodes", b"\xff\xfe", b"\xc3(")
    await redis.hset(f"{prefix}:".encode() + b"\xff\xfe:leases", mapping={b"o\xff": b"\xff", b"x": b"?", b"": b""})
    [(node, beat)] = (await board.nodes()).items()
    assert list((await board.of(node)).values()) == [LeaseParts(b"\xff", b"")]
    await board.drop(node, await board.ids(node))
    assert await board.of(node) == {}
    await board.dismiss(node, beat)
    assert await board.nodes() == {}


async def test_a_server_that_is_away_or_holds_something_else_is_unavailable(redis_to: Clients, valkey: Valkey) -> None:
    redis = redis_to(valkey.url)
    board = RedisLeases(redis)
    await redis.set("tokenweir:nodes", "not a hash")
    with pytest.raises(QueueUnavailable, match="renewing leases"):
        await board.renew("a", "1.1", {FIRST: NEW}, [])
    with pytest.raises(QueueUnavailable, match="reading nodes"):
        await board.nodes()
    valkey.kill()
    for asking in (board.ids("a"), board.of("a"), board.drop("a", [FIRST]), board.dismiss("a", "1.1")):
        with pytest.raises(QueueUnavailable):
            await asking
