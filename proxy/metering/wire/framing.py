"""The framings of streams: content type, splitting into events, and the form of our own events.

Invariant: a framer yields the same events for every way of cutting the bytes, in linear time,
also for one-byte pieces, and bounded memory: the event of a too long line or element is its outline.

* Lines of JSON (`LineFramer`): only LF ends a line; blank lines are skipped. LINE_BYTES_MAX bounds a line.
* One long JSON array (`JsonArrayFramer`): an element is an object or array directly within the outermost array;
  brackets in strings are skipped. Each is yielded as soon as its last byte arrives. A body that does not begin as an
  array has no elements.
* Messages of a WebSocket (`MessageFramer`): each is one event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from proxy.metering.wire.brackets import BLANKS, OPENING, Brackets
from proxy.metering.wire.event_stream import CONTENT_TYPE, EventStreamFramer, exception
from proxy.metering.wire.outline import HeldText, LongText, UnreadText, bounded
from proxy.metering.wire.sse import EVENT_BYTES_MAX, Event, EventFramer, Framer, quiet_events

# Of events that may contain an image or audio: the limit of plain answers.
LONG_EVENT_BYTES_MAX = 16 << 20


class JsonArrayFramer(Framer):
    """Finds whole elements. One longer than `bytes_max` is reduced to its outline and counted in `too_long`."""

    __slots__ = ("_after_element", "_begun", "_brackets", "_bytes_max", "_held", "too_long")

    def __init__(self, bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held = HeldText(bytes_max)  # the unfinished element
        self._brackets = Brackets()
        self._begun: bool | None = None  # whether it begins as an array; None: only blanks so far
        self._after_element = False  # only blanks since the last element
        self.too_long = 0

    @property
    def unread(self) -> UnreadText | None:
        return self._held.unread

    @property
    def at_boundary(self) -> bool:
        """True after an element of an open array: `,` and another one may follow."""
        return self._after_element

    def feed(self, piece: bytes) -> list[Event]:
        if self._begun is None:
            piece = piece.lstrip(BLANKS)
            if piece:
                self._begun = piece.startswith(b"[")
        return self._scanned(piece) if self._begun and piece else []

    def close(self) -> Event | None:
        return self._taken() if self._held else None

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
                self._held.add(piece[begin : at + 1])
                events.append(self._taken())
                self._after_element, begin = True, at + 1
            elif depth == 2 and opens:
                self._after_element, begin = False, at
        if brackets.depth > 1:
            self._held.add(piece[begin:])
        elif piece[begin:].strip(BLANKS):
            self._after_element = False
        return events

    def _taken(self) -> Event:
        element = self._held.take()
        self.too_long += isinstance(element, LongText) and element.size > self._bytes_max
        return element, b""


# Ollama's last line contains the whole context as numbers: up to a million tokens of seven digits.
LINE_BYTES_MAX = 8 << 20


def quiet_lines(payload: bytes) -> int:
    """How many lines `payload` has, if it is fed at their boundary and ends at one. 0: unknown."""
    return payload.count(b"\n") if payload.endswith(b"\n") else 0


class LineFramer(Framer):
    """Finds whole lines. One longer than LINE_BYTES_MAX is reduced to its outline and counted in `too_long`."""

    __slots__ = ("_held", "too_long")

    def __init__(self) -> None:
        self._held = HeldText(LINE_BYTES_MAX)  # the unfinished line
        self.too_long = 0

    @property
    def unread(self) -> UnreadText | None:
        return self._held.unread

    @property
    def at_boundary(self) -> bool:
        return not self._held

    def feed(self, piece: bytes) -> list[Event]:
        *ended, unfinished = piece.split(b"\n")
        events = []
        for line in ended:
            self._held.add(line)
            if (event := self._taken()) is not None:
                events.append(event)
        self._held.add(unfinished)
        return events

    def close(self) -> Event | None:
        """The unterminated last line, if it is not blank."""
        return self._taken()

    def _taken(self) -> Event | None:
        line = self._held.take()
        if isinstance(line, LongText):
            self.too_long += line.size > LINE_BYTES_MAX
            return line, b""
        return (line, b"") if line.strip() else None


class MessageFramer(Framer):
    """The messages of a WebSocket, each fed whole → events without a name."""

    __slots__ = ("_bytes_max", "too_long")

    at_boundary, unread = True, None
    """always so: nothing is kept between two messages"""

    def __init__(self, bytes_max: int = LONG_EVENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.too_long = 0

    def feed(self, piece: bytes) -> list[Event]:
        self.too_long += len(piece) > self._bytes_max
        return [(bounded(piece, self._bytes_max), b"")]

    def close(self) -> None:
        """Always None: no message is unfinished."""


@dataclass(frozen=True, slots=True)
class Framing:
    """A format of streams."""

    content_type: str
    """content type of the answer; if the stream is one long array, that of a JSON document"""
    framer: Callable[[], Framer]
    event: Callable[[bytes, str], bytes]
    """(document, event name or empty) → the bytes of an own event, to insert between two events; empty: impossible"""
    heartbeat: bytes
    """keep-alive bytes to send between two events; empty: none"""
    quiet: Callable[[bytes], int] = lambda payload: 0
    """the number of events of a piece of whole events that has no usage to be stripped; 0: unknown"""


def _sse_event(document: bytes, name: str) -> bytes:
    return b"%bdata: %b\n\n" % (f"event: {name}\n".encode() if name else b"", document)


SSE = Framing("text/event-stream", EventFramer, _sse_event, b": keep-alive\n\n", quiet_events)


# Its clients parse every line as JSON: there is no neutral line for a heartbeat.
NDJSON = Framing("application/x-ndjson", LineFramer, lambda document, name: document + b"\n", b"", quiet_lines)


def _array_event(document: bytes, _name: str) -> bytes:
    # After an element; also closes the array, so that the client can parse it.
    return b",\r\n%b\n]" % document


LONG_SSE = replace(SSE, framer=partial(EventFramer, LONG_EVENT_BYTES_MAX))
JSON_ARRAY = Framing("application/json", partial(JsonArrayFramer, LONG_EVENT_BYTES_MAX), _array_event, b"")

# Between two messages of AWS's streams nothing neutral can be put.
EVENT_STREAM = Framing(CONTENT_TYPE, EventStreamFramer, exception, b"")
CHUNK_STREAM = replace(EVENT_STREAM, framer=partial(EventStreamFramer, chunks=True))
