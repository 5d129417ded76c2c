"""A raw HTTP/1.1 client for tests: exact bytes up, exact bytes and their times down, and rude ways to leave.

Law: it reads only when it is asked to (a client that does not read leaves the kernel's window to fill), adds
nothing to what it is told to send, and believes nothing: an answer without its proper end is not complete.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle, islice
from typing import Any
from urllib.parse import urlsplit

READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a body and when they came, in seconds of the monotonic clock."""

    body: bytes
    at_s: float


@dataclass(slots=True)
class Response:
    """One received answer; it grows while it is read."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    head: bytes
    """status line and headers with the blank line, exactly"""
    head_at_s: float
    pieces: list[Piece] = field(default_factory=list)
    """the body without its framing, as it arrived"""
    chunk_sizes: list[int] = field(default_factory=list)
    """sizes of the complete HTTP chunks, without the last one of size 0"""
    trailers: list[tuple[str, str]] = field(default_factory=list)
    wire_parts: list[bytes] = field(default_factory=list)
    ended: str = "open"
    """open, complete (by its framing), cut (closed before), reset"""

    @property
    def body(self) -> bytes:
        """The body without its framing."""
        return b"".join(piece.body for piece in self.pieces)

    @property
    def wire(self) -> bytes:
        """Everything after the head, framing included, exactly."""
        return b"".join(self.wire_parts)

    def header(self, name: str) -> str | None:
        """The first header of that name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class _Found:
    """Whether a body has `until` in it, or `size` bytes. Each byte is looked at once."""

    def __init__(self, response: Response, until: bytes | None, size: int | None) -> None:
        self._response, self._until, self._size = response, until, size
        self._body = bytearray()
        self._pieces = 0

    def now(self) -> bool:
        before = len(self._body)
        for piece in self._response.pieces[self._pieces :]:
            self._body += piece.body
        self._pieces = len(self._response.pieces)
        if self._size is not None and len(self._body) >= self._size:
            return True
        return self._until is not None and self._body.find(self._until, max(0, before - len(self._until))) >= 0


class RawClient:
    """One connection. Use `async with await RawClient.connect(…)`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unread = b""
        self._body: _BodyReader | None = None

    @classmethod
    async def connect(
        cls, host: str, port: int, *, receive_buffer_bytes: int | None = None, source: str | None = None
    ) -> RawClient:
        """Connect. A small `receive_buffer_bytes` lets the window of one that stops reading fill soon; `source`: the
        address to come from (all of 127.0.0.0/8 is this machine)."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if source is not None:
            sock.bind((source, 0))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def send(self, wire: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, wire)

    async def read_head(self, timeout_s: float = 10) -> Response:
        """Read status line and headers. Raises EOFError if the connection ends before."""
        async with asyncio.timeout(timeout_s):
            while b"\r\n\r\n" not in self._unread:
                if not await self._more():
                    raise EOFError(f"closed in the head: {self._unread!r}")
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        _, status, reason = (*status_line.split(" ", 2), "")[:3]
        response = Response(int(status), reason, _header_pairs(lines), head + b"\r\n\r\n", time.monotonic())
        self._body = _BodyReader(response)
        return response

    async def read_body(
        self, response: Response, *, until: bytes | None = None, size: int | None = None, timeout_s: float = 10
    ) -> Response:
        """Read until the body ends, contains `until`, or has `size` bytes; `response.ended` is its state."""
        assert self._body is not None
        assert self._body.response is response
        found = _Found(response, until, size)
        async with asyncio.timeout(timeout_s):
            self._unread = self._body.feed(self._unread)
            while response.ended == "open" and not found.now():
                try:
                    arrived = await self._more()
                except ConnectionError:
                    response.ended = "reset"
                    break
                if arrived:
                    self._unread = self._body.feed(self._unread)
                else:
                    response.ended = self._body.ended_by_close()
        return response

    async def read(self, timeout_s: float = 10) -> Response:
        return await self.read_body(await self.read_head(timeout_s), timeout_s=timeout_s)

    async def read_to_end(self, timeout_s: float = 10) -> bytes:
        """Every byte until the other side closes, for answers that are not HTTP."""
        async with asyncio.timeout(timeout_s):
            while await self._more():
                pass
        taken, self._unread = self._unread, b""
        return taken

    def half_close(self) -> None:
        """Send FIN, and keep reading."""
        self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Disconnect with an RST."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._sock.close()

    async def _more(self) -> bool:
        arrived = await asyncio.get_running_loop().sock_recv(self._sock, READ_BYTES)
        self._unread += arrived
        return bool(arrived)


