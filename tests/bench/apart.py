"""The benchmark of many machines: `python -m tests.bench.apart [--quick | --full] [--only A,B] [--json FILE]`.

Law: real Postgres, real Valkey, real processes, all on the cores that there are, so every figure has the servers' own
work in it. It never fails for being slow.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench import dashboards, many_keys
from tests.bench.calm import CONDITIONS, CONTROL, WELL, calm
from tests.bench.fleet import CONNECTIONS, EVENTS, FLEETS, cpu_per_exchange
from tests.bench.history import fill
from tests.bench.lines import Line, at_least, at_most, table
from tests.bench.load import Rig, RigError, build, main
from tests.bench.outage import Away, drain
from tests.bench.sharing import Shared, share, simulated
from tests.bench.stores import POSTGRES, Ledger, Stores, cores, stores

SETTLE_PER_S = 10_000
FLAT = 0.9
TWO_WORKERS, TWO_WORKERS_CORES = 1.7, 6  # two workers, Valkey, and a backend for each lane
DRAIN = 5
ARRIVING_PER_S = 500
CALM = 1.05
DASHBOARD_MS = 300
KEYRING_MB, AT_ONCE_MS = 250, 50
CPU_FLAT = 1.15
WORKERS, FEW_KEYS, MANY_KEYS = (1, 2, 4), 10, 20_000
SAME, WAITING, SHARDS = 0.9, 0.1, 4
SIMULATED_SHARDS, BATCH = 8, 1_000


@dataclass(frozen=True, slots=True)
class Size:
    records: int
    rows: int
    backlog: int
    rounds: int
    seconds: float
    """of each measurement that takes a time"""
    keys: int


QUICK = Size(records=30_000, rows=100_000, backlog=30_000, rounds=1, seconds=2, keys=50_000)
USUAL = Size(records=100_000, rows=1_000_000, backlog=300_000, rounds=3, seconds=4, keys=1_000_000)
FULL = Size(records=200_000, rows=10_000_000, backlog=300_000, rounds=5, seconds=5, keys=1_000_000)

Lines = Iterator[Line]


def settling(stores: Stores, size: Size, _rig: Rig) -> Lines:
    """Into an empty ledger, by one worker."""
    rounds = []
    for _ in range(size.rounds):
        with stores.ledger() as ledger:
            rounds.append(share(stores, ledger, records=size.records))
    per_s, cpu_us = median(one.per_s for one in rounds), median(one.worker_us for one in rounds)
    yield at_least(
        f"queue to ledger, one worker, {size.records:,} records that wait", per_s, SETTLE_PER_S,
        f"{per_s:,.0f} entries/s ({cpu_us:.0f} µs of the worker each)", " entries/s",
    )  # fmt: skip


def sharing(stores: Stores, size: Size, _rig: Rig) -> Lines:
    """What a record costs Postgres, by the number of workers and keys, and how long workers wait for each other."""
    for keys in (FEW_KEYS, MANY_KEYS):
        found: dict[int, list[Shared]] = {workers: [] for workers in WORKERS}
        for _ in range(size.rounds):
            for workers, rounds in found.items():
                with stores.ledger() as ledger:
                    rounds.append(
                        share(stores, ledger, records=size.records, workers=workers, keys=keys, shards=SHARDS)
                    )
        alone = found[1]
        for workers, rounds in found.items():
            yield from _shared(workers, keys, rounds, median(one.per_cpu_s for one in alone))
        yield _two_workers(alone, found[2], keys)
        yield from _simulated(alone, keys)


def _shared(workers: int, keys: int, rounds: Sequence[Shared], alone: float) -> Lines:
    per_cpu_s, waiting = median(one.per_cpu_s for one in rounds), median(one.waiting for one in rounds)
    rate = f"{median(one.per_s for one in rounds):,.0f} entries/s, {median(one.worker_us for one in rounds):.0f} µs"
    title = f"entries per second of Postgres' CPU, {workers} at work, {keys:,} keys"
    shown = f"{per_cpu_s:,.0f} ({per_cpu_s / alone:.2f} ×; {rate} of the workers each)"
    yield at_least(title, per_cpu_s / alone, SAME, shown, " × of one")
    yield at_most("– waiting for another's lock", waiting, WAITING, f"{waiting:.1%}", "")


def _two_workers(one: Sequence[Shared], two: Sequence[Shared], keys: int) -> Line:
    ratio = median(found.per_s for found in two) / median(found.per_s for found in one)
    line = at_least(f"two workers against one, {keys:,} keys", ratio, TWO_WORKERS, f"{ratio:.2f} ×", " ×")
    if cores() < TWO_WORKERS_CORES:
        line = Line(line.title, f"{line.measured} ({cores()} cores for all)", f"{line.must_reach} where cores allow")
    return line


def _simulated(alone: Sequence[Shared], keys: int) -> Lines:
    """What one worker's figures say of machines that are not here."""
    for workers, machine_cores in ((2, 4), (4, 8)):
        size = {"shards": SIMULATED_SHARDS, "cores": machine_cores, "batch": BATCH}
        one = median(simulated(found, workers=1, **size) for found in alone)
        several = median(simulated(found, workers=workers, **size) for found in alone)
        title = f"simulated: {workers} workers against one, {SIMULATED_SHARDS} shards, {machine_cores} cores"
        yield Line(f"{title}, {keys:,} keys", f"{several / one:.2f} × ({several:,.0f} entries/s)")


