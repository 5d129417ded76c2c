"""From the queue into the ledger: how fast `tokenweir worker` settles what is there.

Law: timed from the first acknowledged record to the last, with the records in the stream beforehand; then counted: each
is in the ledger, in the balances and in the usage by day, once, or there is no figure.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.bench.load import RigError
from tests.bench.records import fill_stream
from tests.bench.stores import POLL_S, STREAM, Ledger, Stores, cpu_s

S_MAX = 240.0
SUMS = (
    "SELECT count(*) FROM (SELECT (SELECT sum(entries) FROM balances) a, (SELECT sum(entries) FROM usage_daily) b) "
    "WHERE a = b"
)


@dataclass(frozen=True, slots=True)
class Settled:
    """One drain."""

    per_s: float
    cpu_us: float
    """of the workers, per entry"""


def settle(stores: Stores, ledger: Ledger, *, records: int) -> Settled:
    """Settle so many. Raises RigError."""
    before = ledger.settled
    with stores.redis as redis:
        redis.delete(STREAM)
        fill_stream(redis, records)
        with stores.workers(ledger.url, 1) as running:
            pids = tuple(one.child.pid for one in running if one.child is not None)
            began, began_cpu_s, began_at = time.monotonic(), cpu_s(pids), int(redis.xlen(STREAM))
            while redis.xlen(STREAM):
                if time.monotonic() - began > S_MAX:
                    raise RigError(f"{redis.xlen(STREAM)} records wait after {S_MAX:.0f} s")
                time.sleep(POLL_S)
            settled = Settled(began_at / (time.monotonic() - began), (cpu_s(pids) - began_cpu_s) / began_at * 1e6)
    if ledger.settled - before != records or not ledger.ask(SUMS):
        raise RigError(f"{ledger.settled - before} of {records} records are in the balances")
    return settled
