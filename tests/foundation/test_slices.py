"""Long work of many tasks lets others run; short work is done within its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.foundation import slices
from proxy.foundation.slices import SHORT_PART, SLICE_S, Slice

STEP_S = SLICE_S / 50


class Clock:
    """Moves with the steps of work only."""

    def __init__(self) -> None:
        self.now = 100.0
        self.longest_s = 0.0
        """of a turn of the event loop"""
        self.turns = 0

    async def work(self, steps: int) -> int:
        """Returns the turn in which it has ended."""
        current = Slice()
        for _ in range(steps):
            self.now += STEP_S
            await current.give_way()
        return self.turns

    async def tick(self) -> None:
        began = self.now
        while True:
            await asyncio.sleep(0)
            self.longest_s, self.turns, began = max(self.longest_s, self.now - began), self.turns + 1, self.now


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clock]:
    made = Clock()
    monkeypatch.setattr(slices, "monotonic", lambda: made.now)
    ticking = asyncio.get_running_loop().create_task(made.tick())
    await asyncio.sleep(0)
    yield made
    ticking.cancel()


@pytest.mark.parametrize("tasks", [1, 10])
async def test_all_long_work_together_takes_one_slice_of_a_turn(clock: Clock, tasks: int) -> None:
    began = clock.now
    await asyncio.gather(*(clock.work(500) for _ in range(tasks)))
    assert clock.now - began == pytest.approx(tasks * 500 * STEP_S)
    first_turn = SLICE_S + (tasks - 1) * SLICE_S * SHORT_PART + tasks * STEP_S
    assert clock.longest_s <= first_turn + STEP_S
    clock.longest_s = 0.0
    working = asyncio.gather(*(clock.work(500) for _ in range(tasks)))
    for _ in range(3):
        await asyncio.sleep(0)
    clock.longest_s = 0.0
    await working
    assert clock.longest_s <= SLICE_S + 3 * STEP_S


async def test_long_work_takes_turns(clock: Clock) -> None:
    ended = await asyncio.gather(*(clock.work(200) for _ in range(5)))
    assert max(ended) - min(ended) <= 10


async def test_short_work_is_not_queued_behind_long_work(clock: Clock) -> None:
    long = asyncio.gather(*(clock.work(500) for _ in range(10)))
    await asyncio.sleep(0)
    began = clock.turns
    assert await clock.work(int(50 * SHORT_PART) - 1) == began
    await long


async def test_cancelled_work_does_not_keep_others_waiting(clock: Clock) -> None:
    working = [asyncio.get_running_loop().create_task(clock.work(200)) for _ in range(4)]
    await asyncio.sleep(0)
    working[0].cancel()
    working[2].cancel()
    await asyncio.gather(working[1], working[3])


def test_each_loop_has_slices_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if work of an earlier one was never finished."""
    monkeypatch.setattr(slices, "SLICE_S", -1.0)

    async def step() -> None:
        await Slice().give_way()

    for _ in range(2):
        loop = asyncio.new_event_loop()
        unfinished = loop.create_task(step())
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert not unfinished.done()
        unfinished.cancel()
        loop.run_until_complete(asyncio.wait([unfinished]))
        loop.close()
    asyncio.run(step())
