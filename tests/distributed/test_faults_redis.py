"""Redis dies, forgets, stands still, is full, is read-only, and its answers are lost: 50 times each, under load."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import psycopg
import pytest

from tests.distributed.plant import CountingObserver, Plant, heal, plant, strike, until
from tests.support.examples import SEED
from tests.support.faulty import FaultyPath
from tests.support.net import closed_port
from tests.support.valkey import Valkey

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sooner")]

EACH = 50
# Of the stops.
LONG_STOPS, LONG_STOP_S = 5, 10.0
# Whose answers are lost.
ASKED = (b"XADD", b"XREADGROUP", b"XDEL", b"HSET", b"XREADGROUP XCLAIM")


class Redis:
    """The server, the path to it, another server, and everything that can go wrong with them."""

    def __init__(self, folder: Path, rng: Random, ledger_url: str) -> None:
        self.rng = rng
        self.server = Valkey(folder / "main", "--appendonly", "yes", "--appendfsync", "everysec").start()
        self.other = Valkey(folder / "other", "--repl-diskless-sync-delay", "0").start()
        self.path = FaultyPath("127.0.0.1", self.server.port)
        self.lost: Counter[str] = Counter()
        self._ledger_url = ledger_url
        self._stops = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.path.port}"

    def close(self) -> None:
        self.server.close()
        self.other.close()

    async def kill(self, made: Plant) -> None:
        """kill -9; in half of the cases the last second is not on the disk, as after a power cut."""
        async with self._full_stream(made):
            await asyncio.to_thread(self.server.kill)
        if self.rng.random() < 0.5:
            self._forget_the_end()
        await asyncio.sleep(self.rng.choice((0.0, 0.3)))
        await asyncio.to_thread(self.server.start)

    async def flush(self, made: Plant) -> None:
        """FLUSHALL."""
        async with self._full_stream(made):
            self.server.ask("FLUSHALL")

    async def stop(self, made: Plant) -> None:
        """SIGSTOP, for longer than anybody waits now and then."""
        self._stops += 1
        long = self._stops % (EACH // LONG_STOPS) == 0
        self.server.pause()
        await asyncio.sleep(LONG_STOP_S if long else self.rng.uniform(0.2, 2.0))
        self.server.resume()

    async def fill(self, made: Plant) -> None:
        """OOM, under noeviction."""
        async with self._met(made.seen, "OOM", "has no memory"):
            self.server.ask("CONFIG", "SET", "maxmemory", "1")
        await self._wait()
        self.server.ask("CONFIG", "SET", "maxmemory", "0")

    async def demote(self, made: Plant) -> None:
        """Read-only: a replica of a server that is empty, or of one that is away."""
        away = self.rng.random() < 0.5
        async with self._met(made.seen, "is a replica", "is still loading", "has closed", "READONLY", "LOADING"):
            self.server.ask("REPLICAOF", "127.0.0.1", str(closed_port() if away else self.other.port))
        await self._wait()
        self.server.ask("REPLICAOF", "NO", "ONE")

    async def lose_answer(self, _made: Plant) -> None:
        """What was asked was done; nobody was told."""
        for word in self.rng.choice(ASKED).split():
            self.path.lose_reply(word)
            await until(lambda: self.path.lost)

    @asynccontextmanager
    async def _full_stream(self, made: Plant) -> AsyncIterator[None]:
        """Somebody holds the ledger, so that there is something to lose; within, it is lost."""
        with psycopg.connect(self._ledger_url) as other:
            other.execute("SELECT 1 FROM ledger_clock FOR UPDATE")
            await asyncio.sleep(self.rng.uniform(0, 0.3))
            self.lost["messages"] += int(self.server.ask("XLEN", "{tokenweir:0}:records")[1:])
            yield
            other.rollback()

    def _forget_the_end(self) -> None:
        """Some of what was written last, as far as a second goes."""
        last = max((self.server.folder / "appendonlydir").glob("*.incr.aof"))
        size = last.stat().st_size
        os.truncate(last, max(0, size - self.rng.randrange(1, 300_000)))

    @asynccontextmanager
    async def _met(self, seen: CountingObserver, *words: str) -> AsyncIterator[None]:
        """See CountingObserver.met; what is away already meets nothing."""
        await until(lambda: not seen.away)
        async with seen.met(*words):
            yield

    async def _wait(self) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.1, 0.5)))


@pytest.fixture
def redis(tmp_path: Path, ledger_url: str) -> Iterator[Redis]:
    """A server of the test's own behind a path with faults."""
    made = Redis(tmp_path / "redis", Random(f"{SEED} redis"), ledger_url)
    with made.path:
        yield made
    made.close()


@pytest.mark.waits
@pytest.mark.parametrize("each", [1, pytest.param(EACH, marks=pytest.mark.slow)])
async def test_each_kind_of_fault(
    redis: Redis, tmp_path: Path, ledger_url: str, capsys: pytest.CaptureFixture[str], each: int
) -> None:
    kinds = [redis.kill, redis.flush, redis.stop, redis.fill, redis.demote, redis.lose_answer]
    urls = {"redis_url": redis.url, "ledger_url": ledger_url, "looking_url": ledger_url}
    with capsys.disabled():
        assert await strike("Redis", kinds, each, tmp_path, **urls) == []
        if each > 1:
            print(f"{redis.lost['messages']} messages at stake")
    assert redis.lost["messages"] > (EACH if each > 1 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("CONFIG", "SET", "maxmemory", "1"), ("REPLICAOF", "127.0.0.1", "1")])
async def test_a_board_that_can_be_read_and_not_written_declares_nobody_dead(
    redis: Redis, tmp_path: Path, ledger_url: str, words: tuple[str, ...]
) -> None:
    """For longer than a lease nobody can say that he lives."""
    lease_s = 1.5
    async with plant(
        tmp_path, Random(SEED), redis_url=redis.url, ledger_url=ledger_url, lease_s=lease_s, renew_s=0.3
    ) as made:
        await until(lambda: made.seen.said["checked"] > 0)
        redis.server.ask(*words)
        await asyncio.sleep(2 * lease_s)
        redis.server.ask("CONFIG", "SET", "maxmemory", "0")
        redis.server.ask("REPLICAOF", "NO", "ONE")
        wrong = await heal(made, redis_url=redis.url) + made.wrong_in(ledger_url)
    assert not wrong
