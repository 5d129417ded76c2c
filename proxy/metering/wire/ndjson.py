"""Bytes, cut anywhere → lines of JSON, each an event.

Invariants: only LF ends a line; blank lines are skipped. The events are the same for every way of cutting the bytes.
Memory is bounded by LINE_BYTES_MAX. Time is linear, also for one-byte pieces.
"""

from __future__ import annotations

from proxy.metering.wire.sse import Event

# Ollama's last line contains the whole context as numbers: up to a million tokens of seven digits.
LINE_BYTES_MAX = 8 << 20


class LineFramer:
    """Finds whole lines. One longer than LINE_BYTES_MAX is skipped and counted in `too_long`."""

    __slots__ = ("_held", "_skipping", "too_long")

    def __init__(self) -> None:
        self._held = bytearray()  # the unfinished line
        self._skipping = False  # inside a line that is too long
        self.too_long = 0

    @property
    def at_boundary(self) -> bool:
        """True if no unfinished line is buffered."""
        return not self._held and not self._skipping

    def feed(self, piece: bytes) -> list[Event]:
        """The lines that `piece` completes, in order."""
        *ended, unfinished = piece.split(b"\n")
        events = []
        for line in ended:
            self._hold(line)
            if (event := self._taken()) is not None:
                events.append(event)
        self._hold(unfinished)
        return events

    def close(self) -> Event | None:
        """The unterminated last line, if it is not blank. The framer is empty afterwards."""
        return self._taken()

    def _hold(self, more: bytes) -> None:
        if self._skipping:
            return
        self._held += more
        if len(self._held) > LINE_BYTES_MAX:
            self._held.clear()
            self._skipping = True
            self.too_long += 1

    def _taken(self) -> Event | None:
        line = bytes(self._held)
        self._held.clear()
        self._skipping = False
        return (line, b"") if line.strip() else None
