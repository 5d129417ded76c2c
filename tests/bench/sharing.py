"""What settling costs Postgres, and how long workers wait for each other, for any number of workers.

Law: processor time is that of all of Postgres' processes, those that ended included. Waiting is seen from outside: how
many of the workers' sessions that are in a transaction wait for a lock, looked up many times a second. Every record is
in the ledger and in its sums once, or there is no figure.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import psycopg

from tests.bench.load import RigError
from tests.bench.records import KEYS, fill_stream
from tests.bench.stores import POLL_S, STREAM, Ledger, Stores, cpu_s

S_MAX = 240.0
SUMS = (
    "SELECT count(*) FROM (SELECT (SELECT sum(entries) FROM balances) a, (SELECT sum(entries) FROM usage_daily) b) "
    "WHERE a = b"
)
LOOK_S = 0.02
# Until workers have shared the work out.
READY_S = 2.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SESSIONS = """
    SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'), count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND state IN ('active', 'idle in transaction')
"""


@dataclass(frozen=True, slots=True)
class Shared:
    """One drain of the queue."""

    per_s: float
    postgres_us: float
    """processor time of Postgres, per record"""
    worker_us: float
    """that of the workers"""
    waiting: float
    """share of the transactions' time that was spent waiting for a lock"""

    @property
    def per_cpu_s(self) -> float:
        """Records for a second of Postgres' processor time."""
        return 1e6 / self.postgres_us


def share(
    stores: Stores, ledger: Ledger, *, records: int, workers: int = 1, keys: int = KEYS, shards: int = 1
) -> Shared:
    """Settle so many records of so many keys, which wait when all workers are at hand. Raises RigError."""
    before, postmaster = ledger.settled, stores.postgres.pid
    streams = [STREAM.replace("0", str(shard)) for shard in range(shards)]
    aside = [f"{stream}:aside" for stream in streams]
    with stores.redis as redis:
        redis.delete(*streams)
        fill_stream(redis, records, keys=keys, streams=aside)
        with stores.workers(ledger.url, workers, queue_shards=shards) as running:
            pids = tuple(one.child.pid for one in running if one.child is not None)
            time.sleep(READY_S)
            with _Looking(ledger.url) as looking:
                began, used_s = time.monotonic(), (postgres_s(postmaster), cpu_s(pids))
                for there, stream in zip(aside, streams, strict=True):
                    if redis.exists(there):
                        redis.rename(there, stream)
                _until(lambda: not any(redis.xlen(stream) for stream in streams), began)
                lasted_s = time.monotonic() - began
                used_s = postgres_s(postmaster) - used_s[0], cpu_s(pids) - used_s[1]
    if ledger.settled - before != records or not ledger.ask(SUMS):
        raise RigError(f"{ledger.settled - before} of {records} records are in the balances")
    return Shared(records / lasted_s, used_s[0] / records * 1e6, used_s[1] / records * 1e6, looking.waiting)


def postgres_s(postmaster: int) -> float:
    """Processor time of a server so far: of itself, of its children, and of those that have ended. A session that ends
    at that moment may be left out."""
    used = sum(_stat(postmaster)[11:15])
    for one in Path("/proc").glob("[0-9]*"):
        try:
            fields = _stat(int(one.name))
        except (OSError, IndexError):  # it has just ended
            continue
        if fields[1] == postmaster:
            used += sum(fields[11:13])
    return used * _TICK_S


def _stat(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat behind the name, whose first is no number."""
    after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [0, *map(int, after[1:])]


def _until(done: Callable[[], bool], began: float) -> None:
    while not done():
        if time.monotonic() - began > S_MAX:
            raise RigError(f"records wait after {S_MAX:.0f} s")
        time.sleep(POLL_S)


class _Looking:
    """Looks at the sessions of a database while it is open."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = Event()
        self._thread = Thread(target=self._look)
        self._waited = self._seen = 0

    def __enter__(self) -> _Looking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def waiting(self) -> float:
        """The share of sessions in a transaction that waited for a lock."""
        return self._waited / max(1, self._seen)

    def _look(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ended.wait(LOOK_S):
                row = connection.execute(_SESSIONS).fetchone()
                assert row is not None
                self._waited += row[0]
                self._seen += row[1]


def simulated(one: Shared, *, workers: int, shards: int, cores: int, batch: int, commit_s: float = 0.001) -> float:
    """Records per second on so many cores that workers and Postgres share, by the figures of one worker.

    Each shard has one batch at work: its worker prepares it, Postgres writes it, the disk commits it. A worker prepares
    one batch at a time, a core works on one thing at a time, and a shard writes one batch at a time.
    """
    prepare_s, write_s = batch * one.worker_us / 1e6, batch * one.postgres_us / 1e6
    free, idle = [0.0] * cores, [0.0] * workers
    heapq.heapify(free)
    ready = [(0.0, shard, True) for shard in range(shards)]
    batches, until = 0, 0.0
    while batches < 100 * shards:
        at, shard, prepares = heapq.heappop(ready)
        at = max(at, heapq.heappop(free), idle[shard % workers] if prepares else 0.0)
        done = at + (prepare_s if prepares else write_s)
        heapq.heappush(free, done)
        if prepares:
            idle[shard % workers] = done
            heapq.heappush(ready, (done, shard, False))
        else:
            batches, until = batches + 1, max(until, done)
            heapq.heappush(ready, (done + commit_s, shard, True))
    return batches * batch / until
