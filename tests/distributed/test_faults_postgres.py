"""Postgres crashes, ends sessions at COMMIT, deadlocks with others, is full, is read-only: 50 times each, in use."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event

from proxy.delivery import shipper
from proxy.ledger.schema.migrate import migrate
from proxy.storage.database import open_engine
from tests.distributed.plant import RATE, SHORT_RATE, Plant, Seen, heal, plant
from tests.support.faulty import FaultyPath
from tests.support.postgres import PostgresServer, own_server
from tests.support.valkey import Valkey

pytestmark = pytest.mark.thorough

# Another run: TOKENWEIR_CHAOS_SEED=… make faults
SEED = int(os.environ.get("TOKENWEIR_CHAOS_SEED", "2026"))
EACH = 50
# The ledger of a long run, and some room that can be filled.
DISK_MB = 192
# How long anything may take that takes milliseconds.
PATIENCE_S = 20.0


class Postgres:
    """The server, the path to it, and everything that can go wrong with them."""

    def __init__(self, server: PostgresServer, rng: Random, *, options: str = "") -> None:
        """`options`: of CREATE DATABASE."""
        self.rng = rng
        self.server = server
        self.name = server.new_database(options=options)
        self.path = FaultyPath("127.0.0.1", server.port)
        self._to_end = False
        """the next session that commits is to be terminated"""
        self._racing = ThreadPoolExecutor(1)

    @property
    def url(self) -> str:
        """Of the path."""
        return self.server.url(self.name).replace(str(self.server.port), str(self.path.port))

    @contextmanager
    def standing(self) -> Iterator[Postgres]:
        """Within, everything is as it should be for it."""
        event.listen(Engine, "commit", self.at_commit)
        try:
            with self.path:
                yield self
        finally:
            event.remove(Engine, "commit", self.at_commit)
            self._racing.shutdown()

    async def crash(self, made: Plant) -> None:
        """`pg_ctl restart -m immediate`."""
        async with self._met(made.seen):
            await asyncio.to_thread(self.server.stop_immediately)
        await asyncio.to_thread(self.server.start)

    async def terminate_at_commit(self, made: Plant) -> None:
        """pg_terminate_backend when all is written and COMMIT is next; it may come before or after."""
        self._to_end = True
        await _until(lambda: not self._to_end)

    def at_commit(self, connection: Connection) -> None:
        """A transaction is about to commit: called in its thread."""
        if not self._to_end or not connection.get_execution_options().get("writes"):
            return
        session: Any = connection.connection.driver_connection
        end = f"SELECT pg_terminate_backend({session.info.backend_pid})"
        if self.rng.random() < 0.5:
            self.server.execute(end)
        else:
            self._racing.submit(self.server.execute, end)
        self._to_end = False

    async def lose_commit(self, made: Plant) -> None:
        """The answer to COMMIT is lost: nobody can know what became of it."""
        self.path.lose_reply(b"COMMIT")
        await _until(lambda: self.path.lost)

    async def oppose(self, made: Plant) -> None:
        """Somebody locks a balance, then the clock; the settler comes the other way. One of them gives way."""
        settler_yields = self.rng.random() < 0.7
        # Who waits looks for a deadlock once, 100 ms later: on a loaded machine the other one may not wait by then.
        yields = ("DeadlockDetected", "LockNotAvailable")
        async with self._met(made.seen, *(yields if settler_yields else ())):
            with psycopg.connect(self.server.url(self.name, user="postgres")) as other:
                other.execute(f"SET deadlock_timeout = '{'60s' if settler_yields else '10ms'}'")
                other.execute("SELECT 1 FROM balances FOR UPDATE")
                await asyncio.to_thread(self._wait_for_a_waiter)
                with suppress(psycopg.errors.DeadlockDetected):
                    await asyncio.to_thread(other.execute, "UPDATE ledger_clock SET settled_at = settled_at")
                other.rollback()
            if not settler_yields:
                made.seen.failures["the other one gave way"] += 1

    async def fill(self, made: Plant) -> None:
        """No space left for the tables."""
        pid = self.server.pid
        ballast = Path(f"/proc/{pid}/root{self.server.tiny_disk}/ballast")
        async with self._met(made.seen, "DiskFull"):
            await asyncio.to_thread(_fill, ballast)
        await self._wait()
        before = made.seen.said["committed"]
        ballast.unlink()
        await _until(lambda: made.seen.said["committed"] > before)

    async def forbid(self, made: Plant) -> None:
        """Read-only, as after a failover."""
        async with self._met(made.seen, "ReadOnlySqlTransaction"):
            await asyncio.to_thread(self.server.set, default_transaction_read_only="on")
        await self._wait()
        with psycopg.connect(self.server.url("postgres", user="postgres"), autocommit=True) as other:
            other.execute("SET default_transaction_read_only = off")
            other.execute("ALTER SYSTEM SET default_transaction_read_only = off")
            other.execute("SELECT pg_reload_conf()")

    def _wait_for_a_waiter(self) -> None:
        """Until the settler has the clock and wants a balance."""
        until = time.monotonic() + PATIENCE_S
        waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tokenweir' AND wait_event = 'transactionid'"
        with psycopg.connect(self.server.url("postgres", user="postgres"), autocommit=True) as looking:
            while not looking.execute(waits).fetchall():
                assert time.monotonic() < until, "nobody settles"
                time.sleep(0.005)

    @asynccontextmanager
    async def _met(self, seen: Seen, *words: str) -> AsyncIterator[None]:
        """What is done within is met by somebody before this ends."""

        def met() -> int:
            return sum(count for said, count in seen.failures.items() if not words or any(w in said for w in words))

        before = met()
        yield
        try:
            await _until(lambda: met() > before)
        except TimeoutError:
            raise AssertionError(f"nobody has met {words}: {seen.failures}") from None

    async def _wait(self) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.1, 0.5)))


Fault = Callable[[Plant], Awaitable[None]]


def _fill(ballast: Path) -> None:
    """To the last page, whoever else takes some meanwhile."""
    with ballast.open("wb", buffering=0) as file:
        while room := os.statvfs(ballast).f_bavail * os.statvfs(ballast).f_frsize:
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), room)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)


@pytest.fixture
def sick(postgres_cluster: Path) -> Iterator[Postgres]:
    """A server of the test's own behind a path with faults."""
    with own_server(postgres_cluster) as server, Postgres(server, Random(f"{SEED} postgres")).standing() as made:
        yield made


