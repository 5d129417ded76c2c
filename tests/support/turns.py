"""Measures how long the event loop serves nobody else: CPU time and number of its turns, whatever others do.

A thread of the process can hold the interpreter, too: Python takes it back after 5 ms, but not within a call of C.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import process_time, thread_time

import pytest

from proxy.foundation import slices

# The interpreter is taken back from a thread after this time.
SWITCH_S = 0.005


class Turns:
    """The turns of the event loop so far."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        """CPU time of the longest one"""
        self.longest_held_s = 0.0
        """CPU time that all threads used in the longest one, or while it waited for the interpreter"""
        self.count = 0

    async def _tick(self) -> None:
        began, held = thread_time(), process_time()
        while True:
            await asyncio.sleep(0)
            now, all_now = thread_time(), process_time()
            self.longest_s, self.count, began = max(self.longest_s, now - began), self.count + 1, now
            self.longest_held_s, held = max(self.longest_held_s, all_now - held), all_now


@asynccontextmanager
async def measured_turns() -> AsyncIterator[Turns]:
    """Measure within the context, without garbage collections, whose time depends on all other tests."""
    turns = Turns()
    gc.disable()
    ticking = asyncio.get_running_loop().create_task(turns._tick())
    try:
        yield turns
        await asyncio.sleep(0)  # the last turn is measured too
    finally:
        ticking.cancel()
        gc.enable()


def work_s(rounds: int) -> float:
    """CPU time of a loop in Python: a hundred thousand rounds take 20 ms where the loop of `make test` takes one
    second."""
    began = thread_time()
    sizes: dict[int, int] = {}
    for number in range(rounds):
        sizes[number & 1023] = sizes.get(number & 1023, 0) + len(str(number))
    return thread_time() - began


TRIES = 3


async def nobody_waits(work: Callable[[], Awaitable[object]], turn_s_max: Callable[[], float] | None = None) -> None:
    """Fail if a turn of the event loop takes longer than `turn_s_max`. None: longer than the loop of `work_s`; then no
    thread may hold the interpreter for longer, either. Measured again only after a failure: another process can make a
    turn look longer, never shorter."""
    for _ in range(TRIES):
        async with measured_turns() as turns:
            await asyncio.sleep(0)  # it measures from its first turn on
            await work()
        if turn_s_max is None:
            longest_s, limit_s = max(turns.longest_s, turns.longest_held_s - SWITCH_S), work_s(100_000)
        else:
            longest_s, limit_s = turns.longest_s, turn_s_max()
        if longest_s <= limit_s:
            return
    raise AssertionError(f"{longest_s * 1000:.1f} ms, at most {limit_s * 1000:.1f} ms, in {turns.count} turns")


@pytest.fixture
def each_step_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice is used up when it begins."""
    monkeypatch.setattr(slices, "SLICE_S", -1.0)
