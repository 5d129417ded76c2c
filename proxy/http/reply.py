"""A response to a client, written directly to its connection.

Invariants: the head contains validated values only; a body has a known length, is chunked, or (HTTP/1.0) ends with the
connection. When aiohttp gets the connection back, nothing is left to write.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from aiohttp import HttpVersion11, web

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Reply(web.StreamResponse):
    """One response: `begin`, then write the body to the transport, then `end`, or close the transport instead."""

    prepared = True
    """no headers can be added"""
    keep_alive: bool = False
    """the connection may serve another request"""

    def __init__(self, request: web.BaseRequest) -> None:  # not super().__init__: it prepares what aiohttp would write
        self._request = request
        self.keep_alive = bool(request.keep_alive)
        self.chunked_body = False
        """the body must be framed in chunks"""

    def begin(self, status: int, headers: Iterable[tuple[str, str]], *, length: int | None, body: bytes = b"") -> bool:
        """Write the head, and the body if it is complete. False if the client has disconnected."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return False
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
        date, framing = _date(int(time.time())), self._framing(length)
        head = f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n{fields}Date: {date}\r\n{framing}\r\n\r\n"
        written = head.encode("latin-1") + body
        self._request.writer.output_size += len(written)  # so that aiohttp does not send an error after it
        transport.write(written)
        return True

    def switch(self, headers: Iterable[tuple[str, str]]) -> bool:
        """Write the head after which the connection is a WebSocket. False if the client has disconnected."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return False
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{fields}\r\n"
        self.keep_alive = False
        self._request.writer.output_size += len(head)  # so that aiohttp does not send an error after it
        transport.write(head.encode("latin-1"))
        return True

    def _framing(self, length: int | None) -> str:
        old = self._request.version < HttpVersion11
        if length is not None:
            framing = f"Content-Length: {length}"
        elif old:
            framing, self.keep_alive = "", False
        else:
            framing, self.chunked_body = "Transfer-Encoding: chunked", True
        if self.keep_alive:
            return f"{framing}\r\nConnection: keep-alive" if old else framing
        return f"{framing}\r\nConnection: close" if framing else "Connection: close"

    def end(self) -> None:
        """The body is complete."""
        transport = self._request.transport
        if self.chunked_body and transport is not None:
            transport.write(b"0\r\n\r\n")

    async def drained(self) -> None:
        """Wait until the write buffer has drained. Raises ConnectionError if the client disconnects."""
        await self._request.writer.drain()

    # -- called when the handler has returned

    def force_close(self) -> None:
        """Close the connection after this response."""
        self.keep_alive = False

    async def prepare(self, request: web.BaseRequest) -> Any:
        """No-op: `begin` has written the head."""

    async def write_eof(self, data: bytes = b"") -> None:
        """No-op: `end` has ended the body."""


@lru_cache(maxsize=2)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
