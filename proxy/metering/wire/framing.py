"""The framings of streams: content type, splitting into events, and the form of our own events.

Invariant: a framer yields the same events for every way of cutting the bytes, in linear time and bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from proxy.metering.wire.event_stream import CONTENT_TYPE, EventStreamFramer, exception
from proxy.metering.wire.json_array import JsonArrayFramer
from proxy.metering.wire.ndjson import LineFramer, quiet_lines
from proxy.metering.wire.sse import Event, EventFramer, quiet_events


class Framer(Protocol):
    """Bytes, cut anywhere → whole events."""

    too_long: int
    """events reduced to their outlines because of their length"""
    damaged: int
    """events whose checksums are wrong"""

    @property
    def at_boundary(self) -> bool:
        """The bytes so far end between two events."""

    def feed(self, piece: bytes) -> list[Event]:
        """The events that `piece` completes, in order."""

    def close(self) -> Event | None:
        """The unfinished last event, if any. The framer is empty afterwards."""


def _unclear(_payload: bytes) -> int:
    return 0


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
    quiet: Callable[[bytes], int] = _unclear
    """the number of events of a piece that begins and ends between two events and has no usage to be stripped; 0:
    unknown"""


def _sse_event(document: bytes, name: str) -> bytes:
    return b"%bdata: %b\n\n" % (f"event: {name}\n".encode() if name else b"", document)


SSE = Framing("text/event-stream", EventFramer, _sse_event, b": keep-alive\n\n", quiet_events)


def _line(document: bytes, _name: str) -> bytes:
    return document + b"\n"


# Its clients parse every line as JSON: there is no neutral line for a heartbeat.
NDJSON = Framing("application/x-ndjson", LineFramer, _line, b"", quiet_lines)


def _array_event(document: bytes, _name: str) -> bytes:
    # After an element; also closes the array, so that the client can parse it.
    return b",\r\n%b\n]" % document


# For events that may contain an image or audio: the limit of plain answers.
LONG_EVENT_BYTES_MAX = 16 << 20
LONG_SSE = replace(SSE, framer=partial(EventFramer, LONG_EVENT_BYTES_MAX))
JSON_ARRAY = Framing("application/json", partial(JsonArrayFramer, LONG_EVENT_BYTES_MAX), _array_event, b"")

# Between two messages of AWS's streams nothing neutral can be put.
EVENT_STREAM = Framing(CONTENT_TYPE, EventStreamFramer, exception, b"")
CHUNK_STREAM = replace(EVENT_STREAM, framer=partial(EventStreamFramer, chunks=True))
