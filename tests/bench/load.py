"""Builds the rig (a scripted provider and a load client, in C) and drives it.

Law: a load that saw one wrong byte has no figures; it raises `RigError` with the client's reason.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import IO

SOURCES = Path(__file__).parent / "rig"
PROVIDER_S_MAX = 600  # a round with 10,000 streams takes two minutes; after ten it ends by itself
CLIENT_S_MAX = 120  # 10,000 streams open in about ten seconds; nothing else takes longer


class RigError(Exception):
    """The rig could not be built, or what it measured was wrong."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: a port of the loopback, the headers to send, the processes whose CPU time counts."""

    port: int
    headers: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    limited: Callable[[], AbstractContextManager[Target]] | None = None
    """another process of the same, with a key that has a budget, at each of three levels; None where there is no such
    thing"""


@dataclass(frozen=True, slots=True)
class Load:
    """What one load came to. `units`: events or requests; percentiles: of lateness or time to first byte."""

    units: int
    seconds: float
    cpu_ns: int
    p50_us: float
    p99_us: float
    gap_p99_us: float = 0
    """of the time between two events of one stream"""

    @property
    def cpu_us_per_unit(self) -> float:
        return self.cpu_ns / 1000 / self.units


@dataclass(frozen=True, slots=True)
class Rig:
    """The two programs, and the CPU that both are pinned to."""

    provider: Path
    client: Path
    cpu: int

    @contextmanager
    def provided(self) -> Iterator[int]:
        """Runs the scripted provider on a free port while the block runs; yields the port."""
        argv = [str(self.provider), "0", str(PROVIDER_S_MAX)]
        provider = subprocess.Popen(argv, stdout=subprocess.PIPE, preexec_fn=partial(pin, self.cpu))
        assert provider.stdout is not None
        try:
            with provider.stdout as said:
                port = said.readline().strip()
            if not port:
                raise RigError("the scripted provider did not start")
            yield int(port)
        finally:
            provider.kill()
            provider.wait()

    def streams(self, target: Target, *, streams: int, events: int, pace_ms: int, burst: int = 1) -> Load:
        """`streams` at once, each `events` long, `burst` at once each `pace_ms`; measured while all run."""
        options = {"streams": streams, "events": events, "pace-ms": pace_ms, "burst": burst}
        load = self._load("streams", target, options)
        planned_s = events / burst * pace_ms / 1000
        # A system that falls behind hands streams on in lumps: then all of them run together for a moment
        # only, and the processor time of that moment says nothing.
        if load.seconds < planned_s / 2:
            raise RigError(f"it fell behind: all ran together {load.seconds:.2f} s of {planned_s:.2f} s")
        return load

    def requests(
        self,
        target: Target,
        *,
        requests: int,
        connections: int = 1,
        stream: bool = False,
        per_s: int = 0,
        length: int = 2,
        gap_ms: int = 0,
        wire: str = "chat",
        chunked: bool = False,
        prompt_bytes: int = 0,
    ) -> Load:
        """A closed loop over keep-alive connections, at most `per_s` if that is said. `length`, `gap_ms`: of streams;
        `chunked`: answers that are none come without a length. CPU time is read when the target is quiet again."""
        # 5 s: a journal is handed to the ledger in batches; they are part of what a request costs.
        options = {"requests": requests, "connections": connections, "settle-ms": 5000 if target.pids else 0}
        options |= {"rate": per_s, "length": length, "gap-ms": gap_ms, "prompt-bytes": prompt_bytes}
        flags = [flag for flag, is_set in (("--stream", stream), ("--chunked", chunked)) if is_set]
        return self._load("requests", target, options, "--wire", wire, *flags)

    @contextmanager
    def held(self, target: Target, streams: int, *, deaf: bool = False) -> Iterator[None]:
        """Holds streams open while the block runs: silent ones or, when deaf, fast ones that nobody reads."""
        argv = self._argv("hold", target, {"streams": streams}, *(["--deaf"] if deaf else []))
        client = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=partial(pin, self.cpu)
        )
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            _expect_open(client.stdout, streams)
            yield
            _read_load(client.communicate(timeout=CLIENT_S_MAX)[0])
        finally:
            client.kill()
            client.wait()
            client.stdin.close()
            client.stdout.close()

    def _argv(self, mode: str, target: Target, options: dict[str, int], *flags: str) -> list[str]:
        argv = [str(self.client), mode, "--port", str(target.port), "--seconds", str(CLIENT_S_MAX), *flags]
        for name, value in options.items():
            argv += [f"--{name}", str(value)]
        for header in target.headers:
            argv += ["--header", header]
        for pid in target.pids:
            argv += ["--watch", str(pid)]
        return argv

    def _load(self, mode: str, target: Target, options: dict[str, int], *flags: str) -> Load:
        argv = self._argv(mode, target, options, *flags)
        done = subprocess.run(argv, capture_output=True, check=False, preexec_fn=partial(pin, self.cpu))
        if done.returncode:
            raise RigError(f"{mode}: client ended with {done.returncode}: {done.stderr.decode().strip()}")
        return _read_load(done.stdout)


def pin(cpu: int) -> None:
    """Keeps this process, and what it starts, on one CPU."""
    os.sched_setaffinity(0, {cpu})


def _expect_open(lines: IO[bytes], streams: int) -> None:
    said = lines.readline()
    opened = json.loads(said)["open"] if said else 0
    if opened != streams:
        raise RigError(f"only {opened} of {streams} streams opened")


def _read_load(said: bytes) -> Load:
    report = json.loads(said)
    if report["errors"]:
        raise RigError(f"{report['errors']} errors, the first: {report['why']}")
    return Load(**{one.name: report[one.name] for one in fields(Load)})


def compiler() -> str | None:
    """The C compiler of this machine, if there is one."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def main(bench: Callable[[], int]) -> int:
    """Run a benchmark. 0: measured; 1: something could not be measured; 2: the rig itself cannot run here."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every process we started ends with us
    try:
        return bench()
    except RigError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def build(folder: Path, cpu: int) -> Rig:
    """Compiles both programs into `folder`."""
    cc = compiler()
    if cc is None:
        raise RigError("no C compiler (cc, gcc or clang) on this machine: the rig cannot be built")
    for name in ("provider", "client"):
        argv = [cc, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-o", str(folder / name), str(SOURCES / f"{name}.c")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RigError(f"{name}.c does not compile:\n{done.stderr}")
    return Rig(folder / "provider", folder / "client", cpu)
