"""Cuts bytes of a provider into parts that each take a few milliseconds to read, whatever they are.

Work does not follow the number of bytes but that of marks: brackets, quotes, commas and line ends; and the zeros in the
lengths of AWS's messages. In Python, reading what is between two of them takes up to 4 µs.
"""

from __future__ import annotations

_MARKS = b'",{}[]\r\n\0'
# Marks of one part, and its bytes if it has fewer. At most PART_MARKS bytes are a part without being counted.
PART_MARKS = 1024
PART_BYTES = 64 << 10
# An event or answer with more marks is not parsed at once: its outline is read. A chat answer of 1,500 tokens, with the
# probabilities of five alternatives to each, has as many.
TEXT_MARKS_MAX = 150_000
_EVENT_END = b"\n\n"


def marks_in(text: bytes | bytearray, start: int = 0, end: int | None = None) -> int:
    """The number of marks in `text[start:end]`. It takes 1 to 2 µs a KiB."""
    part = text[start:end]
    return len(part) - len(part.translate(None, _MARKS))


def is_crowded(text: bytes, marks_max: int) -> bool:
    """Whether `text` has more than so many marks."""
    return len(text) > marks_max and marks_in(text) > marks_max


class Parts:
    """The parts of some bytes, in their order."""

    __slots__ = ("_at", "_size", "_wire")

    def __init__(self, wire: bytes) -> None:
        self._wire = wire
        self._at = 0
        self._size = PART_BYTES

    def __bool__(self) -> bool:
        """Whether there are further parts."""
        return self._at < len(self._wire)

    def take(self) -> bytes:
        """The next part: it ends with an event, if it can."""
        wire, at = self._wire, self._at
        size = min(self._size, len(wire) - at)
        while size > PART_MARKS and marks_in(wire, at, at + size) > PART_MARKS:
            size //= 2
        self._size = min(2 * size, PART_BYTES)  # the next bytes are like these: they are counted twice at most
        end = at + size
        if end < len(wire) and (after := wire.rfind(_EVENT_END, at, end)) >= 0:
            end = after + len(_EVENT_END)
            if wire.startswith(b"\r\n", end):
                end += 2  # of a chunk with this event
        self._at = end
        return wire[at:end]

    def append(self, more: bytes) -> None:
        """More bytes have come."""
        self._wire, self._at = self._wire[self._at :] + more, 0
