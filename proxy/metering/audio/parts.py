"""Limits the number of parts of a file that are counted."""

from __future__ import annotations

# Half an hour of speech in Opus, which has the most; at most half a second of Python's time.
PARTS_MAX = 100_000


class Parts:
    """The counted parts of one file."""

    def __init__(self) -> None:
        self._left = PARTS_MAX
        self.counted_to = 0
        """the offset of the last part; that of the end, if it is certain that no part is left out"""

    @property
    def exhausted(self) -> bool:
        """Whether the limit was reached, so that there may be more parts."""
        return self._left <= 0

    def next(self, at: int) -> bool:
        """Count a part that begins at `at`. Returns whether the limit allows it."""
        self._left -= 1
        self.counted_to = at
        return self._left > 0
