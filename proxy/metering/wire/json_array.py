"""Bytes, cut anywhere → the elements of one long JSON array, each as soon as its last byte arrives.

Invariants: an element is an object or array directly within the outermost array; brackets in strings are skipped. The
elements are the same for every way of cutting the bytes. Memory is bounded: of a too long element the event is its
outline. Time is linear, also for one-byte pieces. A body that does not begin as an array has no elements.
"""

from __future__ import annotations

from proxy.metering.wire.brackets import OPENING, Brackets
from proxy.metering.wire.outline import HeldText, LongText
from proxy.metering.wire.sse import EVENT_BYTES_MAX, Event

_BLANK = b" \t\r\n\xef\xbb\xbf"


class JsonArrayFramer:
    """Finds whole elements. One longer than `bytes_max` is reduced to its outline and counted in `too_long`."""

    __slots__ = ("_after_element", "_begun", "_brackets", "_held", "too_long")

    damaged = 0
    """there are no checksums"""

    def __init__(self, bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._held = HeldText(bytes_max)  # the unfinished element
        self._brackets = Brackets()
        self._begun: bool | None = None  # whether it begins as an array; None: only blanks so far
        self._after_element = False  # only blanks since the last element
        self.too_long = 0

    @property
    def at_boundary(self) -> bool:
        """True after an element of an open array: `,` and another one may follow."""
        return self._after_element

    def feed(self, piece: bytes) -> list[Event]:
        """The elements that `piece` completes, in order."""
        if self._begun is None:
            piece = piece.lstrip(_BLANK)
            if piece:
                self._begun = piece.startswith(b"[")
        return self._scanned(piece) if self._begun and piece else []

    def close(self) -> Event | None:
        """The unfinished last element, if any. The framer is empty afterwards."""
        return self._taken() if self._held else None

    def _scanned(self, piece: bytes) -> list[Event]:
        events: list[Event] = []
        brackets = self._brackets
        begin = 0  # of the unread bytes, or of the element's part in this piece
        for at in brackets.feed(piece):
            depth, opens = brackets.depth, piece[at] in OPENING
            if depth == 0:  # the array is closed: ignore the rest
                self._begun = self._after_element = False
                return events
            if depth == 1 and not opens:
                self._held.add(piece[begin : at + 1])
                events.append(self._taken())
                self._after_element, begin = True, at + 1
            elif depth == 2 and opens:
                self._after_element, begin = False, at
        if brackets.depth > 1:
            self._held.add(piece[begin:])
        elif piece[begin:].strip(_BLANK):
            self._after_element = False
        return events

    def _taken(self) -> Event:
        element = self._held.take()
        self.too_long += isinstance(element, LongText)
        return element, b""
