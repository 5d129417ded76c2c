"""Bounds how many parts of a file are counted."""

from __future__ import annotations

# Half an hour of speech in Opus, which has the most; at most half a second of Python's time.
PARTS_MAX = 100_000


class Parts:
    """The parts of one file."""

    __slots__ = ("_left", "counted_to")

    def __init__(self) -> None:
        self._left = PARTS_MAX
        self.counted_to = 0
        """the offset behind the last part"""

    @property
    def exhausted(self) -> bool:
        """There may be more of them than are counted."""
        return self._left <= 0

    def next(self, at: int) -> bool:
        """Another part begins at `at`: whether it may be counted."""
        self._left -= 1
        self.counted_to = at
        return self._left > 0
