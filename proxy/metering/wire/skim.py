"""Drops the contents of the lists of a large JSON object: `{"data":[{},{}],"usage":{…}}`.

Invariants: the result is the same for every way of cutting the bytes. Time is linear. Dropped bytes are never buffered,
so memory does not grow with them.
"""

from __future__ import annotations

from proxy.metering.wire.brackets import OPENING, Brackets


class Skim:
    """Fed with one JSON text. Empties objects and lists within top-level lists; keeps everything else unchanged."""

    def __init__(self) -> None:
        self._brackets = Brackets()
        self._in_list = False  # within a top-level list
        self._dropping = False  # within an object or a list of that list

    def feed(self, piece: bytes) -> bytes:
        """The bytes of `piece` to keep."""
        kept: list[bytes] = []
        begin = 0  # of the bytes to keep
        for at in self._brackets.feed(piece):
            depth, opens = self._brackets.depth, piece[at] in OPENING
            if depth == 2 and opens:
                self._in_list = piece[at] == OPENING[0]
            elif depth == 3 and opens and self._in_list:
                kept.append(piece[begin : at + 1])
                self._dropping = True
            elif depth == 2 and self._dropping:
                self._dropping, begin = False, at
        if not self._dropping:
            kept.append(piece[begin:])
        return b"".join(kept)
