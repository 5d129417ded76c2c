"""Reduces a JSON text that is too long to keep, while it arrives: its structure and short members stay.

Invariants: the result is JSON if the text is, and is the same for every way of cutting the bytes. Time is linear,
memory is bounded. Strings longer than STRING_BYTES_MAX become one blank; objects and lists with too many contents
become empty. The bytes of generated text that are dropped are counted.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from proxy.metering.wire.brackets import BLANKS, OPENING, string_end
from proxy.metering.wire.parts import PART_BYTES, PART_MARKS, TEXT_MARKS_MAX, Parts, is_crowded, marks_in

# A longer text is not parsed at once, only its outline: that of an image has all that is read of it.
TEXT_BYTES_MAX = 4 << 20
# Names, ids, reasons and numbers are shorter; longer strings are texts, images or signatures.
STRING_BYTES_MAX = 1024
# What objects and lists keep at most, by depth; the last one applies to all below. A usage object has under 16 KiB.
_ROOM = (256 << 10, 128 << 10, 32 << 10)
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
# Strings and brackets of a text that has an outline: reading so many takes some seconds, in slices.
_TOKENS_MAX = 1 << 20


class LongText(bytes):
    """The outline of a text: JSON, or empty if the text is none or has too many members."""

    size: int
    """bytes of the text itself"""
    dropped: int
    """bytes of generated text that are not in the outline"""
    lacks: bool = True
    """more is missing than long strings that are no generated text"""


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
        self._lacks = False  # objects or lists were emptied
        self._tokens = 0
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
            if self._tokens > _TOKENS_MAX:
                self._begun = False
                self._lose()
                return
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
        outline.lacks = self._lacks or self._lost or not self._begun or outline.dropped > 0
        return outline

    def _read_between(self, text: bytes) -> None:
        """Commas, colons, numbers, literals, blanks."""
        if bare := text.rstrip(BLANKS):
            self._after_colon = bare.endswith(b":")
        if self._hidden is None:
            self._keep(text)

    def _read_string(self, piece: bytes, at: int) -> int:
        end, ended, self._escaped = string_end(piece, at, escaped=self._escaped)
        size = end - at - ended
        self._length += size
        if (room := STRING_BYTES_MAX - len(self._string)) > 0:
            self._string += piece[at : at + min(size, room)]
        if ended:
            self._in_string = False
            self._end_string(bytes(self._string), self._length)
        return end

    def _end_string(self, start: bytes, length: int, *, cut: bool = False) -> None:
        """A string of `length` bytes has ended. `start`: up to STRING_BYTES_MAX of them; `cut`: it was cut off."""
        self._tokens += 1
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
        self._tokens += 1
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
            self._lacks = True
            del self._open[which + 1 :]

    def _lose(self) -> None:
        self._lost = True
        self._kept.clear()
        self._open.clear()
        self._hidden, self._kept_text = None, 0


class UnreadText(LongText):
    """A long text of which a part is not read yet, because that takes longer than one turn of the event loop."""

    size = dropped = 0
    _feed: Callable[[bytes], None]
    _close: Callable[[], tuple[bytes, bytes] | None]
    _waiting: deque[Parts]

    @classmethod
    def of(cls, feed: Callable[[bytes], None], close: Callable[[], tuple[bytes, bytes] | None]) -> UnreadText:
        """An empty text. `feed` reads a part of it, `close` returns its event."""
        unread = cls()
        unread._feed, unread._close, unread._waiting = feed, close, deque()
        return unread

    @classmethod
    def document(cls, text: bytes) -> UnreadText:
        """A JSON text, of which the outline is read."""
        outline = Outline()
        unread = cls.of(outline.feed, lambda: (outline.close(), b""))
        unread.append(text)
        return unread

    @property
    def is_read(self) -> bool:
        """Whether all received bytes are read."""
        return not self._waiting

    def append(self, more: bytes) -> None:
        """Add received bytes. They are read at once if they are one part at most."""
        self.size += len(more)
        if not self._waiting and len(more) <= PART_BYTES and not is_crowded(more, PART_MARKS):
            self._feed(more)
        elif more:
            self._waiting.append(Parts(more))

    def read_part(self) -> bool:
        """Read one more part. Returns whether all received bytes are read."""
        parts = self._waiting[0]
        self._feed(parts.take())
        if not parts:
            self._waiting.popleft()
        return not self._waiting

    def give_up(self) -> None:
        """Stop reading the text: only the size of its received part is known."""
        lost = LongText()
        lost.size, lost.dropped = self.size, 0
        self._waiting.clear()
        self._close = lambda: (lost, b"")

    def event(self) -> tuple[bytes, bytes] | None:
        """The text has ended: its outline as an event; None: it has none. Its unread part is read now."""
        while self._waiting:
            self.read_part()
        return self._close()

    def text(self) -> bytes:
        """The outline of a text that is a whole document. To be called when it has ended."""
        event = self.event()
        assert event is not None, "a document is an event"
        return event[0]

    def ended(self) -> tuple[bytes, bytes] | None:
        """The text has ended: its event, with this text in place of the outline if a part is not read yet."""
        return (self, b"") if self._waiting else self._close()


def bounded(text: bytes, bytes_max: int = TEXT_BYTES_MAX) -> bytes:
    """`text`, or its outline if it is longer than `bytes_max`, or too long or crowded to be parsed at once. A text that
    is no JSON object stays as it is: no parser reads beyond its first byte."""
    fits = len(text) <= min(bytes_max, TEXT_BYTES_MAX) and not is_crowded(text, TEXT_MARKS_MAX)
    if fits or not text.lstrip(BLANKS).startswith(b"{"):
        return text
    unread = UnreadText.document(text)
    return unread.text() if unread.is_read else unread


class HeldText:
    """Collects one JSON text in pieces: unchanged if it has at most `bytes_max` bytes, TEXT_BYTES_MAX and
    TEXT_MARKS_MAX marks, beyond that its outline."""

    __slots__ = ("_bytes_max", "_counted", "_marks", "raw", "unread")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = min(bytes_max, TEXT_BYTES_MAX)
        self.raw = bytearray()
        """the whole text, if it is not too long"""
        self._counted = self._marks = 0  # bytes of it whose marks are counted, and their marks
        self.unread: UnreadText | None = None
        """the text, if only its outline is kept"""

    def __bool__(self) -> bool:
        return bool(self.raw) or self.unread is not None

    def add(self, part: bytes) -> None:
        if self.unread is not None:
            self.unread.append(part)
            return
        raw = self.raw
        raw += part
        if len(raw) > TEXT_MARKS_MAX:  # each mark is a byte
            self._marks += marks_in(raw, self._counted)
            self._counted = len(raw)
        if len(raw) > self._bytes_max or self._marks > TEXT_MARKS_MAX:
            self.unread = UnreadText.document(bytes(raw))
            self.raw = bytearray()

    def take(self) -> bytes:
        """The text, or its outline, a `LongText`. It is empty afterwards."""
        self._counted = self._marks = 0
        if (unread := self.unread) is not None:
            self.unread = None
            return unread.text() if unread.is_read else unread
        text = bytes(self.raw)
        self.raw.clear()
        return text
