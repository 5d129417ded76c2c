"""How many calls an exchange takes: `python -m tests.bench.calls [--where N]`. Calls do not depend on the machine.

A real proxy, with its journal and ledger, runs in a thread of this process; a profiler counts the calls of that thread
and of all that it starts. Provider and client are the rig's, in processes of their own. What the proxy does at rest is
taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from proxy.billing.limits import UNLIMITED
from proxy.keys.secrets import digest, hint, new_secret
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.runtime.proxy.process import Proxy
from proxy.settings import Settings, load
from tests.bench.load import Rig, Target, build
from tests.bench.peers import Peers
from tests.bench.rows import WIRES
from tests.bench.systems import TOKENWEIR_YAML

EXCHANGES = 400
WARM_UP = 200
LONG = 100  # events of a stream whose events are counted
QUIET_S, REST_S = 0.6, 3.0


@dataclass(frozen=True, slots=True)
class Calls:
    """Of one unit: an exchange or an event."""

    python: float
    """of Python functions"""
    all: float
    """of these and of functions in C"""
    where: Mapping[str, float]


class Counting:
    """Counts calls while it is on."""

    def __init__(self) -> None:
        self.python: Counter[Any] = Counter()
        self.c: Counter[Any] = Counter()
        self.at_rest: tuple[Mapping[Any, float], ...] = ({}, {})
        """within a second"""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self.python[frame.f_code] += 1
        elif event == "c_call":
            self.c[frame.f_code, getattr(arg, "__qualname__", arg)] += 1

    def take(self) -> tuple[Counter[Any], Counter[Any]]:
        """What was counted since the last time."""
        taken = self.python.copy(), self.c.copy()
        self.python.subtract(taken[0])
        self.c.subtract(taken[1])
        return taken


@contextmanager
def counted_proxy(folder: Path, provider_port: int, rest_s: float = REST_S) -> Iterator[tuple[Target, Counting]]:
    """A proxy whose calls are counted, as long as the block runs. `rest_s`: how long it is counted at rest before."""
    config = folder / "tokenweir.yaml"
    text = TOKENWEIR_YAML.format(port=0, folder=folder, provider=f"http://127.0.0.1:{provider_port}")
    config.write_text(text)
    settings = load(config, {**os.environ, "BENCH_PROVIDER_KEY": "sk-bench"})
    secret = _key(settings)
    counting, started = Counting(), threading.Event()
    proxy: Proxy | None = None
    loop: asyncio.AbstractEventLoop | None = None
    stop: asyncio.Event | None = None

    async def serve() -> None:
        nonlocal proxy, loop, stop
        loop, stop, proxy = asyncio.get_running_loop(), asyncio.Event(), Proxy(settings)
        await proxy.start()
        started.set()
        await stop.wait()
        await proxy.stop()

    def run() -> None:
        # The loop that serves in earnest, if it is installed: the plain one's own calls would be counted, too.
        factory = importlib.import_module("uvloop").new_event_loop if importlib.util.find_spec("uvloop") else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(serve())

    threading.setprofile(counting)
    thread = threading.Thread(target=run)
    thread.start()
    threading.setprofile(None)
    try:
        if not started.wait(30):
            raise RuntimeError("the proxy does not start")
        assert proxy is not None
        time.sleep(QUIET_S)
        counting.take()
        time.sleep(rest_s)
        at_rest = counting.take()
        counting.at_rest = tuple({one: n / rest_s for one, n in some.items()} for some in at_rest)
        yield Target(proxy.port, (f"Authorization: Bearer {secret}",)), counting
    finally:
        if loop is not None and stop is not None:
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)


def _key(settings: Settings) -> str:
    stores = LedgerStores.open(settings)
    secret = new_secret().reveal()
    stores.keys.create(
        key_id=f"key_{secrets.token_hex(10)}", alias="bench", digest=digest(secret, stores.pepper()),
        hint=hint(secret), models=None, expires_at=None, limits=UNLIMITED,
    )  # fmt: skip
    stores.close()
    return secret


def measured(
    rig: Rig | Peers,
    target: Target,
    counting: Counting,
    exchanges: int = EXCHANGES,
    warm_up: int = WARM_UP,
    **load: Any,
) -> Calls:
    rig.requests(target, requests=min(warm_up, exchanges), **load)
    time.sleep(QUIET_S)
    counting.take()
    began = time.monotonic()
    rig.requests(target, requests=exchanges, **load)
    time.sleep(QUIET_S)
    python, c = counting.take()
    lasted_s = time.monotonic() - began
    for some, at_rest in zip((python, c), counting.at_rest, strict=True):
        some.subtract({one: n * lasted_s for one, n in at_rest.items()})
    where = Counter({_place(code): n for code, n in python.items()})
    for (code, name), n in c.items():
        where[f"{_place(code)} -> {name}"] += n
    return Calls(
        python.total() / exchanges,
        (python.total() + c.total()) / exchanges,
        {name: n / exchanges for name, n in where.most_common()},
    )


def _place(code: CodeType) -> str:
    return f"{code.co_filename.rpartition('/')[2]} {code.co_qualname}"


def between(few: Calls, many: Calls, units: int) -> Calls:
    """What each of `units` more takes."""
    names = {*few.where, *many.where}
    return Calls(
        (many.python - few.python) / units,
        (many.all - few.all) / units,
        {name: (many.where.get(name, 0) - few.where.get(name, 0)) / units for name in names},
    )


def lines(rig: Rig, target: Target, counting: Counting) -> Iterator[tuple[str, Callable[[], Calls]]]:
    """Line by line, what it is of, and what measures it."""

    def calls(**load: Any) -> Callable[[], Calls]:
        return partial(measured, rig, target, counting, **load)

    yield "a JSON request", calls()
    yield "the same, answered in chunks", calls(chunked=True)
    for wire, said in WIRES.items():
        one = calls(stream=True, length=1, wire=wire)
        # So slowly that each event is a piece of its own.
        long = calls(stream=True, length=LONG + 1, wire=wire, exchanges=40, gap_ms=2, connections=4)
        yield f"a stream of one event, {said}", one
        yield f"a further event, {said}", lambda one=one, long=long: between(one(), long(), LONG)  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.calls", description=__doc__)
    parser.add_argument("--where", type=int, default=0, metavar="N", help="the N most frequent calls of each")
    parser.add_argument("--only", default="", metavar="TEXT", help="lines that have it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenweir-calls-") as folder:
        rig = build(Path(folder), max(os.sched_getaffinity(0)))
        # The proxy's log of each exchange is counted, and not shown.
        with (
            Path(folder, "log").open("w") as log,
            redirect_stderr(log),
            rig.provided() as port,
            counted_proxy(Path(folder), port) as (target, counting),
        ):
            print("| calls of | Python functions | all |\n|---|---|---|")
            for said, count in lines(rig, target, counting):
                if args.only not in said:
                    continue
                calls = count()
                print(f"| {said} | {calls.python:.1f} | {calls.all:.1f} |", flush=True)
                for name, times in sorted(calls.where.items(), key=lambda one: -one[1])[: args.where]:
                    print(f"    {times:8.2f} {name}")


if __name__ == "__main__":
    main()
