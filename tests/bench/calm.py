"""Live streams while Redis or Postgres is away or slow: do they notice?

Law: all conditions are met by the same proxy and worker in the same run, in shuffled turn; exchanges begin and end all
the time, so that there is something that the stores are missing. The proxy is alone on one CPU, all else on the other,
as if it were elsewhere. "All well" is measured twice: what lies between the two is the machine's own noise.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench.load import Rig, RigError, Target, pin
from tests.bench.stores import Ledger, Stores, deployment
from tests.bench.systems import family
from tests.crash.stage import quick_key
from tests.support.faulty import FaultyPath

STREAMS, PACE_MS = 200, 20
ENDING_PER_S = 50
SLOW_S = 1.0  # a round trip
# A cut is found out, and what follows from it begins.
BEFORE_S = 1.0
HEALED_S_MAX = 60.0

Paths = tuple[FaultyPath, FaultyPath]
"""to Redis, to Postgres"""


def slow(path: FaultyPath) -> None:
    """Each way takes half of it."""
    path.delay_s = SLOW_S / 2


WELL, CONTROL = "all well", "all well, once more"
CONDITIONS: Mapping[str, Callable[[Paths], None]] = {
    WELL: lambda _: None,
    CONTROL: lambda _: None,
    "Redis cut": lambda paths: paths[0].cut(),
    "Redis 1 s slow": lambda paths: slow(paths[0]),
    "Postgres cut": lambda paths: paths[1].cut(),
    "Postgres 1 s slow": lambda paths: slow(paths[1]),
}


def calm(stores: Stores, ledger: Ledger, rig: Rig, *, rounds: int, seconds: float) -> dict[str, float]:
    """Condition → p99 of the time between two events of one stream, in ms: the median of the rounds."""
    found: dict[str, list[float]] = {name: [] for name in CONDITIONS}
    alone = min(os.sched_getaffinity(0))
    with (
        _elsewhere(stores, rig.cpu),
        FaultyPath("127.0.0.1", stores.valkey.port) as redis,
        FaultyPath("127.0.0.1", stores.postgres.port) as postgres,
        rig.provided() as provider_port,
        TemporaryDirectory(dir=stores.folder) as folder,
    ):
        urls = (
            ledger.url.replace(f":{stores.postgres.port}/", f":{postgres.port}/"),
            f"redis://127.0.0.1:{redis.port}",
        )
        with _serving(Path(folder), urls, provider_port, (alone, rig.cpu)) as target:
            rig.requests(target, requests=300, connections=8, stream=True)  # it loads its code
            for _ in range(rounds):
                for name in random.sample(list(CONDITIONS), len(CONDITIONS)):
                    _wait_until_settled(ledger)
                    CONDITIONS[name]((redis, postgres))
                    time.sleep(BEFORE_S)
                    found[name].append(_gap_ms(rig, target, seconds))
                    redis.heal()
                    postgres.heal()
    return {name: median(values) for name, values in found.items()}


def _gap_ms(rig: Rig, target: Target, seconds: float) -> float:
    """p99, while others begin and end beside them."""
    wrong: list[RigError] = []

    def others() -> None:
        try:
            rig.requests(target, requests=int(seconds * ENDING_PER_S), per_s=ENDING_PER_S, connections=16, stream=True)
        except RigError as error:
            wrong.append(error)

    beside = threading.Thread(target=others)
    beside.start()
    try:
        load = rig.streams(target, streams=STREAMS, events=int(seconds * 1000 / PACE_MS), pace_ms=PACE_MS)
    finally:
        beside.join()
    if wrong:
        raise wrong[0]
    return load.gap_p99_us / 1000


def _wait_until_settled(ledger: Ledger) -> None:
    """What an outage left behind is in the ledger: the sums do not move any more."""
    until, last, since = time.monotonic() + HEALED_S_MAX, -1, time.monotonic()
    while time.monotonic() - since < 2:
        if time.monotonic() > until:
            raise RigError(f"it does not recover within {HEALED_S_MAX:.0f} s")
        if (settled := ledger.settled) != last:
            last, since = settled, time.monotonic()
        time.sleep(0.2)


@contextmanager
def _elsewhere(stores: Stores, cpu: int) -> Iterator[None]:
    """This process and both servers on one CPU."""
    allowed = os.sched_getaffinity(0)
    pids = (0, *(pid for server in stores.pids for pid in family(server)))
    try:
        _pinned(pids, {cpu})
        yield
    finally:
        _pinned(pids, allowed)


def _pinned(pids: Iterable[int], cpus: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a session of Postgres that has ended
            os.sched_setaffinity(pid, cpus)


@contextmanager
def _serving(folder: Path, urls: tuple[str, str], provider_port: int, cpus: tuple[int, int]) -> Iterator[Target]:
    proxy = deployment(folder, *urls, provider_port=provider_port)
    key = quick_key(proxy)
    worker = proxy.worker()
    try:
        pin(cpus[0])  # children are born where their parent is
        proxy.start()
        pin(cpus[1])
        worker.start()
        yield Target(proxy.port, (f"Authorization: Bearer {key}",))
    finally:
        worker.close()
        proxy.close()
