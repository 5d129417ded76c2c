"""Claims: one contract, on a file and on Redis."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from proxy.foundation.outage import Outage, OutageLog
from proxy.keys import claims_local, response_owners
from proxy.keys.claims_local import LocalClaims
from proxy.keys.claims_redis import RedisClaims
from proxy.keys.idempotency import Claims, ClaimStore, ClaimsUnavailable, Seal, digest_of
from proxy.keys.response_owners import OwnerStore, ResponseOwner, ResponseOwners
from proxy.storage.redis_client import RedisClient, open_redis
from tests.support.clock import Clock
from tests.support.waiting import until

pytestmark = pytest.mark.io

PEPPER = b"p" * 32
RETENTION_S = 60.0


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


@pytest.fixture
async def local(tmp_path: Path, clock: Clock) -> AsyncIterator[LocalClaims]:
    store = LocalClaims(tmp_path / "claims.db", retention_s=RETENTION_S, unix_time=clock, owners_s=1000)
    yield store
    await store.aclose()


@pytest.fixture(params=["local", "redis"])
async def store(request: pytest.FixtureRequest, local: LocalClaims) -> AsyncIterator[ClaimStore]:
    if request.param == "local":
        yield local
    else:
        redis = open_redis(request.getfixturevalue("redis_url"))
        yield RedisClaims(redis, retention_s=RETENTION_S, prefix=f"test-{secrets.token_hex(6)}")
        await redis.aclose()


@pytest.fixture
def claims(store: ClaimStore) -> Claims:
    def failed(error: OSError) -> None:
        raise AssertionError(error)

    return Claims(store, pepper=PEPPER, answer_bytes_max=1000, on_failure=failed)


async def test_the_first_has_it(claims: Claims) -> None:
    assert await claims.claim("key_a", "t", "{}", "x1") is None
    assert await claims.claim("key_a", "t", "{}", "x1") is None, "its answer may have been lost"
    earlier = await claims.claim("key_a", "t", "{}", "x2")
    assert earlier is not None
    assert (earlier.exchange_id, earlier.same_body, earlier.ended, earlier.answer) == ("x1", True, False, None)


async def test_another_body_another_key_another_token(claims: Claims) -> None:
    await claims.claim("key_a", "t", "{}", "x1")
    earlier = await claims.claim("key_a", "t", "{ }", "x2")
    assert earlier is not None
    assert not earlier.same_body
    assert await claims.claim("key_b", "t", "{}", "x3") is None
    assert await claims.claim("key_a", "u", "{}", "x4") is None


@pytest.mark.parametrize("answer", [None, b'{"id":"1"}'])
async def test_what_ended_is_remembered(claims: Claims, answer: bytes | None) -> None:
    await claims.claim("key_a", "t", "{}", "x1")
    await claims.end("key_a", "t", "x1", billed=True, answer=answer)
    earlier = await claims.claim("key_a", "t", "{}", "x2")
    assert earlier is not None
    assert (earlier.exchange_id, earlier.ended, earlier.answer) == ("x1", True, answer)


async def test_what_was_not_billed_is_free_again(claims: Claims) -> None:
    await claims.claim("key_a", "t", "{}", "x1")
    await claims.end("key_a", "t", "x2", billed=False, answer=None)
    assert await claims.claim("key_a", "t", "{}", "x2") is not None, "it was not x2's to release"
    await claims.end("key_a", "t", "x1", billed=False, answer=None)
    assert await claims.claim("key_a", "t", "{}", "x2") is None


async def test_of_many_at_once_one_has_it(claims: Claims) -> None:
    found = await asyncio.gather(*(claims.claim("key_a", "t", "{}", f"x{n}") for n in range(50)))
    [winner] = {one.exchange_id for one in found if one is not None}
    assert [f"x{n}" for n, one in enumerate(found) if one is None] == [winner]


async def test_it_is_forgotten_in_time(local: LocalClaims, clock: Clock) -> None:
    assert await local.claim("n", "b", "x1") is None
    clock.now += RETENTION_S - 1
    assert await local.claim("n", "b", "x2") is not None
    clock.now += 1
    assert await local.claim("n", "b", "x2") is None


async def test_redis_forgets_by_itself(redis_to: Callable[[str], RedisClient], redis_url: str, prefix: str) -> None:
    store = RedisClaims(redis_to(redis_url), retention_s=0.05, prefix=prefix)
    assert await store.claim("n", "b", "x1") is None

    async def forgotten() -> bool:
        return await store.claim("n", "b", "x2") is None

    await until(forgotten)


async def test_neither_token_nor_answer_is_readable_where_it_is_kept(tmp_path: Path, local: LocalClaims) -> None:
    claims = Claims(local, pepper=PEPPER, answer_bytes_max=1000, on_failure=lambda _: None)
    await claims.claim("key_a", "canary-token", digest_of([b"canary-body"]), "x1")
    await claims.end("key_a", "canary-token", "x1", billed=True, answer=b"canary-answer")
    await local.aclose()
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"x1" in kept
    assert b"canary" not in kept
    assert (tmp_path / "claims.db").stat().st_mode & 0o77 == 0


def test_a_sealed_answer_opens_only_in_its_place() -> None:
    seal = Seal(PEPPER)
    sealed = seal.seal("name", b"answer")
    assert seal.open("name", sealed) == b"answer"
    assert seal.open("other", sealed) is None
    assert Seal(b"q" * 32).open("name", sealed) is None
    assert seal.open("name", sealed[:-1]) is None
    assert seal.open("name", b"") is None


async def test_a_server_that_is_gone_is_said(tmp_path: Path) -> None:
    redis = open_redis("redis://127.0.0.1:1")
    with pytest.raises(ClaimsUnavailable):
        await RedisClaims(redis, retention_s=1).claim("n", "b", "x")
    await redis.aclose()


def open_all(folder: Path, turns: int, together: Any, failed: Any) -> None:
    for turn in range(turns):
        together.wait(30)
        try:
            LocalClaims(folder / f"{turn}.db", retention_s=60.0, unix_time=lambda: 1.0)
        except ClaimsUnavailable:
            with failed.get_lock():
                failed.value += 1


@pytest.mark.process
def test_processes_that_start_at_once_open_one_file(tmp_path: Path) -> None:
    """WAL is switched on under a lock that SQLite does not wait for: without ours, some of 60 fail."""
    fork = multiprocessing.get_context("fork")
    together, failed = fork.Barrier(4), fork.Value("i", 0)
    processes = [fork.Process(target=open_all, args=(tmp_path, 15, together, failed)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert failed.value == 0


# -- who made a response, in the same stores


async def test_an_owner_is_remembered_until_it_is_forgotten(store: OwnerStore) -> None:
    await store.remember("a", b"anna")
    await store.remember("b", b"bert")
    await store.remember("b", b"carl")
    assert [await store.recall(name) for name in ("a", "b", "c")] == [b"anna", b"carl", None]
    await store.forget("a")
    await store.forget("c")
    assert [await store.recall(name) for name in ("a", "b")] == [None, b"carl"]


async def test_owners_expire_and_are_bounded(local: LocalClaims, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_local, "OWNERS_MAX", 100)
    for number in range(256):
        clock.now += 1
        await local.remember(str(number), b"anna")
    assert [await local.recall(str(number)) for number in (0, 155, 156, 255)] == [None, None, b"anna", b"anna"]
    clock.now += 1000
    assert await local.recall("255") is None


async def test_owners_are_kept_in_memory_and_written_in_order(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_owners, "KEPT_MAX", 2)
    owners = ResponseOwners(store, Outage(OutageLog("owners")))
    first = ResponseOwner("key_a", "proj_a", "openai", "openai.responses", runs=True)
    owners.made("resp_1", first)
    owners.made("resp_1", structs.replace(first, runs=False))
    for number in (2, 3):
        owners.made(f"resp_{number}", first)
    assert await owners.owner("resp_3") == first
    await owners.aclose()
    others = ResponseOwners(store, Outage(OutageLog("owners")))
    for there in (owners, others):
        assert await there.owner("resp_1") == structs.replace(first, runs=False)
        assert await there.owner("resp_4") is None
    await store.remember(response_owners.name_of("resp_1"), b"of another version")
    assert await others.owner("resp_1") is None
    await owners.forget("resp_2")
    assert await owners.owner("resp_2") is await others.owner("resp_2") is None
