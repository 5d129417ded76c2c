"""A proxy without streams: `python -m tests.bench.feeder`. It journals exchanges and ships their records, by the
product's own journal and shipper, and says what it sees: a line of JSON for each line on standard input.

First the backlog, as fast as it can; then so many a second until standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from proxy.billing.settlement import content_hash
from proxy.delivery.redis_queue import RedisQueue
from proxy.delivery.shipper import Shipper
from proxy.journal.journal import Journal
from proxy.ledger.settling.store import LedgerStore
from proxy.storage.database import open_engine
from proxy.storage.redis_client import open_redis
from tests.bench.records import opened, record
from tests.support.recorder import ShipperRecorder

TICK_S = 0.005
AT_ONCE = 50
JOURNAL_BYTES = 8 << 30


class Feeder:
    """Journals, and knows how late its loop is."""

    def __init__(self, journal: Journal, seen: ShipperRecorder) -> None:
        self.journal = journal
        self.made = 0
        self.backlog_made = False
        self.late_ms = list[float]()
        self._seen = seen

    async def feed(self, backlog: int, per_s: float) -> None:
        """The backlog, then `per_s`, for ever."""
        while self.made < backlog:
            self._make(min(AT_ONCE, backlog - self.made))
            await asyncio.sleep(0)
        self.backlog_made = True
        began = time.monotonic()
        due = 0.0
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(TICK_S)
            self.late_ms.append((time.monotonic() - asleep - TICK_S) * 1e3)
            new = int((time.monotonic() - began) * per_s - due)
            self._make(new)
            due += new

    def report(self) -> str:
        """A line; lateness is of the loop since the last one."""
        late, self.late_ms = sorted(self.late_ms) or [0.0], []
        said = {
            "made": self.made,
            "ready": self.backlog_made,
            "unsettled": self.journal.depth,
            "again": self._seen.again,
            "late_p99_ms": late[int(0.99 * (len(late) - 1))],
            "late_max_ms": late[-1],
        }
        return json.dumps(said)

    def _make(self, number: int) -> None:
        for _ in range(number):
            begun = opened(self.made)
            self.journal.begin(begun)
            self.journal.finish(record(begun))
            self.made += 1


async def run(folder: Path, queue: str, ledger: str, backlog: int, per_s: float) -> None:
    """Until standard input ends."""
    journal = Journal.open(folder, bytes_max=JOURNAL_BYTES)
    redis, engine, seen = open_redis(queue), open_engine(ledger), ShipperRecorder()
    store = LedgerStore(engine, content_hash=content_hash, clock=time.time)
    in_thread = partial(asyncio.get_running_loop().run_in_executor, ThreadPoolExecutor(1))
    shipper = Shipper(
        journal, RedisQueue(redis, consumer="feeder"), store, node=journal.node.node_id, observer=seen,
        monotonic=time.monotonic, in_thread=in_thread,
    )  # fmt: skip
    feeder = Feeder(journal, seen)
    shipping = asyncio.create_task(shipper.run())  # noqa: TID251
    feeding = asyncio.create_task(feeder.feed(backlog, per_s))  # noqa: TID251
    while await asyncio.to_thread(sys.stdin.readline):
        print(feeder.report(), flush=True)
    for task in (feeding, shipping):
        task.cancel()
    await asyncio.gather(feeding, shipping, return_exceptions=True)
    await redis.aclose()
    engine.dispose()
    journal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="a proxy without streams")
    parser.add_argument("folder", type=Path)
    parser.add_argument("queue")
    parser.add_argument("ledger")
    parser.add_argument("--backlog", type=int, default=0)
    parser.add_argument("--per-s", type=float, default=500)
    args = parser.parse_args()
    asyncio.run(run(args.folder, args.queue, args.ledger, args.backlog, args.per_s))


if __name__ == "__main__":
    main()
