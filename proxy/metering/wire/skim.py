"""What is left of a large JSON object when the contents of its lists are left out: `{"data":[{},{}],"usage":{…}}`.

Law: the same for every way of cutting the bytes, in linear time. What is left out is never held: an answer of any
length is read in the room of its short parts.
"""

from __future__ import annotations

import re

_QUOTED = re.compile(rb'["\\]')
_STRUCTURE = re.compile(rb'["\[\]{}]')
_OPENING = (0x5B, 0x7B)  # [ {


class Skim:
    """Fed with one JSON text. Objects and lists inside a list at the top level come out empty, all else as it is."""

    __slots__ = ("_depth", "_escaped", "_in_list", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_list = False  # within a list at the top level
        self._in_string = self._escaped = False

    def feed(self, piece: bytes) -> bytes:
        """What is to be kept of `piece`."""
        kept: list[bytes] = []
        at = 0
        while at < len(piece):
            dropped = self._in_list and self._depth > 2
            end = self._string_end(piece, at) if self._in_string else self._structure_end(piece, at)
            # A bracket that closes what is dropped belongs to its empty shell.
            if not dropped:
                kept.append(piece[at:end])
            elif self._depth == 2:
                kept.append(piece[end - 1 : end])
            at = end
        return b"".join(kept)

    def _string_end(self, piece: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _QUOTED.search(piece, at)
        if found is None:
            return len(piece)
        if found.group() == b'"':
            self._in_string = False
        else:
            self._escaped = True
        return found.end()

    def _structure_end(self, piece: bytes, at: int) -> int:
        found = _STRUCTURE.search(piece, at)
        if found is None:
            return len(piece)
        byte = piece[found.start()]
        if byte == 0x22:
            self._in_string = True
        elif byte in _OPENING:
            self._depth += 1
            if self._depth == 2:
                self._in_list = byte == _OPENING[0]
        else:
            self._depth -= 1
        return found.end()
