"""Bytes, cut anywhere → server-sent events.

Invariants: only LF, CRLF or CR end a line; a blank line ends an event. The events are the same for every way of cutting
the bytes. Memory is bounded: of the data of a too long event the outline is kept. Time is linear, also for one-byte
pieces.
"""

from __future__ import annotations

import re
from typing import Protocol, TypeAlias

from proxy.metering.wire.outline import TEXT_BYTES_MAX, Outline, UnreadText
from proxy.metering.wire.parts import TEXT_MARKS_MAX, is_crowded, marks_in

# Eight times the largest event of 2,700 recorded streams.
EVENT_BYTES_MAX = 1 << 20
# Of an event with more lines the outline is read: lines that are no document are read as an event each.
LINES_MAX = 512

_BOM = b"\xef\xbb\xbf"
_DATA = b"data: "
_STARTS = (b"data:", b"event:")
# Kept bytes of lines without data in a too long event; names of events are shorter.
_LINE_BYTES_MAX = 256
_USAGE = b'"usage"'
_USAGE_BYTES = len(_USAGE)
_LOUD = re.compile(rb'"usage"(?!\s*:\s*null)')

Event: TypeAlias = tuple[bytes, bytes]
"""(data lines joined by LF, event name or empty); the data of a too long event is a `LongText`"""


class Framer(Protocol):
    """Bytes, cut anywhere → whole events."""

    __slots__ = ()

    too_long: int
    """events that are longer than the limit of the framing"""
    damaged: int = 0
    """events whose checksums are wrong; only AWS's streams have checksums"""

    @property
    def unread(self) -> UnreadText | None:
        """The unfinished event, if only its outline is kept."""

    @property
    def at_boundary(self) -> bool:
        """The bytes so far end between two events."""

    def feed(self, piece: bytes) -> list[Event]:
        """The events that `piece` completes, in order."""

    def close(self) -> Event | None:
        """The unfinished last event, if any. The framer is empty afterwards."""


def event_of(block: bytes) -> Event | None:
    """The event of one block of lines (LF line ends, no blank line); None if it has no data line."""
    lines: list[bytes] = []
    name = b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            lines.append(value[1:] if value.startswith(b" ") else value)
        elif field == b"event":
            name = value[1:] if value.startswith(b" ") else value
    return (b"\n".join(lines), name) if lines else None


def quiet_events(payload: bytes) -> int:
    """The number of events of `payload`, if it has whole events only, and no `usage` but null. 0: unknown."""
    if not payload.startswith(_STARTS):
        return 0
    if payload.endswith(b"\n\n"):
        events = payload.count(b"\n\n")
    elif payload.endswith(b"\r\n\r\n"):
        events = payload.count(b"\r\n\r\n") + payload.count(b"\n\n")
    else:
        return 0
    at = payload.find(_USAGE)
    if at < 0:
        return events
    # OpenAI's `"usage":null` on every event is the common case; the regular expression handles the rest.
    rest = at + _USAGE_BYTES
    common = payload.startswith(b":null", rest) and payload.find(_USAGE, rest) < 0
    return events if common or _LOUD.search(payload, at) is None else 0


class _LongEvent:
    """Fed with the lines (LF line ends) of one event that is too long: keeps its name, and the outline of its data."""

    def __init__(self) -> None:
        self._outline = Outline()
        self._line = bytearray()  # the beginning of the line, unless it is data
        self._in_data = False
        self._has_data = False
        self._name = b""

    def feed(self, part: bytes) -> None:
        first, *others = part.split(b"\n")
        self._read(first)
        for line in others:
            self._end_line()
            self._read(line)

    def close(self) -> Event | None:
        """The event has ended; None if it has no data line."""
        self._end_line()
        return (self._outline.close(), self._name) if self._has_data else None

    def _read(self, part: bytes) -> None:
        if self._in_data:
            self._outline.feed(part)
            return
        line = self._line
        line += part
        if line.startswith(b"data:") and len(line) > len(b"data:"):
            self._begin_data(bytes(line).removeprefix(b"data:").removeprefix(b" "))
        else:
            del line[_LINE_BYTES_MAX:]

    def _begin_data(self, data: bytes) -> None:
        if self._has_data:
            self._outline.feed(b"\n")
        self._has_data = self._in_data = True
        self._outline.feed(data)

    def _end_line(self) -> None:
        field, _, value = bytes(self._line).partition(b":")
        if not self._in_data and field == b"data":
            self._begin_data(b"")
        elif not self._in_data and field == b"event":
            self._name = value.removeprefix(b" ")
        self._in_data = False
        self._line.clear()


