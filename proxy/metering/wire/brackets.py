"""Finds the brackets of a JSON text that arrives in pieces.

Invariants: brackets within strings are skipped. The result is the same for every way of cutting the bytes. Time is
linear, and no bytes are buffered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# The rest of a string: up to its quote, or to the end of the piece, which may split an escape.
_REST = rb'[^"\\]*+(?:\\.[^"\\]*+)*'
STRING_END = re.compile(_REST + rb'("|\\?)', re.DOTALL)
# Each match begins where the last one ended: strings and other text, then a bracket, an unterminated string or the end
# of the piece. One of these always follows, so that no byte is scanned more than twice.
_TOKEN = re.compile(rb'[^"\[\]{}]*+(?:"%b"[^"\[\]{}]*+)*(?:([\[\]{}])|(?:(")%b(\\?))?\Z)' % (_REST, _REST), re.DOTALL)
OPENING = b"[{"
BLANKS = b" \t\r\n\xef\xbb\xbf"
"""what may be before a JSON text, and around its values: white space, and the mark of UTF-8"""


class Brackets:
    """Fed with one JSON text, yields its brackets."""

    __slots__ = ("_escaped", "_in_string", "depth")

    def __init__(self) -> None:
        self.depth = 0
        """open brackets, including the last yielded one"""
        self._in_string = False
        self._escaped = False  # a backslash in a string ended the last piece

    def feed(self, piece: bytes) -> Iterator[int]:
        """The index of each bracket in `piece`."""
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
        """The end of the string that the last piece left open."""
        if not piece:
            return 0
        rest = STRING_END.match(piece, 1 if self._escaped else 0)
        assert rest is not None, "it matches nothing at least"
        self._in_string, self._escaped = rest[1] != b'"', rest[1] == b"\\"
        return rest.end()
