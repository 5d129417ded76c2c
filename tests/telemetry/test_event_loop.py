"""A loop that is kept is counted, and the log names the function that keeps it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from proxy.telemetry import event_loop
from proxy.telemetry.event_loop import EventLoopWatch
from proxy.telemetry.histogram import Buckets

PATIENCE_S = 20.0
BUSY = """
def busy(until):
    while not until.wait(0.001):
        pass
"""


def a_part_of_the_proxy() -> Callable[[threading.Event], None]:
    """Waits for an event."""
    module: dict[str, Any] = {"__name__": "proxy.some.part"}
    exec(BUSY, module)
    return module["busy"]  # type: ignore[no-any-return]


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the function that keeps the loop has been looked up."""
    looked_up, where = threading.Event(), EventLoopWatch._where

    def looking(watch: EventLoopWatch) -> str:
        found = where(watch)
        looked_up.set()
        return found

    monkeypatch.setattr(EventLoopWatch, "_where", looking)
    monkeypatch.setattr(event_loop, "PROBE_S", 0.001)
    monkeypatch.setattr(event_loop, "LATE_S", 0.01)
    monkeypatch.setattr(event_loop, "CPU_PART", 0.0)
    return looked_up


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.001)


async def test_who_keeps_the_loop_is_named(looked_up: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    late, busy = Buckets((0.01, 100.0)), a_part_of_the_proxy()
    watch = EventLoopWatch(late)

    async def keep() -> None:
        looked_up.clear()
        counted = late.counts[1]
        busy(looked_up)
        await until(lambda: late.counts[1] > counted)

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    try:
        with caplog.at_level(logging.WARNING, logger=event_loop.__name__):
            while not any("in proxy.some.part.busy, line 3" in line for line in lines()):  # others may keep it, too
                watch._log_at = 0.0
                await keep()
            watch._log_at, watch._unlogged, logged = monotonic() + 1_000, 0, len(lines())
            await keep()
            await until(lambda: watch._unlogged > 0)
            assert len(lines()) == logged, "at most one in a while"
            watch._log_at = 0.0
            await keep()
            await until(lambda: "more times since the last line" in lines()[-1])
    finally:
        watch.stop()


async def test_a_machine_that_is_busy_is_not_named(
    looked_up: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "CPU_PART", 1.1)
    monkeypatch.setattr(event_loop, "WAITED_S", PATIENCE_S)
    late = Buckets((0.01, 100.0))
    watch = EventLoopWatch(late)
    try:
        a_part_of_the_proxy()(looked_up)
        await until(lambda: late.counts[1] > 0)
        await asyncio.sleep(0.05)
    finally:
        watch.stop()
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
