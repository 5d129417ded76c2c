"""How HTTP/1.1 frames what a provider sends: a head, then a body of one of three kinds. Sans-IO.

Law: a provider is not trusted for its framing. What two parsers could read differently is refused; a connection whose
answer did not end exactly where its framing says is never used again. What is read of a body does not depend on how
its bytes were cut into pieces, up to the first byte that breaks its framing.
"""

from __future__ import annotations

import re

import msgspec

from proxy.metering.wire.event_template import Wrap

# As large as common servers allow their own answers' heads to be.
HEAD_BYTES_MAX = 64 * 1024
# The same bound for one chunk-size line with its extensions, and for all trailers together.
LINE_BYTES_MAX = 8 * 1024

# Each event in a chunk of its own: the way most providers send them.
EACH_A_CHUNK = Wrap(lambda size: b"%x\r\n" % size, rb"[0-9a-f]{1,8}\r\n", b"\r\n")

# Size lines of ordinary events, ready made: others are read by ChunkReader.
_PLAIN_SIZES = {b"%x" % size: size for size in range(1, 4096)}
_CRLF = re.compile(rb"\r\n")  # half the time of bytes.split for two bytes
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(;[^\r\n]*)?")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\x00-\x08\x0a-\x1f\x7f]*)?")
_FIELDS = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)*")
_LENGTH = re.compile(r"\d{1,15}")


class BadFramingError(Exception):
    """The provider broke HTTP's framing."""


class Head(msgspec.Struct, frozen=True):
    """The head of an answer. Header names are lower case; of repeated ones all are there, in order."""

    status: int
    headers: tuple[tuple[str, str], ...]
    chunked: bool
    length: int | None
    """of the body; None: chunked, or until the connection closes"""
    keep_alive: bool

    def header(self, name: str) -> str:
        """The first header of this (lower-case) name, or an empty string."""
        for each, value in self.headers:
            if each == name:
                return value
        return ""


