"""Measures how long the event loop serves nobody else: CPU time and number of its turns, whatever others do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import thread_time

import pytest

from proxy.foundation import slices


class Turns:
    """The turns of the event loop so far."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        """CPU time of the longest one"""
        self.count = 0

    async def _tick(self) -> None:
        began = thread_time()
        while True:
            await asyncio.sleep(0)
            now = thread_time()
            self.longest_s, self.count, began = max(self.longest_s, now - began), self.count + 1, now


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


@pytest.fixture
def each_step_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice is used up when it begins."""
    monkeypatch.setattr(slices, "SLICE_S", -1.0)
