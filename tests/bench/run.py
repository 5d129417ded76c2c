"""The benchmark: `python -m tests.bench.run [--quick | --full] [--rounds N] [--only A,B] [--json FILE]`.

Law: figures are compared only within a round, taken in shuffled turn on the same two CPUs: the system under
test alone on one, the scripted provider and the load client on the other. It never fails for being slow.
"""

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

from tests.bench.load import Rig, RigError, Target, build, main, pin
from tests.bench.rows import WIRES, Round, compared, middle, rows, table
from tests.bench.systems import SYSTEMS, Place, memory_kib, nginx_program, why_absent, with_tls

STREAMS = 200
PACE_MS = 20
BURST = 20
BURST_PACE_MS = 40  # 100,000 events/s: at twice that some systems fall behind, and their lag is measured
ADMISSION_TURNS = 5
DEAF = 50
FILES_SPARE = 200  # beyond two sockets a stream: databases, listeners, connections kept by the warm-up


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how large the measurements of one round are."""

    rounds: int
    event_s: float
    burst_s: float
    requests: int
    streams: int
    first_bytes: int
    idle_streams: int
    deaf_s: float


QUICK = Size(rounds=1, event_s=3, burst_s=2, requests=2000, streams=200, first_bytes=300, idle_streams=1000, deaf_s=3)
USUAL = Size(rounds=5, event_s=3, burst_s=2, requests=4000, streams=400, first_bytes=500, idle_streams=1000, deaf_s=3)
FULL = replace(USUAL, idle_streams=10_000)

Measure = Callable[[Rig, Target, Size], dict[str, float]]


def warm_up(rig: Rig, target: Target) -> None:
    """Lets a system load its code and fill its pools; small, so that memory it keeps hides nothing later."""
    rig.requests(target, requests=300, connections=8)
    rig.streams(target, streams=20, events=1000, pace_ms=2, burst=2)
    time.sleep(0.5)  # what was put off, like a ledger's first batch


def deaf_clients(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """The most that memory grew, for each client, while many took nothing of streams as fast as can be sent. Many: the
    pages that an allocator takes in advance, for one of them, are more than what the client takes."""
    before_kib = memory_kib(target)
    peak_kib = before_kib
    with rig.held(target, DEAF, deaf=True):
        for _ in range(int(size.deaf_s / 0.25)):
            time.sleep(0.25)
            peak_kib = max(peak_kib, memory_kib(target))
    return {"deaf_kib": (peak_kib - before_kib) / DEAF}


def idle_streams(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """Memory of streams that are open and silent, each."""
    before_kib = memory_kib(target)
    with rig.held(target, size.idle_streams):
        time.sleep(1)
        return {"idle_kib": (memory_kib(target) - before_kib) / size.idle_streams}


def first_byte(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """Time from the request to the first byte of the body; what a proxy adds is worked out in the round."""
    load = rig.requests(target, requests=size.first_bytes, stream=True)
    return {"first_byte_ms": load.p50_us / 1000, "first_byte_p99_ms": load.p99_us / 1000}


def json_requests(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """CPU time of a short request, with what was put off until after its answer."""
    return {"json_cpu_us": rig.requests(target, requests=size.requests, connections=16).cpu_us_per_unit}


def other_requests(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """The same for answers of unknown length, and for long prompts."""
    chunked = rig.requests(target, requests=size.requests, connections=16, chunked=True)
    prompts = rig.requests(target, requests=size.requests // 10, connections=4, prompt_bytes=200_000)
    return {"json_chunked_us": chunked.cpu_us_per_unit, "json_prompt_us": prompts.cpu_us_per_unit}


def one_event_streams(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    load = rig.requests(target, requests=size.requests, connections=16, stream=True, length=1)
    return {"one_event_us": load.cpu_us_per_unit}


def whole_chat(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """CPU time per event of streams with their opening, closing and record."""
    long = rig.requests(target, requests=size.streams // 5, connections=40, stream=True, length=400, gap_ms=10)
    return _whole(rig, target, size, "chat") | {"whole_400_us": long.cpu_us_per_unit / 400}


def other_wires(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """The same of all other wires, for who meters them."""
    wires = [] if target.limited is None else [wire for wire in WIRES if wire != "chat"]
    return {figure: us for wire in wires for figure, us in _whole(rig, target, size, wire).items()}


def _whole(rig: Rig, target: Target, size: Size, wire: str) -> dict[str, float]:
    load = rig.requests(
        target, requests=size.streams, connections=STREAMS, stream=True, length=100, gap_ms=PACE_MS, wire=wire
    )
    return {f"whole_{wire}_us": load.cpu_us_per_unit / 100}


def admission(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """CPU time that a request costs more if its key has budgets, at three levels, with what comes after its answer.
    Some 50 µs are sought where a machine's speed changes by more than that within seconds: so two processes do it at
    the same time on the same CPU, one for a key with budgets and one for a key without; by the share that the one needs
    more than the other, a request without budgets that is served alone costs more with them."""
    if target.limited is None:
        return {}
    alone_us = json_requests(rig, target, size)["json_cpu_us"]
    with target.limited() as limited, ThreadPoolExecutor(2) as pool:
        rig.requests(limited, requests=300, connections=8)  # it loads its code
        shares = []
        for _ in range(ADMISSION_TURNS):
            without, with_budgets = pool.map(lambda one: json_requests(rig, one, size), (target, limited))
            shares.append(with_budgets["json_cpu_us"] / without["json_cpu_us"] - 1)
    return {"admission_cpu_us": alone_us * median(shares)}


def single_events(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """CPU time and lateness of events that come one by one."""
    load = rig.streams(target, streams=STREAMS, events=int(size.event_s * 1000 / PACE_MS), pace_ms=PACE_MS)
    return {"event_cpu_us": load.cpu_us_per_unit, "late_p50_us": load.p50_us, "late_p99_us": load.p99_us}


def burst_events(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """CPU time of events that come many in one write."""
    events = BURST * int(size.burst_s * 1000 / BURST_PACE_MS)
    load = rig.streams(target, streams=STREAMS, events=events, pace_ms=BURST_PACE_MS, burst=BURST)
    return {"burst_cpu_us": load.cpu_us_per_unit}


def over_tls(rig: Rig, target: Target, size: Size) -> dict[str, float]:
    """Where the provider speaks TLS: long streams, requests, streams of one event."""
    taken = whole_chat(rig, target, size) | json_requests(rig, target, size) | one_event_streams(rig, target, size)
    return {f"tls_{figure}": value for figure, value in taken.items()}


# Each group in new processes. Memory comes first in each: what many streams leave behind would hide what others take.
TLS: Sequence[Measure] = (over_tls,)
MEASURES: Sequence[Sequence[Measure]] = (
    (deaf_clients,),
    (
        idle_streams,
        first_byte,
        json_requests,
        other_requests,
        admission,
        single_events,
        burst_events,
        one_event_streams,
        whole_chat,
        other_wires,
    ),
    TLS,
)


def one_round(rig: Rig, names: Sequence[str], size: Size, folder: Path, cpu: int) -> tuple[Round, list[str]]:
    """Takes each figure of every system in shuffled turn: figures, and what went wrong."""
    figures: dict[tuple[str, str], float] = {}
    wrong: list[str] = []
    with rig.provided() as provider_port:
        direct = first_byte(rig, Target(provider_port), size)
        for number, group in enumerate(MEASURES):
            with started(rig, names, size, folder / str(number), cpu, provider_port, tls=group is TLS) as targets:
                for measure in group:
                    for name in random.sample(list(targets), len(targets)):
                        try:
                            taken = measure(rig, targets[name], size)
                        except RigError as error:
                            wrong.append(f"{name}, {measure.__name__}: {error}")
                            continue
                        figures |= {(name, figure): value - direct.get(figure, 0) for figure, value in taken.items()}
    return figures, wrong


@contextmanager
def started(
    rig: Rig, names: Sequence[str], size: Size, folder: Path, cpu: int, provider_port: int, *, tls: bool = False
) -> Iterator[dict[str, Target]]:
    """Every system, anew and warm. `tls`: those that can reach the provider by TLS, so."""
    folder.mkdir(parents=True)
    provider, certificate = f"http://127.0.0.1:{provider_port}", None
    with ExitStack() as stack:
        if tls and nginx_program() is not None:
            provider, certificate = stack.enter_context(with_tls(folder / "tls", provider_port, rig.cpu))
        targets = {}
        for name in names if certificate or not tls else ():
            if tls and name == "g1":
                continue
            (folder / name).mkdir()
            sockets_max = 2 * size.idle_streams + FILES_SPARE
            place = Place(folder / name, provider, cpu, sockets_max, certificate)
            targets[name] = stack.enter_context(SYSTEMS[name](place))
            warm_up(rig, targets[name])
        yield targets


def raise_file_limit(wanted: int) -> int:
    """Lets us, and what we start, open as many files as wanted, or as the machine allows: how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return soft
    try:  # beyond the hard limit only root may go
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    except (ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def fitted(size: Size) -> Size:
    """The size, with no more idle streams than one process may hold open here; says when that is fewer."""
    allowed = raise_file_limit(2 * size.idle_streams + FILES_SPARE)
    streams = min(size.idle_streams, (allowed - FILES_SPARE) // 2)
    if streams < 1:
        raise RigError(f"only {allowed} open files are allowed: raise `ulimit -n`")
    if streams < size.idle_streams:
        print(f"{allowed} open files are allowed: {streams:,} idle streams", file=sys.stderr)
    return replace(size, idle_streams=streams)


def machine_line(cpus: Sequence[int]) -> str:
    program = nginx_program()
    asked = subprocess.run([program, "-v"], capture_output=True, text=True, check=False) if program else None
    parts = [
        f"{os.cpu_count()} cores (system on {cpus[0]}, rig on {cpus[-1]})",
        f"{platform.system()} {platform.release()} {platform.machine()}",
        f"Python {platform.python_version()} ({_optimised()})",
        *(f"{name} {version(name)}" for name in ("aiohttp", "uvloop")),
        asked.stderr.strip().removeprefix("nginx version: ") if asked else "no nginx",
    ]
    return ", ".join(parts)


def _optimised() -> str:
    """How the interpreter was built: what it costs depends on it."""
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    flags = [one for one in ("--enable-optimizations", "--with-lto") if one in options]
    return " ".join(flags) or "not optimised"


def as_json(machine: str, rounds: Sequence[Round], wrong: Sequence[str], size: Size) -> str:
    """Everything that was measured, for programs."""
    shown = [
        {
            "figure": row.figure,
            "title": row.title,
            "unit": row.unit,
            "against": row.against.name.lower(),
            "most": row.most,
            "median": {name: middle(rounds, name, row.figure) for name in SYSTEMS},
            "compared": {name: compared(rounds, name, row) for name in SYSTEMS},
        }
        for row in rows(size.idle_streams, DEAF, BURST, BURST_PACE_MS)
    ]
    flat = [[{"system": s, "figure": f, "value": v} for (s, f), v in each.items()] for each in rounds]
    return json.dumps({"machine": machine, "rows": shown, "rounds": flat, "wrong": list(wrong)}, indent=1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.run", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const=QUICK, dest="size", help="under a minute")
    size.add_argument("--full", action="store_const", const=FULL, dest="size", help="10,000 idle streams")
    parser.add_argument("--rounds", type=int, help="how many rounds")
    parser.add_argument("--only", default=",".join(SYSTEMS), help="systems, by name, with commas between")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    parser.set_defaults(size=USUAL)
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(SYSTEMS):
        parser.error(f"no such system: {', '.join(sorted(unknown))}")
    return args


def present(asked: Sequence[str]) -> list[str]:
    """The systems of those asked for that can run here; says why the others cannot."""
    for name in asked:
        if reason := why_absent(name):
            print(f"{name} is left out: {reason}", file=sys.stderr)
    return [name for name in asked if why_absent(name) is None]


def bench(args: argparse.Namespace) -> int:
    size = fitted(args.size)
    cpus = sorted(os.sched_getaffinity(0))
    pin(cpus[-1])
    names = present(args.only.split(","))
    rounds: list[Round] = []
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tokenweir-bench-") as folder:
        rig = build(Path(folder), cpus[-1])
        for turn in range(args.rounds or size.rounds):
            print(f"round {turn + 1} of {args.rounds or size.rounds}", file=sys.stderr)
            figures, complaints = one_round(rig, names, size, Path(folder) / str(turn), cpus[0])
            rounds.append(figures)
            wrong += complaints
    machine = machine_line(cpus)
    shown = rows(size.idle_streams, DEAF, BURST, BURST_PACE_MS)
    print(f"{machine}; {len(rounds)} rounds\n\n{table(rounds, shown)}")
    for complaint in wrong:
        print(f"\nnot measured: {complaint}")
    if args.json:
        args.json.write_text(as_json(machine, rounds, wrong, size))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(lambda: bench(arguments())))
