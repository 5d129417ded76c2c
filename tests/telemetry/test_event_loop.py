"""A loop that is kept is counted, and the log names the function that keeps it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest

from proxy.telemetry import event_loop
from proxy.telemetry.event_loop import EventLoopWatch
from proxy.telemetry.histogram import Buckets

PATIENCE_S, LATE_S = 20.0, 0.01
# It ends by itself: the watch may wait for the loop's answer already, and then looks up nothing more.
BUSY = """
def busy(until):
    for _ in range(500):
        if until.wait(0.001):
            return
"""


def a_part_of_the_proxy() -> Callable[[threading.Event], None]:
    """A function of the proxy that keeps the loop until an event is set, for half a second at most."""
    module: dict[str, Any] = {"__name__": "proxy.some.part"}
    exec(BUSY, module)
    return module["busy"]  # type: ignore[no-any-return]


class Watch(EventLoopWatch):
    """Sets `looked_up` when the function that keeps the loop has been looked up; counts the probes that came late."""

    def __init__(self) -> None:
        self.looked_up = threading.Event()
        self.late = Buckets((LATE_S / 2, 100.0))  # half: the loop may answer while the watch's wait is ending
        super().__init__(self.late)

    def _where(self) -> str:
        found = super()._where()
        self.looked_up.set()
        return found

    async def keep(self) -> None:
        """Keep the loop until a probe has come late."""
        late, busy = self.late.counts[1], a_part_of_the_proxy()
        while self.late.counts[1] == late:
            self.looked_up.clear()
            busy(self.looked_up)
            await asyncio.sleep(0.001)


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch, *, cpu_part: float) -> Iterator[Watch]:
    """A watch that looks all the time. `cpu_part`: see `event_loop.CPU_PART`."""
    monkeypatch.setattr(event_loop, "PROBE_S", 0.001)
    monkeypatch.setattr(event_loop, "LATE_S", LATE_S)
    monkeypatch.setattr(event_loop, "WAITED_S", PATIENCE_S)
    monkeypatch.setattr(event_loop, "CPU_PART", cpu_part)
    watch = Watch()
    try:
        yield watch
    finally:
        watch.stop()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.001)


async def test_who_keeps_the_loop_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level(logging.WARNING, logger=event_loop.__name__), watching(monkeypatch, cpu_part=0.0) as watch:
        while not any("in proxy.some.part.busy, line 4" in line for line in lines()):  # others may keep it, too
            watch._log_at = 0.0
            await watch.keep()
        watch._log_at, watch._unlogged, logged = monotonic() + 1_000, 0, len(lines())
        await watch.keep()
        await until(lambda: watch._unlogged > 0)
        assert len(lines()) == logged, "at most one in a while"
        watch._log_at = 0.0
        await watch.keep()
        await until(lambda: "more times since the last line" in lines()[-1])


async def test_a_machine_that_is_busy_is_not_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(monkeypatch, cpu_part=1.1) as watch:
        await watch.keep()
        await asyncio.sleep(0.05)
    assert caplog.records == []


async def test_its_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the loop has ended before."""
    monkeypatch.setattr(event_loop, "PROBE_S", 0.001)
    before = set(threading.enumerate())
    watch = EventLoopWatch(Buckets((1.0,)))
    (thread,) = set(threading.enumerate()) - before
    watch.stop()
    await asyncio.to_thread(thread.join, PATIENCE_S)
    assert not thread.is_alive()


def test_a_loop_that_is_closed_needs_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "PROBE_S", 0.05)

    async def begin() -> threading.Thread:
        before = set(threading.enumerate())
        EventLoopWatch(Buckets((1.0,)))
        (thread,) = set(threading.enumerate()) - before
        return thread

    thread = asyncio.run(begin())
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
