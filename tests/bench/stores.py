"""A real Postgres and a real Valkey for the benchmark of many machines, and a deployment on them.

Law: Postgres syncs to the disk and commits as it does out of the box; only its memory and its log may be larger. Valkey
keeps nothing on the disk: what it loses, the journals have.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redis import Redis
from sqlalchemy import Engine

from proxy.ledger.schema.migrate import migrate
from proxy.storage.database import open_engine
from tests.support.postgres import PostgresServer, new_cluster, own_server
from tests.support.tokenweir import COMMAND, Listening, Tokenweir, provider_section
from tests.support.valkey import Valkey

POSTGRES: dict[str, Any] = {
    "fsync": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "1GB",  # the default, said because the tests' servers have less
    "autovacuum": "on",
    "deadlock_timeout": "1s",
}
STREAM = "{tokenweir:0}:records"
"""of the first shard"""
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Stores:
    """Both servers, and a folder for what runs on them."""

    postgres: PostgresServer
    valkey: Valkey
    folder: Path

    def ledger(self) -> AbstractContextManager[Ledger]:
        return new_ledger(self.postgres)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of both servers, without their children."""
        children = self.postgres._child, self.valkey._child
        return tuple(child.pid for child in children if child is not None)

    @property
    def redis(self) -> Redis:
        """A client that waits."""
        return Redis(port=self.valkey.port)

    @contextmanager
    def workers(self, ledger_url: str, number: int, **settings: Any) -> Iterator[list[Listening]]:
        with TemporaryDirectory(dir=self.folder) as folder:
            made = deployment(Path(folder), ledger_url, self.valkey.url, **settings)
            running = [made.worker() for _ in range(number)]
            try:
                yield [one.start() for one in running]
            finally:
                for one in running:
                    one.close()


@dataclass(frozen=True, slots=True)
class Ledger:
    url: str
    name: str
    engine: Engine
    postgres: PostgresServer

    def ask(self, statement: str) -> int:
        return int(self.postgres.execute(statement, database=self.name)[0][0])

    def do(self, *statements: str) -> None:
        """As the superuser, each by itself."""
        for statement in statements:
            self.postgres.execute(statement, database=self.name)

    @property
    def settled(self) -> int:
        """Entries that are in the balances: the sum of a thousand rows, not a count of millions."""
        return self.ask("SELECT coalesce(sum(entries), 0) FROM balances")


@contextmanager
def new_ledger(postgres: PostgresServer) -> Iterator[Ledger]:
    name = postgres.new_database()
    url = postgres.url(name)
    migrate(url)
    engine = open_engine(url)
    try:
        yield Ledger(url, name, engine, postgres)
    finally:
        engine.dispose()
        postgres.drop_database(name)


@contextmanager
def stores() -> Iterator[Stores]:
    with TemporaryDirectory(prefix="tokenweir-bench-") as text:
        folder = Path(text)
        valkey = Valkey(folder / "valkey").start()
        try:
            with own_server(new_cluster(folder / "cluster"), **POSTGRES) as postgres:
                yield Stores(postgres, valkey, folder)
        finally:
            valkey.close()


def deployment(
    folder: Path,
    ledger_url: str,
    queue_url: str,
    *,
    provider_port: int = 9,
    options: tuple[str, ...] = (),
    **settings: Any,
) -> Tokenweir:
    """Proxies and workers as anybody would run them. Port 9: nobody is asked."""
    section = provider_section(f"http://127.0.0.1:{provider_port}/v1", on_client_disconnect="cancel")
    made = Tokenweir(
        folder, providers={"bench": section}, ledger_url=ledger_url, queue_url=queue_url, options=options, **settings
    )
    made.program = COMMAND
    return made


def cpu_s(pids: tuple[int, ...]) -> float:
    """Processor time of these processes so far, with that of threads that have ended."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)  # as clock_getcpuclockid does


def cores() -> int:
    """That we may use."""
    return len(os.sched_getaffinity(0))
