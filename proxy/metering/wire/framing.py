"""How the events of a stream stand on the wire: which answers are such streams, who finds their events, how one of our
own is added.

Law: a framer gives the same events for every way of cutting the bytes, in linear time and bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from proxy.metering.wire.json_array import JsonArrayFramer
from proxy.metering.wire.ndjson import LineFramer
from proxy.metering.wire.sse import Event, EventFramer


class Framer(Protocol):
    """Bytes in any cut → whole events."""

    too_long: int
    """events that were skipped because of their length"""

    @property
    def at_boundary(self) -> bool:
        """The bytes so far end between two events."""

    def feed(self, piece: bytes) -> list[Event]:
        """The events that `piece` completes, in order."""

    def close(self) -> Event | None:
        """What an unterminated last event holds. The framer is empty afterwards."""


@dataclass(frozen=True, slots=True)
class Framing:
    """One way to write a stream."""

    content_type: str
    """of the answers that are written so; a JSON document's, where a stream is one long array"""
    framer: Callable[[], Framer]
    event: Callable[[bytes, str], bytes]
    """one document and the event's name (empty: none) → an event of our own, to stand between two others; empty: there
    is no place for one"""
    beat: bytes
    """what a waiting client may get between two events, to see that we live; empty: nothing"""


def _sse_event(document: bytes, name: str) -> bytes:
    return b"%bdata: %b\n\n" % (f"event: {name}\n".encode() if name else b"", document)


SSE = Framing("text/event-stream", EventFramer, _sse_event, b": keep-alive\n\n")


def _line(document: bytes, _name: str) -> bytes:
    return document + b"\n"


# Its clients take every line for JSON: there is nothing to send that says nothing.
NDJSON = Framing("application/x-ndjson", LineFramer, _line, b"")


def _array_event(document: bytes, _name: str) -> bytes:
    # Behind an element of an array that nobody else will close: the client's parser is to see a whole one.
    return b",\r\n%b\n]" % document


# For events that can be an image or a recording: as long as a plain answer may be.
LONG_EVENT_BYTES_MAX = 16 << 20
LONG_SSE = replace(SSE, framer=partial(EventFramer, LONG_EVENT_BYTES_MAX))
JSON_ARRAY = Framing("application/json", partial(JsonArrayFramer, LONG_EVENT_BYTES_MAX), _array_event, b"")
