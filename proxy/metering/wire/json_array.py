"""Bytes, cut anywhere → the elements of one long JSON array, each as soon as its last byte arrives.

Invariants: an element is an object or array directly within the outermost array; brackets in strings are skipped. The
elements are the same for every way of cutting the bytes. Memory is bounded by the longest readable element. Time is
linear, also for one-byte pieces. A body that does not begin as an array has no elements.
"""

from __future__ import annotations

from proxy.metering.wire.brackets import OPENING, Brackets
from proxy.metering.wire.sse import EVENT_BYTES_MAX, Event

_BLANK = b" \t\r\n\xef\xbb\xbf"


class JsonArrayFramer:
    """Finds whole elements. One longer than `bytes_max` is skipped and counted in `too_long`."""

    __slots__ = ("_after_element", "_begun", "_brackets", "_bytes_max", "_held", "_skipping", "too_long")

    def __init__(self, bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held = bytearray()  # the unfinished element
        self._brackets = Brackets()
        self._begun: bool | None = None  # whether it begins as an array; None: only blanks so far
        self._after_element = False  # only blanks since the last element
        self._skipping = False  # inside an element that is too long
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
        """Drop an unfinished element. The framer is empty afterwards."""
        self._held, self._skipping = bytearray(), False
        return None

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
                self._take(piece[begin : at + 1], events)
                self._after_element, begin = True, at + 1
            elif depth == 2 and opens:
                self._after_element, begin = False, at
        if brackets.depth > 1:
            self._hold(piece[begin:])
        elif piece[begin:].strip(_BLANK):
            self._after_element = False
        return events

    def _take(self, last: bytes, events: list[Event]) -> None:
        """An element is complete."""
        whole = bytes(self._held) + last
        if not self._skipping and len(whole) <= self._bytes_max:
            events.append((whole, b""))
        elif not self._skipping:
            self.too_long += 1
        self._held.clear()
        self._skipping = False

    def _hold(self, part: bytes) -> None:
        if self._skipping:
            return
        self._held += part
        if len(self._held) > self._bytes_max:
            self._held.clear()
            self._skipping = True
            self.too_long += 1
