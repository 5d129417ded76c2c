"""The brackets of a JSON text that comes in pieces.

Invariant: what is in a string is no bracket. The brackets are the same for every way of cutting the bytes, in linear
time and without holding any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# The rest of a string: up to its quote, or to the end of the piece, where an escape may go on in the next one.
_REST = rb'[^"\\]*+(?:\\.[^"\\]*+)*'
_STRING_END = re.compile(_REST + rb'("|\\?)', re.DOTALL)
# Each match begins where the last one ended: strings and all else, then a bracket, or a string without an end, or the
# end of the piece. One of these always follows, so that no byte is looked at more than twice.
_TOKEN = re.compile(rb'[^"\[\]{}]*+(?:"%b"[^"\[\]{}]*+)*(?:([\[\]{}])|(?:(")%b(\\?))?\Z)' % (_REST, _REST), re.DOTALL)
OPENING = b"[{"


class Brackets:
    """Fed with one JSON text, gives its brackets."""

    __slots__ = ("_escaped", "_in_string", "depth")

    def __init__(self) -> None:
        self.depth = 0
        """open brackets, the last one that was given included"""
        self._in_string = False
        self._escaped = False  # a backslash in a string ended the last piece

    def feed(self, piece: bytes) -> Iterator[int]:
        """Where each bracket of `piece` stands."""
        at = self._string_end(piece) if self._in_string else 0
        if self._in_string:
            return
        for token in _TOKEN.finditer(piece, at):
            if token[1] is not None:
                self.depth += 1 if token[1] in OPENING else -1
                yield token.start(1)
            elif token[2] is not None:
                self._in_string, self._escaped = True, bool(token[3])

    def _string_end(self, piece: bytes) -> int:
        """Where the string that the last piece left open ends."""
        if not piece:
            return 0
        rest = _STRING_END.match(piece, 1 if self._escaped else 0)
        assert rest is not None, "it matches nothing at least"
        self._in_string, self._escaped = rest[1] != b'"', rest[1] == b"\\"
        return rest.end()
