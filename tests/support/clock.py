"""A clock for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class Clock:
    """Time that passes when a test moves it: called as `time.time` or `time.monotonic` is."""

    now: float
    """Seconds."""

    def __call__(self) -> float:
        return self.now
