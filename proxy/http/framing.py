"""Parses the HTTP/1.1 framing of a provider's response: a head, then a body of one of three kinds. Sans-IO.

Invariants: the provider's framing is untrusted. Ambiguous framing is refused; a connection is reused only if the
response ended exactly where its framing says. The payload does not depend on how the bytes are split into pieces, up to
the first framing error.
"""

from __future__ import annotations

import re

import msgspec

from proxy.metering.wire.event_template import Wrap

# The limit of common servers for response heads.
HEAD_BYTES_MAX = 64 * 1024
# The limit for one chunk-size line with its extensions, and for all trailers together.
LINE_BYTES_MAX = 8 * 1024

# Each event in its own chunk, as most providers send them.
EACH_A_CHUNK = Wrap(lambda size: b"%x\r\n" % size, rb"[0-9a-f]{1,8}\r\n", b"\r\n")

# Size lines of ordinary events; ChunkReader parses all others.
_PLAIN_SIZES = {b"%x" % size: size for size in range(1, 4096)}
_LAST_CHUNK = b"0\r\n\r\n"
_CRLF = re.compile(rb"\r\n")  # twice as fast as bytes.split
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(;[^\r\n]*)?")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\x00-\x08\x0a-\x1f\x7f]*)?")
_FIELDS = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)*")
_FIELD = re.compile(r"\n([^:]+):[ \t]*((?:[^ \t\r]|[ \t]+(?![ \t\r]))*)")  # of a head in which _FIELDS matches
_LENGTH = re.compile(r"\d{1,15}")


class BadFramingError(Exception):
    """The provider broke HTTP's framing."""


class Head(msgspec.Struct, frozen=True):
    """The head of a response. Header names are lower case; repeated headers are all kept, in order."""

    status: int
    headers: tuple[tuple[str, str], ...]
    chunked: bool
    length: int | None
    """length of the body in bytes; None: chunked, or until the connection closes"""
    keep_alive: bool

    def header(self, name: str) -> str:
        """The first header of this (lower-case) name, or an empty string."""
        for each, value in self.headers:
            if each == name:
                return value
        return ""


def read_head(head: bytes) -> Head:
    """`head`: the status line and the headers, each with its CRLF, without the blank line. Raises BadFramingError."""
    line_end = head.find(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(head, 0, line_end)
    if status_line is None or _FIELDS.fullmatch(head, line_end + 2) is None:
        raise BadFramingError("not the head of an HTTP/1 response")
    headers = []
    lengths: set[str] = set()
    codings: list[str] = []
    connection = ""
    for name, value in _FIELD.findall(head[line_end:].decode("latin-1")):
        name = name.lower()
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
            raise BadFramingError("conflicting Transfer-Encoding and Content-Length")
        return True, None
    if not lengths:
        return False, None
    length = lengths.pop()
    if lengths or _LENGTH.fullmatch(length) is None:
        raise BadFramingError("conflicting or invalid Content-Length")
    return False, int(length)


def whole_chunks(piece: bytes) -> bytes | None:
    """The payload of a piece of complete, plain chunks only; None for any other piece, which ChunkReader parses.

    Hot path: the work per chunk is done by built-in functions.
    """
    end = piece.find(b"\r\n", 0, 6)
    if piece[-2:] == b"\r\n" and _PLAIN_SIZES.get(piece[:end]) == len(piece) - end - 4:
        return piece[end + 2 : -2]
    # Several chunks: size, payload, size, payload, …, then nothing after the last CRLF.
    parts = _CRLF.split(piece)
    payloads = parts[1::2]
    if parts.pop() or len(parts) % 2 or list(map(_PLAIN_SIZES.get, parts[::2])) != list(map(len, payloads)):
        return None
    return b"".join(payloads)


class ChunkReader:
    """Decodes chunked framing, however the bytes are split.

    `feed` returns the payload of the piece, and whether the piece consists of complete chunks only, with plain size
    lines (digits only). `rest` is None until the body and its trailers have ended; then it holds the bytes that
    followed (normally none). `broken` is the error that ended the parsing, after the returned payload.
    """

    __slots__ = ("_left", "_line", "_trailers", "broken", "rest", "within_chunk")

    def __init__(self) -> None:
        self._left = 0  # missing bytes of the current chunk, its CRLF included
        self._line = b""  # an incomplete size line
        self._trailers: bytes | None = None  # the bytes after the final chunk's size line
        self.rest: bytes | None = None
        self.broken: BadFramingError | None = None
        self.within_chunk = False
        """the piece ended within a chunk or a size line, or within the trailers"""

    def afresh(self) -> ChunkReader:
        """A reader of the same body, from its begin."""
        return ChunkReader()

    def feed(self, piece: bytes) -> tuple[bytes, bool]:
        """Parse the next piece of the body. Not to be called once `broken` is set."""
        assert self.broken is None, "nothing can be parsed after a framing error"
        if piece.endswith(_LAST_CHUNK) and not self.within_chunk:
            before = piece[: -len(_LAST_CHUNK)]
            payload = whole_chunks(before) if before else before
            if payload is not None:
                self.rest, self.within_chunk = b"", True
                return payload, False
        parts: list[bytes] = []
        whole = False
        try:
            whole = self._feed(piece, parts)
        except BadFramingError as error:  # the payload before it is valid, however the bytes were split
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
        """Take the next bytes of the current chunk and of its CRLF; return the new position."""
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
        trailers = b"\r\n" + self._trailers + more  # the size line's CRLF may be the first of the final two
        end = trailers.find(b"\r\n\r\n")
        if (len(trailers) - 3 if end < 0 else end) > LINE_BYTES_MAX:  # the last three bytes may begin the end
            raise BadFramingError("the trailers are too long")
        if end >= 0:
            if _FIELDS.fullmatch(trailers, 2, end + 2) is None:
                raise BadFramingError("invalid trailers")
            self.rest = trailers[end + 4 :]
        self._trailers = trailers[2:]


def _size(line: bytes) -> tuple[int, bool]:
    """The size, and whether the line has digits only: another parser could read anything else differently."""
    match = _SIZE_LINE.fullmatch(line)
    if match is None:
        raise BadFramingError("invalid chunk-size line")
    return int(match[1], 16), match.end(1) == len(line)


class LengthReader:
    """Reads a body of known length, or (None) one that ends with the connection."""

    __slots__ = ("_left", "_length", "rest")

    broken = None
    """always None: no framing can be violated"""

    def __init__(self, length: int | None) -> None:
        self._length = self._left = length
        self.rest: bytes | None = b"" if length == 0 else None

    def feed(self, piece: bytes) -> tuple[bytes, bool]:
        """Take the next piece of the body."""
        if self._left is None:
            return piece, False
        payload = piece[: self._left]
        self._left -= len(payload)
        if not self._left:
            self.rest = piece[len(payload) :]
        return payload, False

    def afresh(self) -> LengthReader:
        """A reader of the same body, from its begin."""
        return LengthReader(self._length)

    @property
    def ends_with_connection(self) -> bool:
        """True if closing the connection ends the body."""
        return self._left is None