@pytest.fixture
def crammed(postgres_cluster: Path) -> Iterator[Postgres]:
    """The same, with its tables on a tiny disk; it must not be restarted, for the disk is in memory."""
    with own_server(postgres_cluster, tiny_disk_mb=DISK_MB) as server:
        server.execute(f"CREATE TABLESPACE tiny LOCATION '{server.tiny_disk}'")
        options = "TABLESPACE tiny STRATEGY file_copy"
        with Postgres(server, Random(f"{SEED} disk"), options=options).standing() as made:
            yield made


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is overdue is looked for sooner, and so more often."""
    monkeypatch.setattr(shipper, "OVERDUE_S", 2.0)


async def strike(
    sick: Postgres, kinds: Sequence[Fault], each: int, folder: Path, valkey: Valkey
) -> tuple[list[str], str]:
    """Every kind `each` times, in any order; what is wrong, and the figures."""
    migrate(sick.server.url(sick.name))
    began, rng = time.monotonic(), Random(SEED)
    rate = RATE if each > 1 else SHORT_RATE
    faults = [*kinds] * each
    rng.shuffle(faults)
    async with plant(folder, rng, redis_url=valkey.url, ledger_url=sick.url, rate=rate) as made:
        for fault in faults:
            await asyncio.sleep(rng.uniform(0.05, 0.4))
            await fault(made)
        wrong = await heal(made, redis_url=valkey.url)
        engine = open_engine(sick.server.url(sick.name))
        wrong += made.wrong(engine)
        engine.dispose()
    names = ", ".join(fault.__name__ for fault in kinds)
    figures = (
        f"Postgres: {len(faults)} faults of {len(kinds)} kinds ({names}), {len(wrong)} violations"
        f" ({len(made.truths)} exchanges, {made.seen.failing} failed tries; {time.monotonic() - began:.0f} s)"
    )
    return wrong, figures


def kinds_of(sick: Postgres) -> tuple[Fault, ...]:
    """All but the full disk."""
    return sick.crash, sick.terminate_at_commit, sick.lose_commit, sick.oppose, sick.forbid


@pytest.mark.waits
async def test_each_kind_of_fault(sick: Postgres, tmp_path: Path, valkey: Valkey) -> None:
    wrong, _ = await strike(sick, kinds_of(sick), 1, tmp_path, valkey)
    assert not wrong, f"seed {SEED}: {wrong}"


@pytest.mark.waits
@pytest.mark.privileged
async def test_a_full_disk(crammed: Postgres, tmp_path: Path, valkey: Valkey) -> None:
    wrong, _ = await strike(crammed, [crammed.fill], 1, tmp_path, valkey)
    assert not wrong, f"seed {SEED}: {wrong}"


@pytest.mark.slow
async def test_fifty_of_each_kind(
    sick: Postgres, tmp_path: Path, valkey: Valkey, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nseed {SEED}")
        wrong, figures = await strike(sick, kinds_of(sick), EACH, tmp_path, valkey)
        print(figures)
    assert not wrong, wrong


@pytest.mark.slow
async def test_fifty_full_disks(
    crammed: Postgres, tmp_path: Path, valkey: Valkey, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nseed {SEED}")
        wrong, figures = await strike(crammed, [crammed.fill], EACH, tmp_path, valkey)
        print(figures)
    assert not wrong, wrong
