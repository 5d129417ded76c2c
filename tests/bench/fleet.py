"""CPU time per exchange, proxies and worker together, with one, two and four proxy processes that have all they can do.

Law: clients wait for an answer and ask again at once, so that every process is busy: one that is not finds less at hand
at each look, and pays three times as much for it; here is to be seen what they cost one another. The time is their own
clocks. What they take at rest (beats, looks, questions) is in it, and said beside it.
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
CONNECTIONS = 100
REST_S = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of all processes."""

    exchange_us: float
    rest_ms_per_s: float
    """while nothing is asked of them"""


def cpu_per_exchange(stores: Stores, rig: Rig, *, rounds: int, seconds: float) -> dict[int, Cost]:
    """Proxy processes → what they take: the medians of the rounds."""
    found: dict[int, list[Cost]] = {number: [] for number in PROCESSES}
    with rig.provided() as provider_port:
        for _ in range(rounds):
            for number in random.sample(PROCESSES, len(PROCESSES)):
                found[number].append(_cost(stores, rig, provider_port, number, seconds))
    return {
        number: Cost(median(one.exchange_us for one in costs), median(one.rest_ms_per_s for one in costs))
        for number, costs in found.items()
    }


def _cost(stores: Stores, rig: Rig, provider_port: int, number: int, seconds: float) -> Cost:
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
            rig.requests(target, requests=400, connections=CONNECTIONS, stream=True)  # they load their code
            began_s = cpu_s(pids)
            time.sleep(REST_S)
            rest_ms_per_s = (cpu_s(pids) - began_s) * 1e3 / REST_S
            load = rig.requests(
                target, requests=int(seconds * REQUESTS_PER_S), connections=CONNECTIONS, stream=True,
                length=EVENTS, gap_ms=GAP_MS,
            )  # fmt: skip
            return Cost(load.cpu_us_per_unit, rest_ms_per_s)
        finally:
            worker.close()
            proxy.close()
