"""Time for work that is as long as a client or a provider makes its bytes: slices of the event loop's, and threads.

Invariant: work whose slice is used up continues in one task after another, one of them in a turn of the loop. However
many tasks have such work, all others wait for one slice, and for one more step of it. A thread takes the interpreter
for 5 ms at a time, and longer only in a call of a function in C: such calls must be bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import ClassVar, TypeVar, TypeVarTuple

# Work on so many bytes is done at once: the slowest kinds take some 10 ms.
AT_ONCE_BYTES = 64 * 1024
# Work on more bytes than this has a thread of its own, so that other work need not wait for it.
_LONG_BYTES = 1 << 20
_THREADS = tuple(ThreadPoolExecutor(1, f"{size}-bodies") for size in ("middle", "long"))

_R = TypeVar("_R")
_A = TypeVarTuple("_A")

SLICE_S = 0.005
# While another task has the slice: short work is done within it, long work waits for a slice of its own.
SHORT_PART = 0.1


class Slice:
    """The current slice of one piece of work, which begins now, or again after it has waited for more bytes."""

    __slots__ = ("_ends_at", "_slices")

    def __init__(self) -> None:
        self._slices = _Slices.of_running_loop()
        self._ends_at = self._slices.begin()

    async def give_way(self) -> None:
        """Let other tasks run if the slice is used up. Call it in each step, also in one that skips its bytes."""
        if monotonic() > self._ends_at:
            self._ends_at = await self._slices.next()


async def until_done(step: Callable[[], bool]) -> None:
    """Call `step` until it returns True, in slices."""
    current = Slice()
    while not step():
        await current.give_way()


def in_slice(step: Callable[[], bool]) -> bool:
    """Call `step` until it returns True, at most for one slice and one more step. Returns whether it did."""
    ends_at = _Slices.of_running_loop().begin()
    while not (done := step()) and monotonic() <= ends_at:
        pass
    return done


class _Slices:
    """The slices of one event loop."""

    _last: ClassVar[_Slices | None] = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ends_at = 0.0  # of the slice that was given last

    @classmethod
    def of_running_loop(cls) -> _Slices:
        loop = asyncio.get_running_loop()
        if cls._last is None or cls._last.loop is not loop:
            cls._last = cls(loop)
        return cls._last

    def begin(self) -> float:
        """The end of a slice for work that begins."""
        now = monotonic()
        if self._waiting or now < self._ends_at:
            return now + SLICE_S * SHORT_PART
        return self._given(now)

    async def next(self) -> float:
        """Wait for the next slice, and return its end."""
        turn = self.loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self.loop.call_soon(self._wake)
        await turn
        return self._given(monotonic())

    def _given(self, now: float) -> float:
        self._ends_at = now + SLICE_S
        return self._ends_at

    def _wake(self) -> None:
        """Wake the task that has waited longest; the others in the next turns of the loop."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # not cancelled
                turn.set_result(None)
                break
        if self._waiting:
            self.loop.call_soon(self._wake)


async def in_slices(size: int, work: Callable[[*_A], _R], *arguments: *_A) -> _R:
    """`work` on so many bytes: at once, or in a thread. Raises its errors."""
    if size <= AT_ONCE_BYTES:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_THREADS[size > _LONG_BYTES], work, *arguments)
