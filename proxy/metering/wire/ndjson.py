"""Bytes, cut anywhere → lines of JSON, each an event.

Invariants: only LF ends a line; blank lines are skipped. The events are the same for every way of cutting the bytes.
Memory is bounded by LINE_BYTES_MAX: of a longer line the event is its outline. Time is linear, also for one-byte
pieces.
"""

from __future__ import annotations

from proxy.metering.wire.outline import HeldText, LongText
from proxy.metering.wire.sse import Event

# Ollama's last line contains the whole context as numbers: up to a million tokens of seven digits.
LINE_BYTES_MAX = 8 << 20


def quiet_lines(payload: bytes) -> int:
    """How many lines `payload` has, if it is fed at their boundary and ends at one. 0: unknown."""
    return payload.count(b"\n") if payload.endswith(b"\n") else 0


class LineFramer:
    """Finds whole lines. One longer than LINE_BYTES_MAX is reduced to its outline and counted in `too_long`."""

    __slots__ = ("_held", "too_long")

    damaged = 0
    """there are no checksums"""

    def __init__(self) -> None:
        self._held = HeldText(LINE_BYTES_MAX)  # the unfinished line
        self.too_long = 0

    @property
    def at_boundary(self) -> bool:
        """True if no unfinished line is buffered."""
        return not self._held

    def feed(self, piece: bytes) -> list[Event]:
        """The lines that `piece` completes, in order."""
        *ended, unfinished = piece.split(b"\n")
        events = []
        for line in ended:
            self._held.add(line)
            if (event := self._taken()) is not None:
                events.append(event)
        self._held.add(unfinished)
        return events

    def close(self) -> Event | None:
        """The unterminated last line, if it is not blank. The framer is empty afterwards."""
        return self._taken()

    def _taken(self) -> Event | None:
        line = self._held.take()
        if isinstance(line, LongText):
            self.too_long += 1
            return line, b""
        return (line, b"") if line.strip() else None
