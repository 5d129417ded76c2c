"""CPU time per exchange, proxies and worker together, with one, two and four proxy processes that have all they can do.

Law: clients wait for an answer and ask again at once, so that every process is busy. One that has little to do finds
less at hand at each look, and pays up to three times as much for it. So there are two readings: each process with as
many clients as one alone has, which shows what processes cost one another; and those clients shared out among more
processes, which shows what that habit costs. The time is their own clocks. What they take at rest (beats, looks,
questions) is in it, and said beside it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench.load import Rig, Target
from tests.bench.stores import Stores, cpu_s, deployment
from tests.bench.systems import family
from tests.crash.stage import quick_key

PROCESSES = (1, 2, 4)
EVENTS, GAP_MS = 20, 5
REQUESTS_PER_S = 500
"""about as many as one process can serve: says how long it takes"""
CONNECTIONS = 50
REST_S = 3

Fleet = tuple[int, int]
"""proxy processes, and clients in all"""
FLEETS: tuple[Fleet, ...] = (
    *((number, number * CONNECTIONS) for number in PROCESSES),
    *((number, CONNECTIONS) for number in PROCESSES if number > 1),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of all processes."""

    exchange_us: float
    rest_ms_per_s: float
    """while nothing is asked of them"""


def cpu_per_exchange(stores: Stores, rig: Rig, *, rounds: int, seconds: float) -> dict[Fleet, Cost]:
    """What they take: the medians of the rounds."""
    found: dict[Fleet, list[Cost]] = {fleet: [] for fleet in FLEETS}
    with rig.provided() as provider_port:
        for _ in range(rounds):
            for fleet in random.sample(FLEETS, len(FLEETS)):
                found[fleet].append(_cost(stores, rig, provider_port, fleet, seconds))
    return {
        fleet: Cost(median(one.exchange_us for one in costs), median(one.rest_ms_per_s for one in costs))
        for fleet, costs in found.items()
    }


def _cost(stores: Stores, rig: Rig, provider_port: int, fleet: Fleet, seconds: float) -> Cost:
    number, clients = fleet
    with stores.ledger() as ledger, TemporaryDirectory(dir=stores.folder) as folder:
        options = ("--workers", str(number)) if number > 1 else ()
        proxy = deployment(Path(folder), ledger.url, stores.valkey.url, provider_port=provider_port, options=options)
        key = quick_key(proxy)
        worker = proxy.worker()
        try:
            proxy.start()
            worker.start()
            assert proxy.child is not None
            assert worker.child is not None
            pids = (*family(proxy.child.pid), worker.child.pid)
            target = Target(proxy.port, (f"Authorization: Bearer {key}",), pids)
            rig.requests(target, requests=400 * number, connections=clients, stream=True)  # they load their code
            began_s = cpu_s(pids)
            time.sleep(REST_S)
            rest_ms_per_s = (cpu_s(pids) - began_s) * 1e3 / REST_S
            load = rig.requests(
                target, requests=int(seconds * REQUESTS_PER_S), connections=clients, stream=True,
                length=EVENTS, gap_ms=GAP_MS,
            )  # fmt: skip
            return Cost(load.cpu_us_per_unit, rest_ms_per_s)
        finally:
            worker.close()
            proxy.close()
