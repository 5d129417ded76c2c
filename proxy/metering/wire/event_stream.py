"""Bytes, cut anywhere → the messages of AWS's binary event stream (`application/vnd.amazon.eventstream`).

A message has a prelude (its length, the length of its headers, their checksum), headers, a payload and a checksum of
all of it. https://smithy.io/2.0/aws/amazon-eventstream.html

Invariants: only a whole message with right checksums is an event: its payload, named by its type; exceptions and errors
are named `error`. Of other bytes only the size is reported, as a `LongText` without an outline: a damaged message, one
longer than MESSAGE_BYTES_MAX, and everything after a damaged prelude, which hides where the next message begins. The
events are the same for every way of cutting the bytes. Memory is bounded, time is linear.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from zlib import crc32

import msgspec

from proxy.metering.wire.outline import LongText, bounded
from proxy.metering.wire.sse import Event, Framer

# A quarter of the longest payload of the format's specification: the checksum and base64 of more take too long at once.
MESSAGE_BYTES_MAX = 4 << 20
# Headers of a message: those of the provider have 200 bytes.
_HEADERS_BYTES_MAX = 8 << 10
# Unreadable bytes are reported in blocks of this size, so that their cost is known while they arrive.
_BLOCK_BYTES = 4096

_PRELUDE = Struct(">III")
_CRC = Struct(">I")
_SHORT = Struct(">H")
_PRELUDE_BYTES, _CRC_BYTES = _PRELUDE.size, _CRC.size
_LEAST_BYTES = _PRELUDE_BYTES + _CRC_BYTES
# Types of a header's value: a size, or that of a length before the value. Of all types, texts alone are read.
_FIXED_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_BYTES, _TEXT = 6, 7

CONTENT_TYPE = "application/vnd.amazon.eventstream"
ERROR = b"error"
"""the name of exceptions and errors"""
_ERROR_TYPES = (b"exception", b"error")
_CHUNK = b"chunk"


class _Chunk(msgspec.Struct):
    document: bytes = msgspec.field(name="bytes")


_chunk = msgspec.json.Decoder(_Chunk).decode


class EventStreamFramer(Framer):
    """Finds whole messages. `chunks`: those named `chunk` hold a document in base64, which is the event."""

    unread = None
    """always None: of a message that is too long no outline is kept"""

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX, *, chunks: bool = False) -> None:
        self._bytes_max = bytes_max
        self._chunks = chunks
        self._held = bytearray()  # the unfinished message
        self._needed = _PRELUDE_BYTES  # bytes of it, before anything can be done
        self._passing = 0  # bytes that are still to come of a message that is too long
        self._lost = False  # no further message can be found
        self._damaged_bytes = 0  # unreadable bytes that were not reported yet
        self.too_long = 0
        self.damaged = 0

    @property
    def at_boundary(self) -> bool:
        return not (self._held or self._passing or self._lost)

    def feed(self, piece: bytes) -> list[Event]:
        events: list[Event] = []
        if self._lost or self._passing:
            piece = self._pass(piece, events)
        held = self._held
        held += piece
        if len(held) < self._needed:
            return events
        at = 0
        while not self._lost and (size := self._size(at)) is not None:
            if size > self._bytes_max:
                self.too_long += 1
                self._passing = size
                rest = self._pass(bytes(held[at:]), events)
                at = len(held) - len(rest)
            else:
                events.append(self._event(bytes(held[at : at + size])))
                at += size
        if self._lost:
            self._pass(bytes(held[at:]), events)
            at = len(held)
        del held[:at]
        return events

    def close(self) -> Event | None:
        """The size of unreadable bytes at the end; None for a short beginning of a message, which no client can read.
        The framer is empty afterwards."""
        unread = self._damaged_bytes + (len(self._held) if len(self._held) >= _BLOCK_BYTES else 0)
        self._held.clear()
        self._needed, self._passing, self._lost, self._damaged_bytes = _PRELUDE_BYTES, 0, False, 0
        return _sized(unread) if unread else None

    def _size(self, at: int) -> int | None:
        """The size of the message at `at`; None if too few bytes have arrived, or they are no message."""
        held = self._held
        there = len(held) - at
        if there < _PRELUDE_BYTES:
            self._needed = _PRELUDE_BYTES
            return None
        size, headers, crc = _PRELUDE.unpack_from(held, at)
        if crc32(held[at : at + _PRELUDE_BYTES - _CRC_BYTES]) != crc or size < _LEAST_BYTES + headers:
            self.damaged += 1
            self._lost = True
            return None
        if there < size <= self._bytes_max:
            self._needed = size
            return None
        return int(size)

    def _event(self, message: bytes) -> Event:
        size, headers, _ = _PRELUDE.unpack_from(message)
        begin = _PRELUDE_BYTES + headers
        texts = None
        if crc32(message[:-_CRC_BYTES]) == _CRC.unpack_from(message, size - _CRC_BYTES)[0]:
            texts = _texts(message[_PRELUDE_BYTES:begin])
        event = None if texts is None else self._named(texts, message[begin:-_CRC_BYTES])
        if event is None:
            self.damaged += 1
            return _sized(size)
        return event

    def _named(self, headers: Mapping[bytes, bytes], payload: bytes) -> Event | None:
        if headers.get(b":message-type") in _ERROR_TYPES:
            return payload, ERROR
        name = headers.get(b":event-type", b"")
        if not (self._chunks and name == _CHUNK):
            return bounded(payload), name
        try:
            return bounded(_chunk(payload).document), name
        except msgspec.MsgspecError:
            return None

    def _pass(self, piece: bytes, events: list[Event]) -> bytes:
        """Count bytes that cannot be read; returns those after them."""
        end = len(piece) if self._lost else min(self._passing, len(piece))
        self._damaged_bytes += end
        while self._damaged_bytes >= _BLOCK_BYTES:
            events.append(_sized(_BLOCK_BYTES))
            self._damaged_bytes -= _BLOCK_BYTES
        if not self._lost:
            self._passing -= end
            if not self._passing and self._damaged_bytes:
                events.append(_sized(self._damaged_bytes))
                self._damaged_bytes = 0
            self._needed = _PRELUDE_BYTES
        return piece[end:]


def _sized(size: int) -> Event:
    """An event of which only the size is known. It has the flags of its framer."""
    unread = LongText()
    unread.lacks = False
    unread.size = unread.dropped = size
    return unread, b""


def _texts(headers: bytes) -> dict[bytes, bytes] | None:
    """The headers that are texts; None if they are malformed, or too long."""
    if len(headers) > _HEADERS_BYTES_MAX:
        return None
    texts: dict[bytes, bytes] = {}
    at, end = 0, len(headers)
    while at < end:
        name_end = at + 1 + headers[at]
        if name_end >= end:
            return None
        kind = headers[name_end]
        begin = name_end + 1
        if kind in (_BYTES, _TEXT):
            if begin + _SHORT.size > end:
                return None
            size = _SHORT.unpack_from(headers, begin)[0]
            begin += _SHORT.size
        elif (fixed := _FIXED_SIZES.get(kind)) is not None:
            size = fixed
        else:
            return None
        if begin + size > end:
            return None
        if kind == _TEXT:
            texts[headers[at + 1 : name_end]] = headers[begin : begin + size]
        at = begin + size
    return texts


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """A whole message."""
    encoded = b"".join(
        b"%c%b%c%b%b" % (len(name), name.encode(), _TEXT, _SHORT.pack(len(value.encode())), value.encode())
        for name, value in headers.items()
    )
    prelude = Struct(">II").pack(_LEAST_BYTES + len(encoded) + len(payload), len(encoded))
    body = prelude + _CRC.pack(crc32(prelude)) + encoded + payload
    return body + _CRC.pack(crc32(body))


def exception(document: bytes, name: str) -> bytes:
    """A message that ends a stream with an error."""
    headers = {":message-type": "exception", ":exception-type": name, ":content-type": "application/json"}
    return message(headers, document)
