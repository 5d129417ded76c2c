"""The frames of a WebSocket (RFC 6455, section 5): reads those of one side, and makes those for it. Sans-IO.

Invariants: `read` takes at most one frame, so that others can run between two of them, however small they are. A frame
that breaks the protocol or a limit raises, and nothing after it is read. A client's frames are masked, a server's are
not. Text is not decoded. No extension is negotiated.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from aiohttp._websocket.helpers import websocket_mask

# The payload of a close frame, a ping or a pong.
CONTROL_BYTES_MAX = 125
# A message may have so many fragments, and one more for each KiB of its limit. Clients that fragment send 4 KiB each.
FRAGMENTS_MIN = 1_000
FRAGMENT_BYTES = 1024
# Bytes that were read are freed at the end of what was fed, and as soon as they are so many.
READ_BYTES_KEPT = 64 * 1024

PROTOCOL_ERROR, INVALID_TEXT, TOO_BIG = 1002, 1007, 1009
NO_CODE = 1005
"""a close frame without a code; never sent"""
# Those that a close frame may have, besides those of applications. https://www.iana.org/assignments/websocket
_CODES = frozenset((*range(1000, 1004), *range(1007, 1015)))
_CODES_OF_APPLICATIONS = range(3000, 5000)


class Kind(IntEnum):
    """The opcode of a frame."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


_KINDS = {int(kind): kind for kind in Kind}


class Frame(NamedTuple):
    """A complete message or a control frame."""

    kind: Kind
    payload: bytes = b""


PART = Frame(Kind.CONTINUATION)
"""a part of a message was read, and is kept until its end"""


class FrameError(Exception):
    """The other side broke the protocol or a limit."""

    def __init__(self, code: int, reason: str) -> None:
        """`code`, `reason`: of the close frame to send."""
        super().__init__(reason)
        self.code = code
        self.reason = reason