def read_head(head: bytes) -> Head:
    """`head`: from the status line up to and without the blank line, its last CRLF included. Raises BadFramingError."""
    line_end = head.find(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(head, 0, line_end)
    if status_line is None or _FIELDS.fullmatch(head, line_end + 2) is None:
        raise BadFramingError("not the head of an HTTP/1 answer")
    headers = []
    lengths: set[str] = set()
    codings: list[str] = []
    connection = ""
    for line in head[line_end + 2 : -2].decode("latin-1").split("\r\n") if line_end + 2 < len(head) else ():
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name == "content-length":
            lengths.add(value)
        elif name == "transfer-encoding":
            codings.append(value.lower())
        elif name == "connection":
            connection += "," + value.lower()
        else:
            headers.append((name, value))
    status = int(status_line[2])
    chunked, length = _body(status, lengths, codings)
    options = connection.replace(" ", "").split(",")
    stays = "close" not in options and (status_line[1] == b"1" or "keep-alive" in options)
    return Head(status, tuple(headers), chunked, length, stays and (chunked or length is not None))


def _body(status: int, lengths: set[str], codings: list[str]) -> tuple[bool, int | None]:
    if status < 200 or status in (204, 304):
        return False, 0
    if codings:
        if codings != ["chunked"] or lengths:
            raise BadFramingError("more than one framing")
        return True, None
    if not lengths:
        return False, None
    length = lengths.pop()
    if lengths or _LENGTH.fullmatch(length) is None:
        raise BadFramingError("not one content length")
    return False, int(length)


def whole_chunks(piece: bytes) -> bytes | None:
    """The payload of a piece that is one or more whole, plain chunks and nothing else; None if it takes a closer look.

    The hot path: what is done per chunk is done by the interpreter's own loops.
    """
    end = piece.find(b"\r\n", 0, 6)
    if _PLAIN_SIZES.get(piece[:end]) == len(piece) - end - 4 and piece.endswith(b"\r\n"):
        return piece[end + 2 : -2]
    # Several chunks: size, payload, size, payload, …, and nothing after the last CRLF.
    parts = _CRLF.split(piece)
    payloads = parts[1::2]
    if parts.pop() or len(parts) % 2 or list(map(_PLAIN_SIZES.get, parts[::2])) != list(map(len, payloads)):
        return None
    return b"".join(payloads)


class ChunkReader:
    """Takes chunked framing apart, at any cut.

    `feed` returns the payload of the piece and whether the piece was whole chunks and nothing else. `rest` is None
    until the body has ended, trailers included; then it is what followed (nothing, if the provider behaves). `broken`
    says why nothing after the payload that was returned can be read.
    """

    __slots__ = ("_left", "_line", "_trailers", "broken", "rest", "within_chunk")

    def __init__(self) -> None:
        self._left = 0  # bytes to come of the current chunk, its CRLF included
        self._line = b""  # an unfinished size line
        self._trailers: bytes | None = None  # what came after the final chunk's size line
        self.rest: bytes | None = None
        self.broken: BadFramingError | None = None
        self.within_chunk = False
        """the piece ended within a chunk or a size line, or within the trailers"""

    def feed(self, piece: bytes) -> tuple[bytes, bool]:
        """More of the body, as long as it is not `broken`."""
        assert self.broken is None, "nothing can be read after a break"
        parts: list[bytes] = []
        whole = False
        try:
            whole = self._feed(piece, parts)
        except BadFramingError as error:  # what came before it is good, wherever the reads were cut
            self.broken = error
        return (parts[0] if len(parts) == 1 else b"".join(parts)), whole

    def _feed(self, piece: bytes, parts: list[bytes]) -> bool:
        whole = not self.within_chunk
        if self._line:
            piece = self._line + piece
            self._line = b""
        at = 0
        while at < len(piece) and self._trailers is None:
            if self._left:
                at = self._take(piece, at, parts)
                continue
            end = piece.find(b"\r\n", at)
            if (len(piece) - 1 if end < 0 else end) - at > LINE_BYTES_MAX:  # the last byte may begin the line's end
                raise BadFramingError("a chunk-size line is too long")
            if end < 0:
                self._line = piece[at:]
                break
            size, plain = _size(piece[at:end])
            at = end + 2
            whole = whole and plain and size > 0
            if size:
                self._left = size + 2
            else:
                self._trailers = b""
        if self._trailers is not None:
            self._read_trailers(piece[at:])
        self.within_chunk = bool(self._left or self._line or self._trailers is not None)
        return whole and not self.within_chunk

    def _take(self, piece: bytes, at: int, parts: list[bytes]) -> int:
        """The next bytes of the current chunk, then its CRLF, wherever the cut falls."""
        taken = piece[at : at + self._left]
        payload_left = self._left - 2
        if payload_left > 0:
            parts.append(taken[:payload_left])
        ending = taken[max(0, payload_left) :]
        if not b"\r\n"[max(0, -payload_left) :].startswith(ending):
            raise BadFramingError("a chunk is longer than its size")
        self._left -= len(taken)
        return at + len(taken)

    def _read_trailers(self, more: bytes) -> None:
        assert self._trailers is not None
        seen = b"\r\n" + self._trailers + more  # the final chunk's own line end may be the first of the two
        end = seen.find(b"\r\n\r\n")
        if (len(seen) - 3 if end < 0 else end) > LINE_BYTES_MAX:  # the last three may begin the end
            raise BadFramingError("the trailers are too long")
        if end >= 0:
            if _FIELDS.fullmatch(seen, 2, end + 2) is None:
                raise BadFramingError("not trailers")
            self.rest = seen[end + 4 :]
        self._trailers = seen[2:]


def _size(line: bytes) -> tuple[int, bool]:
    match = _SIZE_LINE.fullmatch(line)
    if match is None:
        raise BadFramingError("not a chunk-size line")
    return int(match[1], 16), match[2] is None


class LengthReader:
    """A body of a known length, or (None) one that ends with the connection: no framing to keep."""

    __slots__ = ("_left", "rest")

    broken = None
    """it never is"""

    def __init__(self, length: int | None) -> None:
        self._left = length
        self.rest: bytes | None = b"" if length == 0 else None

    def feed(self, piece: bytes) -> tuple[bytes, bool]:
        """More of the body."""
        if self._left is None:
            return piece, False
        payload = piece[: self._left]
        self._left -= len(payload)
        if not self._left:
            self.rest = piece[len(payload) :]
        return payload, False

    @property
    def ends_with_connection(self) -> bool:
        """True if a close is the proper end."""
        return self._left is None