class _BodyReader:
    """Decodes the framing of one body, also byte by byte."""

    def __init__(self, response: Response) -> None:
        self.response = response
        self._unread = b""
        self._left = 0
        """bytes of body before the next framing"""
        length = response.header("content-length")
        bodyless = response.status in {204, 304}
        if (response.header("transfer-encoding") or "").lower() == "chunked":
            self._step = self._size_line
        elif length is not None or bodyless:
            self._left, self._step = int(length or 0), self._by_length
        else:
            self._step = self._by_close

    def feed(self, arrived: bytes) -> bytes:
        """Feed bytes; returns those after the end of the body."""
        self._unread += arrived
        while self.response.ended == "open" and self._step():
            pass
        over = b""
        if self.response.ended == "complete":
            over, self._unread = self._unread, b""
        self.response.wire_parts.append(arrived[: len(arrived) - len(over)])
        return over

    def ended_by_close(self) -> str:
        """The state of the answer if the connection closes now."""
        return "complete" if self._step == self._by_close else "cut"

    def _by_close(self) -> bool:
        return self._emit(len(self._unread))

    def _by_length(self) -> bool:
        moved = self._emit(self._left)
        if not self._left:
            self.response.ended = "complete"
        return moved

    def _size_line(self) -> bool:
        line, end, rest = self._unread.partition(b"\r\n")
        if not end:
            return False
        self._unread, self._left = rest, int(line.split(b";")[0], 16)
        self._step = self._in_chunk if self._left else self._trailer_line
        if self._left:
            self.response.chunk_sizes.append(self._left)
        return True

    def _in_chunk(self) -> bool:
        if self._left:
            return self._emit(self._left)
        if len(self._unread) < len(b"\r\n"):
            return False
        assert self._unread.startswith(b"\r\n"), f"no line end after a chunk: {self._unread[:20]!r}"
        self._unread, self._step = self._unread[2:], self._size_line
        return True

    def _trailer_line(self) -> bool:
        line, end, rest = self._unread.partition(b"\r\n")
        if not end:
            return False
        self._unread = rest
        if line:
            self.response.trailers += _header_pairs([line.decode("latin-1")])
        else:
            self.response.ended = "complete"
        return True

    def _emit(self, bytes_max: int) -> bool:
        body, self._unread = self._unread[:bytes_max], self._unread[bytes_max:]
        if body:
            self.response.pieces.append(Piece(body, time.monotonic()))
            self._left -= len(body)
        return bool(body)


def _header_pairs(lines: list[str]) -> list[tuple[str, str]]:
    return [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]


def chat_request(
    body: Mapping[str, Any] | bytes,
    *,
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
) -> bytes:
    """The bytes of one POST with `body` as JSON (or as it is), its length, and a bearer `key`."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": "test", "Content-Type": "application/json", "Content-Length": str(len(raw))}
    if key is not None:
        fields["Authorization"] = f"Bearer {key}"
    fields |= headers or {}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + raw


def ask(model: str, *, stream: bool = True, usage: bool | None = None, **more: Any) -> dict[str, Any]:
    """A small chat request body; `usage` is what `stream_options.include_usage` says, None: not there."""
    options = {} if usage is None else {"stream_options": {"include_usage": usage}}
    messages = [{"role": "user", "content": "How much water goes over the weir?"}]
    return {"model": model, "messages": messages, "stream": stream, **options, **more}


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], **options: Any
) -> AsyncIterator[str]:
    """A raw server, for as long as the block lasts: its URL. `options`: those of `asyncio.start_server`."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    with closing(server):
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def connect(url: str, *, receive_buffer_bytes: int | None = None, source: str | None = None) -> RawClient:
    where = urlsplit(url)
    assert where.hostname is not None
    assert where.port is not None
    return await RawClient.connect(where.hostname, where.port, receive_buffer_bytes=receive_buffer_bytes, source=source)


async def post_chat(
    url: str, body: Mapping[str, Any] | bytes, *, timeout_s: float = 10, source: str | None = None, **options: Any
) -> Response:
    """One chat request over a connection of its own, read to its end. `options`: those of `chat_request`."""
    async with await connect(url, source=source) as client:
        await client.send(chat_request(body, **options))
        return await client.read(timeout_s)


@cache
def closed_port() -> int:
    """A TCP port of the loopback interface on which nobody listens, nor will: it stays taken as long as this process
    lives. (A port that was free a moment ago may be the one that another test's server gets.)"""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    port = int(sock.getsockname()[1])
    sock.detach()  # never to be closed
    return port


# Below the ports that systems give to outgoing connections and to who asks for any: nobody else comes upon one of these
# between its choice and the start of a server. Each process begins elsewhere and takes none twice.
@cache
def _ports(_process: int) -> Iterator[int]:
    return islice(cycle(range(10_000, 32_000)), secrets.randbelow(22_000), None)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on just now, and that this process has not had yet."""
    for port in _ports(os.getpid()):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the ports never end")
