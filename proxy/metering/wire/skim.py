"""What is left of a large JSON object when the contents of its lists are left out: `{"data":[{},{}],"usage":{…}}`.

Law: the same for every way of cutting the bytes, in linear time. What is left out is never held: an answer of any
length is read in the room of its short parts.
"""

from __future__ import annotations

from proxy.metering.wire.brackets import OPENING, Brackets


class Skim:
    """Fed with one JSON text. Objects and lists inside a list at the top level come out empty, all else as it is."""

    __slots__ = ("_brackets", "_dropping", "_in_list")

    def __init__(self) -> None:
        self._brackets = Brackets()
        self._in_list = False  # within a list at the top level
        self._dropping = False  # within an object or a list of that list

    def feed(self, piece: bytes) -> bytes:
        """What is to be kept of `piece`."""
        kept: list[bytes] = []
        begin = 0  # of what is kept
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