def past(stores: Stores, size: Size, _rig: Rig) -> Lines:
    """The same with a past, in turn with one that has none, and what dashboards ask of it."""
    with stores.ledger() as ledger:
        fill(ledger, size.rows // 10)
        yield from _asked(ledger, size.rows // 10)
    with stores.ledger() as ledger, stores.ledger() as empty:
        fill(ledger, size.rows)
        yield from _asked(ledger, size.rows)
        pairs = [
            (share(stores, empty, records=size.records), share(stores, ledger, records=size.records))
            for _ in range(size.rounds)
        ]
    ratio = median(full.per_s / none.per_s for none, full in pairs)
    shown = f"{ratio:.2f} × ({median(full.per_s for _, full in pairs):,.0f} entries/s)"
    yield at_least(f"queue to ledger, {size.rows:,} entries there against none", ratio, FLAT, shown, " ×")


def _asked(ledger: Ledger, rows: int) -> Lines:
    for title, answer in (
        ("spend per key per day, 30 days", dashboards.spend(ledger)),
        ("the same days by key and model, with tokens", dashboards.usage(ledger)),
        ("the last 100 entries of one key", dashboards.last_entries(ledger)),
    ):
        shown = f"{answer.ms:,.1f} ms ({answer.rows:,} rows)"
        yield at_most(f"{title}; ledger of {rows:,}", answer.ms, DASHBOARD_MS, shown, " ms")


def outages(stores: Stores, size: Size, _rig: Rig) -> Lines:
    """What waited while a server was away."""
    for away in Away:
        with stores.ledger() as ledger:
            found = drain(stores, ledger, away, backlog=size.backlog, arriving_per_s=ARRIVING_PER_S)
        ratio = found.per_s / ARRIVING_PER_S
        waited = f"{found.waited_in_queue:,} in the queue, the others in the journal"
        yield at_least(
            f"drain after {away} was away, {size.backlog:,} wait ({waited}), {ARRIVING_PER_S}/s go on", ratio, DRAIN,
            f"{ratio:.1f} × the arrivals ({found.seconds:.0f} s)", " ×",
        )  # fmt: skip
        yield Line(
            "– meanwhile the event loop of the proxy's end is late",
            f"p99 {found.late_p99_ms:.1f} ms, at most {found.late_max_ms:.1f} ms; {found.again:,} records sent again",
        )


def streams(stores: Stores, size: Size, rig: Rig) -> Lines:
    """Streams that should notice nothing."""
    with stores.ledger() as ledger:
        found = calm(stores, ledger, rig, rounds=size.rounds, seconds=size.seconds)
    well_ms = (found[WELL] + found[CONTROL]) / 2
    yield Line("time between two events of 200 live streams, p99, all well", f"{found[WELL]:.2f} ms")
    for name in CONDITIONS:
        if name != WELL:
            ratio = found[name] / well_ms
            shown = f"{found[name]:.2f} ms ({ratio - 1:+.1%})"
            line = Line(f"the same, {name}", shown, f"≤ {CALM - 1:+.0%}", ratio <= CALM)
            yield line if name != CONTROL else Line(line.title, f"{found[name]:.2f} ms")


def processes(stores: Stores, size: Size, rig: Rig) -> Lines:
    """Proxies side by side."""
    found = cpu_per_exchange(stores, rig, rounds=size.rounds, seconds=2 * size.seconds)
    one_us = found[FLEETS[0]].exchange_us
    for (number, clients), cost in found.items():
        title = f"CPU per exchange of {EVENTS} events, proxies and worker: {number} busy, {clients} clients"
        ratio = cost.exchange_us / one_us
        shown = f"{cost.exchange_us:,.0f} µs ({ratio:.2f} ×; {cost.rest_ms_per_s:.0f} ms/s at rest)"
        flat = number > 1 and clients == number * CONNECTIONS
        yield at_most(title, ratio, CPU_FLAT, shown, " × of one") if flat else Line(title, shown)


def keys(stores: Stores, size: Size, _rig: Rig) -> Lines:
    """What a million keys cost a proxy, a worker and an operator."""
    number = f"{size.keys:,} keys"
    with stores.ledger() as ledger:
        many_keys.fill(ledger, keys=size.keys, projects=size.keys // 100)
        ring = many_keys.measured("keyring", ledger.url)
        listed = many_keys.measured("listing", ledger.url)
        spent = many_keys.measured("spending", ledger.url)
        rest = many_keys.measured("following", ledger.url, stores.valkey.url, str(size.keys))
    yield at_most(f"memory of a proxy's keyring, {number}", ring["mb"], KEYRING_MB, f"{ring['mb']:.0f} MB", " MB")
    yield Line("– its first read", f"{ring['read_s']:.1f} s of processor time")
    for title, ms, most in (
        ("– a poll without a change", ring["poll_ms"], AT_ONCE_MS),
        ("– the look-up of a key that is not in memory", ring["lookup_ms"], AT_ONCE_MS),
        ("a page of 100 keys in the console", listed["page_ms"], DASHBOARD_MS),
        ("the first spend of a key's budget", spent["key_ms"], AT_ONCE_MS),
        ("the same of a project of 100 keys", spent["project_ms"], AT_ONCE_MS),
        ("the same of an organization with half of all keys", spent["organization_ms"], AT_ONCE_MS),
        ("the same of its prepaid credit", spent["prepaid_ms"], AT_ONCE_MS),
        ("its balance", spent["balance_ms"], AT_ONCE_MS),
        ("following the ledger at rest, every second", rest["follow_ms"], AT_ONCE_MS),
        ("tidying reservations, every 10 s", rest["tidy_ms"], AT_ONCE_MS),
    ):
        yield at_most(f"{title}; {number}", ms, most, f"{ms:.1f} ms", " ms")
    yield Line(f"comparing 2,000 counters of {number} with the ledger, every 10 min", f"{rest['measure_ms']:,.0f} ms")
    yield Line(f"`keys list`, {number}", f"{listed['list_s']:.0f} s of processor time, {listed['list_mb']:+.0f} MB")


PARTS: Mapping[str, Callable[[Stores, Size, Rig], Lines]] = {
    part.__name__: part for part in (settling, sharing, past, outages, streams, processes, keys)
}


def bench(args: argparse.Namespace) -> int:
    """0: all was measured; 1: something could not be."""
    lines: list[Line] = []
    wrong: list[str] = []
    with TemporaryDirectory(prefix="tokenweir-rig-") as folder, stores() as running:
        rig = build(Path(folder), max(os.sched_getaffinity(0)))
        for name in args.only.split(","):
            print(name, file=sys.stderr)
            try:
                for line in PARTS[name](running, args.size, rig):
                    lines.append(line)
                    print(f"  {line.title}: {line.measured}", file=sys.stderr)
            except RigError as error:
                wrong.append(f"{name}: {error}")
        version = running.postgres.execute("SHOW server_version")[0][0]
    settings = ", ".join(f"{name} {value}" for name, value in POSTGRES.items())
    machine = f"{cores()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}, PostgreSQL {version} ({settings}, synchronous_commit on), Valkey in memory\n\n{table(lines)}")
    for complaint in wrong:
        print(f"\nnot measured: {complaint}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "lines": [asdict(one) for one in lines], "wrong": wrong}))
    return 1 if wrong else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.apart", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const=QUICK, dest="size", help="about two minutes")
    size.add_argument("--full", action="store_const", const=FULL, dest="size", help="a ledger of ten million entries")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by name, with commas between")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every line here")
    parser.set_defaults(size=USUAL)
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return args


if __name__ == "__main__":
    sys.exit(main(lambda: bench(arguments())))
