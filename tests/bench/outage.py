"""After a long outage: how fast what has waited gets into the ledger, while new exchanges go on arriving.

Law: what waits was journaled and sent by the product's own code while a server was away, and the drain ends when the
ledger has all of it and all that came since, but for the last second's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.load import RigError
from tests.bench.stores import STREAM, Ledger, Stores
from tests.support.faulty import FaultyPath
from tests.support.tokenweir import ROOT

FILL_S_MAX = 120.0
S_MAX = 240.0


class Away(StrEnum):
    POSTGRES = "Postgres"
    REDIS = "Redis"


@dataclass(frozen=True, slots=True)
class Drain:
    per_s: float
    seconds: float
    waited_in_queue: int
    late_p99_ms: float
    """of the feeding process's event loop, while it drained"""
    late_max_ms: float
    again: int
    """records that were sent more than once"""


def drain(stores: Stores, ledger: Ledger, away: Away, *, backlog: int, arriving_per_s: float) -> Drain:
    """Let `backlog` wait, then heal. Raises RigError."""
    with (
        stores.redis as redis,
        FaultyPath("127.0.0.1", stores.postgres.port) as postgres_path,
        FaultyPath("127.0.0.1", stores.valkey.port) as redis_path,
        TemporaryDirectory(dir=stores.folder) as folder,
    ):
        redis.delete(STREAM)
        through = ledger.url.replace(f":{stores.postgres.port}/", f":{postgres_path.port}/")
        # The proxy asks the ledger, and speaks to the queue, over paths that can be cut; the worker is started when
        # all is well again: while the ledger is away a worker can do nothing.
        (postgres_path if away is Away.POSTGRES else redis_path).cut()
        urls = (f"redis://127.0.0.1:{redis_path.port}", through)
        with _feeding(Path(folder), *urls, backlog, arriving_per_s) as feeder:
            feeder.wait_until_ready()
            waited = int(redis.xlen(STREAM))
            before = feeder.ask()
            with stores.workers(ledger.url, 1):
                (postgres_path if away is Away.POSTGRES else redis_path).heal()
                return _watch(ledger, feeder, before, waited, arriving_per_s)


def _watch(ledger: Ledger, feeder: _Feeder, before: dict[str, Any], waited: int, arriving_per_s: float) -> Drain:
    began, had, worst = time.monotonic(), ledger.settled, list[dict[str, Any]]()
    while True:
        time.sleep(0.25)
        settled, said = ledger.settled, feeder.ask()
        worst.append(said)
        seconds = time.monotonic() - began
        if settled >= said["made"] - arriving_per_s:
            break
        if seconds > S_MAX:
            raise RigError(f"{said['made'] - settled} records wait after {S_MAX:.0f} s")
    return Drain(
        per_s=(settled - had) / seconds,
        seconds=seconds,
        waited_in_queue=waited,
        late_p99_ms=max(one["late_p99_ms"] for one in worst),
        late_max_ms=max(one["late_max_ms"] for one in worst),
        again=worst[-1]["again"] - before["again"],
    )


class _Feeder:
    """The process that journals and ships."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def ask(self) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        said: dict[str, Any] = json.loads(self._child.stdout.readline())
        return said

    def wait_until_ready(self) -> None:
        until = time.monotonic() + FILL_S_MAX
        while not self.ask()["ready"]:
            if time.monotonic() > until:
                raise RigError("the journal is not filled in time")
            time.sleep(0.25)
        time.sleep(3)  # what can be sent is sent


@contextmanager
def _feeding(folder: Path, queue: str, ledger: str, backlog: int, per_s: float) -> Iterator[_Feeder]:
    command = [sys.executable, "-m", "tests.bench.feeder", str(folder / "journal"), queue, ledger]
    command += ["--backlog", str(backlog), "--per-s", str(per_s)]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield _Feeder(child)
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        child.stdout.close()
