"""Reduces a JSON text that is too long to keep, while it arrives: its structure and short members stay.

Invariants: the result is JSON if the text is, and is the same for every way of cutting the bytes. Time is linear,
memory is bounded. Strings longer than STRING_BYTES_MAX become one blank; objects and lists with too many contents
become empty. The bytes of generated text that are dropped are counted.
"""

from __future__ import annotations

import re

from proxy.metering.wire.brackets import BLANKS, OPENING, STRING_END

# Names, ids, reasons and numbers are shorter; longer strings are texts, images or signatures.
STRING_BYTES_MAX = 1024
# What objects and lists keep at most, by depth; the last one applies to all below. A usage object has under 16 KiB.
_ROOM = (1 << 20, 512 << 10, 64 << 10)
TEXT_NAMES = frozenset(
    {
        b"arguments", b"code", b"content", b"delta", b"input", b"partial_json", b"reasoning", b"reasoning_content",
        b"refusal", b"response", b"text", b"thinking", b"tool_plan", b"transcript",
    }
)  # fmt: skip
"""members whose strings are generated text, in any dialect"""

# Bytes between strings and brackets, then a whole string, a bracket, an unterminated string or the end of the piece.
# Each match begins where the last one ended, so that no byte is scanned more than twice.
_TOKEN = re.compile(rb'([^"\[\]{}]*+)(?:"([^"\\]*+(?:\\.[^"\\]*+)*)"|([\[\]{}])|(")|\Z)', re.DOTALL)
_LONG_STRING = b'" "'
# The longest of TEXT_NAMES and some more.
_NAME_BYTES_MAX = 32


class LongText(bytes):
    """The outline of a text: JSON, or empty if the text is none or has too many members."""

    size: int
    """bytes of the text itself"""
    dropped: int
    """bytes of generated text that are not in the outline"""


class Outline:
    """Fed with one JSON text."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._size = 0
        # Each open object or list: the offset of its contents in `_kept`; the offset at which the first of it and its
        # holders is full, and the index of that one; `_kept_text` at its beginning.
        self._open: list[tuple[int, int, int, int]] = []
        self._hidden: int | None = None  # open brackets within the one that was emptied; None: none was
        self._begun = False
        self._lost = False  # there will be no outline
        self._in_string = False
        self._escaped = False  # a backslash in a string ended the last piece
        self._string = bytearray()  # the beginning of the string
        self._length = 0  # of the string
        self._after_colon = False
        self._name = b""  # the last string that was no value
        self._text = 0  # bytes of generated text; the next field counts those in `_kept`
        self._kept_text = 0

    def feed(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._lost and not self._begun:
            return  # it is no JSON
        at = self._read_string(piece, 0) if self._in_string and piece else 0
        if self._in_string:
            return
        for token in _TOKEN.finditer(piece, at):
            between, string, bracket, quote = token.groups()
            if between:
                self._read_between(between)
            if string is not None:
                self._end_string(string[:STRING_BYTES_MAX], len(string))
            elif bracket is not None and bracket in OPENING:
                self._open_one(bracket)
            elif bracket is not None:
                self._close_one(bracket)
            elif quote is not None:
                self._in_string, self._length = True, 0
                self._string.clear()
                self._read_string(piece, token.end())
                return

    def close(self) -> LongText:
        """The text has ended, complete or not."""
        if self._in_string:
            self._in_string = False
            self._end_string(b"", self._length, cut=True)
        outline = LongText(self._kept)
        outline.size, outline.dropped = self._size, self._text - self._kept_text if self._begun else 0
        return outline

    def _read_between(self, text: bytes) -> None:
        """Commas, colons, numbers, literals, blanks."""
        if bare := text.rstrip(BLANKS):
            self._after_colon = bare.endswith(b":")
        if self._hidden is None:
            self._keep(text)

    def _read_string(self, piece: bytes, at: int) -> int:
        rest = STRING_END.match(piece, at + self._escaped)
        assert rest is not None, "it matches nothing at least"
        ended = rest[1] == b'"'
        size = rest.end() - at - ended
        self._length += size
        if (room := STRING_BYTES_MAX - len(self._string)) > 0:
            self._string += piece[at : at + min(size, room)]
        self._escaped = rest[1] == b"\\"
        if ended:
            self._in_string = self._escaped = False
            self._end_string(bytes(self._string), self._length)
        return rest.end()

    def _end_string(self, start: bytes, length: int, *, cut: bool = False) -> None:
        """A string of `length` bytes has ended. `start`: up to STRING_BYTES_MAX of them; `cut`: it was cut off."""
        long = cut or length > STRING_BYTES_MAX
        if not self._after_colon:
            self._name = start[:_NAME_BYTES_MAX]
        elif self._name in TEXT_NAMES:
            self._text += length
            if not (long or self._lost or self._hidden is not None):
                self._kept_text += length
        self._after_colon = False
        if self._hidden is None:
            self._keep(_LONG_STRING if long else b'"%b"' % start)

    def _open_one(self, bracket: bytes) -> None:
        self._after_colon = False
        if self._hidden is None and not self._open:
            if self._begun:
                self._lose()
            elif not self._lost:
                self._begun = True
                self._kept += bracket
                self._push(len(self._kept) + _ROOM[0], 0)
            return
        if self._hidden is None:
            self._keep(bracket)
        if self._hidden is not None:
            self._hidden += 1
        elif not self._lost:
            depth = len(self._open)
            _, full, which, _ = self._open[-1]
            own = len(self._kept) + _ROOM[min(depth, len(_ROOM) - 1)]
            self._push(*((own, depth) if own < full else (full, which)))

    def _push(self, full: int, which: int) -> None:
        self._open.append((len(self._kept), full, which, self._kept_text))

    def _close_one(self, bracket: bytes) -> None:
        if self._hidden:
            self._hidden -= 1
            return
        self._hidden = None
        if not self._open:
            self._lose()
            return
        self._open.pop()
        if self._open:
            self._keep(bracket)
        else:
            self._kept += bracket

    def _keep(self, part: bytes) -> None:
        if self._hidden is not None or self._lost:
            return
        if not self._open:
            if part.strip(BLANKS):
                self._lose()
            return
        _, full, which, _ = self._open[-1]
        if len(self._kept) + len(part) <= full:
            self._kept += part
        elif which == 0:
            self._lose()
        else:
            start, _, _, self._kept_text = self._open[which]
            del self._kept[start:]
            self._hidden = len(self._open) - 1 - which
            del self._open[which + 1 :]

    def _lose(self) -> None:
        self._lost = True
        self._kept.clear()
        self._open.clear()
        self._hidden, self._kept_text = None, 0


class HeldText:
    """Collects one JSON text in pieces: unchanged up to `bytes_max` bytes, beyond that its outline."""

    __slots__ = ("_bytes_max", "_outline", "raw")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.raw = bytearray()
        """the whole text, if it is not too long"""
        self._outline: Outline | None = None

    def __bool__(self) -> bool:
        return bool(self.raw) or self._outline is not None

    @property
    def too_long(self) -> bool:
        """Whether only the outline is kept."""
        return self._outline is not None

    def add(self, part: bytes) -> None:
        if self._outline is not None:
            self._outline.feed(part)
            return
        self.raw += part
        if len(self.raw) > self._bytes_max:
            self._outline = Outline()
            self._outline.feed(bytes(self.raw))
            self.raw = bytearray()

    def take(self) -> bytes:
        """The text, or its outline, a `LongText`. It is empty afterwards."""
        if self._outline is not None:
            outline, self._outline = self._outline, None
            return outline.close()
        text = bytes(self.raw)
        self.raw.clear()
        return text
