"""Postgres crashes, ends sessions at COMMIT, deadlocks with others, is full, is read-only: 50 times each, in use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event

from proxy.ledger.schema.migrate import migrate
from tests.distributed.plant import Fault, Plant, strike, until
from tests.support.examples import SEED
from tests.support.faulty import FaultyPath
from tests.support.postgres import PostgresServer, own_server
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sooner")]

EACH = 50
# The ledger of a long run, and some room that can be filled.
DISK_MB = 192


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
        async with made.seen.met():
            await asyncio.to_thread(self.server.stop_immediately)
        await asyncio.to_thread(self.server.start)

    async def terminate_at_commit(self, made: Plant) -> None:
        """pg_terminate_backend when all is written and COMMIT is next; it may come before or after."""
        self._to_end = True
        await until(lambda: not self._to_end)

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
        await until(lambda: self.path.lost)

    async def oppose(self, made: Plant) -> None:
        """Somebody locks a balance, then the clock; the settler comes the other way. One of them gives way."""
        settler_yields = self.rng.random() < 0.7
        # Who waits looks for a deadlock once, 100 ms later: on a loaded machine the other one may not wait by then.
        yields = ("DeadlockDetected", "LockNotAvailable")
        async with made.seen.met(*(yields if settler_yields else ())):
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
        async with made.seen.met("DiskFull"):
            await asyncio.to_thread(_fill, ballast)
        await self._wait()
        before = made.seen.said["committed"]
        ballast.unlink()
        await until(lambda: made.seen.said["committed"] > before)

    async def forbid(self, made: Plant) -> None:
        """Read-only, as after a failover."""
        async with made.seen.met("ReadOnlySqlTransaction"):
            await asyncio.to_thread(self.server.set, default_transaction_read_only="on")
        await self._wait()
        with psycopg.connect(self.server.url("postgres", user="postgres"), autocommit=True) as other:
            other.execute("SET default_transaction_read_only = off")
            other.execute("ALTER SYSTEM SET default_transaction_read_only = off")
            other.execute("SELECT pg_reload_conf()")

    def _wait_for_a_waiter(self) -> None:
        """Until the settler has the clock and wants a balance."""
        waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tokenweir' AND wait_event = 'transactionid'"
        with psycopg.connect(self.server.url("postgres", user="postgres"), autocommit=True) as looking:
            wait_until(lambda: looking.execute(waits).fetchall(), lambda: "nobody settles", poll_s=0.005)

    async def _wait(self) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.1, 0.5)))


def _fill(ballast: Path) -> None:
    """To the last page, whoever else takes some meanwhile."""
    with ballast.open("wb", buffering=0) as file:
        while room := os.statvfs(ballast).f_bavail * os.statvfs(ballast).f_frsize:
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), room)


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


async def struck(sick: Postgres, kinds: Sequence[Fault], each: int, folder: Path, valkey: Valkey) -> list[str]:
    """What is wrong after every kind `each` times."""
    url = sick.server.url(sick.name)
    migrate(url)
    return await strike("Postgres", kinds, each, folder, redis_url=valkey.url, ledger_url=sick.url, looking_url=url)


def kinds_of(sick: Postgres) -> tuple[Fault, ...]:
    """All but the full disk."""
    return sick.crash, sick.terminate_at_commit, sick.lose_commit, sick.oppose, sick.forbid


@pytest.mark.waits
@pytest.mark.parametrize("each", [1, pytest.param(EACH, marks=pytest.mark.slow)])
async def test_each_kind_of_fault(
    sick: Postgres, tmp_path: Path, valkey: Valkey, capsys: pytest.CaptureFixture[str], each: int
) -> None:
    with capsys.disabled():
        assert await struck(sick, kinds_of(sick), each, tmp_path, valkey) == []


@pytest.mark.waits
@pytest.mark.privileged
@pytest.mark.parametrize("each", [1, pytest.param(EACH, marks=pytest.mark.slow)])
async def test_a_full_disk(
    crammed: Postgres, tmp_path: Path, valkey: Valkey, capsys: pytest.CaptureFixture[str], each: int
) -> None:
    with capsys.disabled():
        assert await struck(crammed, [crammed.fill], each, tmp_path, valkey) == []