class EventFramer(Framer):
    """Finds whole events with data lines. One that is longer than `bytes_max`, or too crowded to be read at once, is
    reduced to its outline."""

    __slots__ = (
        "_bytes_max", "_counted", "_held", "_lf_is_old", "_lines", "_marks", "_plain_bytes", "_raw_max", "_started",
        "_sure_bytes", "too_long", "unread",
    )  # fmt: skip

    def __init__(self, bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._raw_max = min(bytes_max, TEXT_BYTES_MAX)
        self._sure_bytes = min(bytes_max, LINES_MAX)  # no event up to this size is too long
        self._plain_bytes = min(bytes_max, TEXT_MARKS_MAX)  # nor is one of one line
        self._held = bytearray()  # the unfinished event, with LF line ends; never begins with LF
        self._counted = self._marks = self._lines = 0  # counted bytes of it, their marks and line ends
        self._lf_is_old = False  # a CR ended the last piece: an LF now belongs to it
        self.unread: UnreadText | None = None  # the unfinished event, but for its last byte
        self._started = False
        self.too_long = 0

    @property
    def at_boundary(self) -> bool:
        return not self._held and self.unread is None

    def feed(self, piece: bytes) -> list[Event]:
        if self._lf_is_old or b"\r" in piece:
            piece = self._with_lf(piece)
        if not self._held and piece.endswith(b"\n\n") and self.unread is None:
            return self._events(piece)
        return self._assembled(piece)

    def close(self) -> Event | None:
        if self.at_boundary:
            return None
        block = bytes(self._held.rstrip(b"\n"))
        self._held = bytearray()
        if self.unread is not None:
            self.unread.append(block)
            return self._end_long()
        return self._checked(self._unmarked(block))

    def _with_lf(self, piece: bytes) -> bytes:
        if self._lf_is_old and piece:
            self._lf_is_old = False
            piece = piece.removeprefix(b"\n")
        if b"\r" in piece:
            self._lf_is_old = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return piece

    def _assembled(self, piece: bytes) -> list[Event]:
        held = self._held
        searched = max(len(held) - 1, 0)
        held += piece if held else piece.lstrip(b"\n")
        events: list[Event] = []
        if self.unread is not None:
            end = held.find(b"\n\n", searched)
            if end < 0:
                self._pass_on(self.unread)
                return []
            self.unread.append(bytes(held[:end]))
            held[:] = held[end + 2 :].lstrip(b"\n")
            searched = 0
            if (event := self._end_long()) is not None:
                events.append(event)
        end = held.rfind(b"\n\n", searched)
        if end >= 0:
            whole = bytes(held[:end])
            del held[: end + 2]
            self._counted = self._marks = self._lines = 0
            events += self._events(whole)
        self._bound()
        return events

    def _begin_long(self, block: bytes) -> UnreadText:
        event = _LongEvent()
        self.unread = unread = UnreadText.of(event.feed, event.close)
        unread.append(block)
        return unread

    def _pass_on(self, long: UnreadText) -> None:
        """All bytes but the last one, which may be the first half of the blank line."""
        long.append(bytes(self._held[:-1]))
        del self._held[:-1]

    def _end_long(self) -> Event | None:
        assert self.unread is not None
        unread, self.unread = self.unread, None
        self.too_long += unread.size > self._bytes_max
        return unread.ended()

    def _bound(self) -> None:
        held = self._held
        if len(held) <= self._sure_bytes:
            return
        self._marks += marks_in(held, self._counted)
        self._lines += held.count(b"\n", self._counted)
        self._counted = len(held)
        # One more byte may be the first half of the blank line; more, a first line that has only the byte order mark.
        most = self._raw_max + 1 + (0 if self._started else len(_BOM + b"\n"))
        if len(held) > most or self._marks > TEXT_MARKS_MAX + 1 or self._lines > LINES_MAX + 1:
            self._counted = self._marks = self._lines = 0
            begun = self._unmarked(bytes(held[:-1]))
            del held[:-1]
            self._begin_long(begun)

    def _events(self, whole: bytes) -> list[Event]:
        if not self._started:
            whole = self._unmarked(whole.lstrip(b"\n"))
        blocks = whole.split(b"\n\n")
        if whole.count(b"\n") == 2 * (len(blocks) - 1) and len(whole) <= self._plain_bytes:
            # The common case: one line per event.
            parsed = [(b[6:], b"") if b.startswith(_DATA) else event_of(b) for b in blocks if b]
            return [event for event in parsed if event is not None]
        return [event for block in blocks if (event := self._checked(block.strip(b"\n"))) is not None]

    def _checked(self, block: bytes) -> Event | None:
        if len(block) > self._sure_bytes and self._is_long(block):
            self._begin_long(block)
            return self._end_long()
        return event_of(block)

    def _is_long(self, block: bytes) -> bool:
        return len(block) > self._raw_max or block.count(b"\n") > LINES_MAX or is_crowded(block, TEXT_MARKS_MAX)

    def _unmarked(self, whole: bytes) -> bytes:
        """`whole` without the byte order mark at the start of a stream."""
        if self._started or not whole:
            return whole
        self._started = True
        return whole.removeprefix(_BOM)
