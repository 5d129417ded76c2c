"""Bytes in any cut → the objects of one long JSON array, each as soon as its last byte is there.

Law: an element is an object or array that stands directly in the outermost array; what is in a string is never a
bracket. The elements are the same for every way of cutting the bytes. Memory is bounded by the longest that is read,
time is linear, also for one-byte pieces. What does not begin as an array has no elements.
"""

from __future__ import annotations

import re

from proxy.metering.wire.sse import EVENT_BYTES_MAX, Event

_BLANK = b" \t\r\n\xef\xbb\xbf"

# A string without an end takes the rest, and nothing is tried twice. The group is how it ends: with its quote, with the
# backslash of an escape that goes on in the next piece, or not.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
_STRING_REST = re.compile(rb'(?:[^"\\]++|\\.)*+("|\\?\Z)', re.DOTALL)


class JsonArrayFramer:
    """Finds whole elements. One longer than `bytes_max` is skipped and counted in `too_long`."""

    __slots__ = (
        "_after_element", "_begun", "_bytes_max", "_depth", "_escaped", "_held", "_in_string", "_skipping", "too_long",
    )  # fmt: skip

    def __init__(self, bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held = bytearray()  # the unfinished element
        self._depth = 0  # open brackets, the outermost one included
        self._begun: bool | None = None  # as an array; None: only blanks so far
        self._after_element = False  # and no comma since
        self._in_string = False
        self._escaped = False  # a backslash in a string ended the last piece
        self._skipping = False  # inside an element that is too long
        self.too_long = 0

    @property
    def at_boundary(self) -> bool:
        """True right behind an element of an array that is still open: `,` and another one may follow."""
        return self._after_element

    def feed(self, piece: bytes) -> list[Event]:
        """The elements that `piece` completes, in order."""
        if self._begun is None:
            piece = piece.lstrip(_BLANK)
            if piece:
                self._begun = piece.startswith(b"[")
        return self._scanned(piece) if self._begun and piece else []

    def close(self) -> Event | None:
        """Half an element holds nothing. The framer is empty afterwards."""
        self._held, self._skipping = bytearray(), False
        return None

    def _scanned(self, piece: bytes) -> list[Event]:
        found: list[Event] = []
        begin = 0  # of the element's part that is in this piece
        between = self._string_end(piece) if self._in_string else 0
        for token in _TOKEN.finditer(piece, between):
            start = token.start()
            if self._depth == 1 and b"," in piece[between:start]:
                self._after_element = False
            between = token.end()
            if token[1] is not None:
                self._note_string(token[1])
            elif piece[start] in b"[{":
                self._depth += 1
                if self._depth == 2:
                    begin = start
                    self._after_element = False
            else:
                self._depth -= 1
                if self._depth == 0:  # the array is over: nothing that follows is of it
                    self._begun = self._after_element = False
                    return found
                if self._depth == 1:
                    self._after_element = True
                    self._take(piece[begin:between], found)
                    begin = between
        if self._depth > 1:
            self._hold(piece[begin:])
        elif b"," in piece[between:]:
            self._after_element = False
        return found

    def _string_end(self, piece: bytes) -> int:
        """Where the string that the last piece left open ends in this one."""
        rest = _STRING_REST.match(piece, 1 if self._escaped else 0)
        assert rest is not None, "it matches nothing at least"
        self._note_string(rest[1])
        return rest.end()

    def _note_string(self, end: bytes) -> None:
        self._in_string = end != b'"'
        self._escaped = end == b"\\"

    def _take(self, last: bytes, found: list[Event]) -> None:
        """An element is complete."""
        whole = bytes(self._held) + last
        if not self._skipping and len(whole) <= self._bytes_max:
            found.append((whole, b""))
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
