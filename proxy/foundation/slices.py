"""Slices of the event loop's time, for work that is as long as a client or a provider makes its bytes."""

from __future__ import annotations

import asyncio
from time import monotonic

# Other tasks wait no longer than this, and one more step of the work.
SLICE_S = 0.005


class Slice:
    """The current slice of one piece of work."""

    __slots__ = ("_ends_at",)

    def __init__(self) -> None:
        self._ends_at = monotonic() + SLICE_S

    async def give_way(self) -> None:
        """Let other tasks run if the slice is used up. Call it in each step, also in one that skips its bytes."""
        if monotonic() > self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = monotonic() + SLICE_S