class FrameReader:
    """Feed it with bytes, then call `read` until it returns None."""

    def __init__(self, *, masked: bool, message_bytes_max: int) -> None:
        """`masked`: the frames are a client's."""
        self._is_masked = masked
        self._bytes_max = message_bytes_max
        self._fragments_max = FRAGMENTS_MIN + message_bytes_max // FRAGMENT_BYTES
        self._buffer = bytearray()
        self._at = 0  # the first byte in the buffer that was not read
        self._message = bytearray()  # what came of the message
        self._kind: Kind | None = None  # of the message whose fragments are read; None: none has begun
        self._fragments = 0
        self._left = -1  # bytes of the fragment's payload that were not read; -1: the next byte is the head of a frame
        self._is_last = False  # the fragment is the last of its message
        self._mask = b""  # of the next byte

    @property
    def unread(self) -> int:
        """Bytes that were fed and not read."""
        return len(self._buffer) - self._at

    @property
    def held(self) -> int:
        """Bytes in memory: those that were not read, and the message that has begun."""
        return len(self._buffer) - self._at + len(self._message)

    @property
    def is_amid_message(self) -> bool:
        """True if a message has begun and not ended."""
        return self._kind is not None

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        self._buffer += data

    def clear(self) -> None:
        """Free the memory: no more is read."""
        self._buffer, self._message, self._at = bytearray(), bytearray(), 0

    def read(self) -> Frame | None:
        """The next message or control frame, or PART. None: the rest of it has not been fed. Raises FrameError."""
        frame = self._read_head() if self._left < 0 else None
        if frame is None and self._left >= 0:
            frame = self._read_payload()
        # Also while whole frames wait: a reader that is always one frame behind would keep all bytes in memory.
        if self._at and (frame is None or self._at >= READ_BYTES_KEPT):
            del self._buffer[: self._at]
            self._at = 0
        return frame

    def _read_head(self) -> Frame | None:
        """Read the head of a frame. Returns a whole control frame; None: the head or a payload is still to be read."""
        buffer, at = self._buffer, self._at
        if len(buffer) < at + 2:
            return None
        first, second = buffer[at], buffer[at + 1]
        kind = self._checked(first, second)
        size, start = second & 0x7F, at + 2
        if size > CONTROL_BYTES_MAX:
            start += 2 if size == CONTROL_BYTES_MAX + 1 else 8
            size = int.from_bytes(buffer[at + 2 : start], "big")
            if len(buffer) >= start:
                _check_length(size, start - at - 2)
        if self._is_masked:
            self._mask = bytes(buffer[start : start + 4])
            start += 4
        if len(buffer) < start:
            return None
        if kind >= Kind.CLOSE:
            if len(buffer) < start + size:
                return None
            self._at = start + size
            return Frame(kind, bytes(self._unmasked(buffer[start : self._at])))
        self._check_limits(size)
        self._kind = self._kind or kind
        self._at, self._left, self._is_last = start, size, first >= 0x80
        return None

    def _checked(self, first: int, second: int) -> Kind:
        """The kind of a frame with these two first bytes. Raises FrameError."""
        kind = _KINDS.get(first & 0x0F)
        if kind is None or first & 0x70:
            raise FrameError(PROTOCOL_ERROR, "A frame has an unknown opcode or extension.")
        if (second >= 0x80) is not self._is_masked:
            raise FrameError(PROTOCOL_ERROR, f"A frame is {'not ' if self._is_masked else ''}masked.")
        if kind >= Kind.CLOSE:
            if first < 0x80 or second & 0x7F > CONTROL_BYTES_MAX:
                raise FrameError(PROTOCOL_ERROR, "A control frame is fragmented or too long.")
        elif (kind is Kind.CONTINUATION) is (self._kind is None):
            raise FrameError(PROTOCOL_ERROR, "A fragment belongs to no message, or a message begins within another.")
        return kind

    def _check_limits(self, size: int) -> None:
        """Check the message, with one more fragment of `size`. Raises FrameError."""
        if len(self._message) + size > self._bytes_max:
            raise FrameError(TOO_BIG, f"This message is longer than {self._bytes_max} bytes.")
        self._fragments += 1
        if self._fragments > self._fragments_max:
            raise FrameError(TOO_BIG, "This message has too many fragments.")

    def _read_payload(self) -> Frame | None:
        """Read the bytes of the fragment's payload that have arrived. Returns the frame once it is complete."""
        piece = self._buffer[self._at : self._at + self._left]
        if self._left and not piece:
            return None
        self._unmasked(piece)
        self._at += len(piece)
        self._left -= len(piece)
        if self._left:
            turn = len(piece) % 4
            self._mask = self._mask[turn:] + self._mask[:turn]
        else:
            self._left = -1
            if self._is_last:
                return self._whole(piece)
        self._message += piece
        return PART

    def _whole(self, last: bytearray) -> Frame:
        assert self._kind is not None
        if self._message:
            self._message += last
            last, self._message = self._message, bytearray()
        frame = Frame(self._kind, bytes(last))
        self._kind, self._fragments = None, 0
        return frame

    def _unmasked(self, piece: bytearray) -> bytearray:
        if self._is_masked:
            websocket_mask(self._mask, piece)
        return piece


def head(kind: Kind, size: int, mask: bytes) -> bytes:
    """The head of a frame whose payload has `size` bytes. `mask`: 4 bytes, or empty."""
    first, masked = 0x80 | kind, 0x80 if mask else 0
    if size <= CONTROL_BYTES_MAX:
        return bytes((first, masked | size)) + mask
    if size < 1 << 16:
        return bytes((first, masked | 126)) + size.to_bytes(2, "big") + mask
    return bytes((first, masked | 127)) + size.to_bytes(8, "big") + mask


def _check_length(size: int, written_in: int) -> None:
    """Check a length that was written in so many bytes: the fewest must be used. Raises FrameError."""
    if size <= CONTROL_BYTES_MAX or (written_in > 2 and size < 1 << 16) or size >= 1 << 63:
        raise FrameError(PROTOCOL_ERROR, "The length of a frame is not written in the fewest bytes.")


def masked(payload: bytes, mask: bytes) -> bytes:
    """The payload with the mask, if it is not empty."""
    if not mask:
        return payload
    piece = bytearray(payload)
    websocket_mask(mask, piece)
    return bytes(piece)


def close_of(payload: bytes) -> tuple[int, str]:
    """Code and reason in the payload of a close frame. Raises FrameError."""
    if not payload:
        return NO_CODE, ""
    code = int.from_bytes(payload[:2], "big") if len(payload) > 1 else 0
    if code not in _CODES and code not in _CODES_OF_APPLICATIONS:
        raise FrameError(PROTOCOL_ERROR, "The code of a close frame is invalid.")
    try:
        return code, payload[2:].decode()
    except UnicodeDecodeError:
        raise FrameError(INVALID_TEXT, "The reason in a close frame is not UTF-8.") from None
