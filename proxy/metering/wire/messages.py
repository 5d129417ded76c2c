"""The framing of a WebSocket: each message is one event.

Invariant: a message is fed whole; a message that is too long is read by its outline.
"""

from __future__ import annotations

from proxy.metering.wire.outline import Outline
from proxy.metering.wire.sse import Event

# The limit of plain answers: a message may hold an image or audio.
MESSAGE_BYTES_MAX = 16 << 20


class MessageFramer:
    """Whole messages → events without a name."""

    __slots__ = ("_bytes_max", "too_long")

    at_boundary = True
    """always True: nothing is kept between two messages"""
    damaged = 0

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.too_long = 0

    def feed(self, piece: bytes) -> list[Event]:
        """The event of this message."""
        if len(piece) <= self._bytes_max:
            return [(piece, b"")]
        self.too_long += 1
        outline = Outline()
        outline.feed(piece)
        return [(outline.close(), b"")]

    def close(self) -> None:
        """Always None: no message is unfinished."""
