"""The answer to a client, written straight to its connection.

Law: the head is made of checked values only; a body has a known length, or is chunked, or (HTTP/1.0) ends with the
connection. When aiohttp takes the connection back it finds nothing left to do.
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
    """One answer. `begin`, then the body by whoever has the transport, then `end`, or close the transport instead."""

    def __init__(self, request: web.BaseRequest) -> None:  # aiohttp's own set-up is for what it would write itself
        self._request = request
        self._kept = bool(request.keep_alive)
        self.chunked_body = False
        """the body is to be framed in chunks"""

    def begin(self, status: int, headers: Iterable[tuple[str, str]], *, length: int | None, body: bytes = b"") -> bool:
        """Write the head, and with it the body if it is at hand. False if the client has gone."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return False
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
        date, framing = _date(int(time.time())), self._framing(length)
        head = f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n{fields}Date: {date}\r\n{framing}\r\n\r\n"
        written = head.encode("latin-1") + body
        self._request.writer.output_size += len(written)  # aiohttp must not answer once more if a bug of ours shows
        transport.write(written)
        return True

    def _framing(self, length: int | None) -> str:
        old = self._request.version < HttpVersion11
        if length is not None:
            framing = f"Content-Length: {length}"
        elif old:
            framing, self._kept = "", False
        else:
            framing, self.chunked_body = "Transfer-Encoding: chunked", True
        if self._kept:
            return f"{framing}\r\nConnection: keep-alive" if old else framing
        return f"{framing}\r\nConnection: close" if framing else "Connection: close"

    def end(self) -> None:
        """The body is whole."""
        transport = self._request.transport
        if self.chunked_body and transport is not None:
            transport.write(b"0\r\n\r\n")

    async def drained(self) -> None:
        """Wait until the client has taken enough. Raises ConnectionError if it leaves."""
        await self._request.writer.drain()

    # -- what aiohttp asks when the handler has returned

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may serve another request."""
        return self._kept

    def force_close(self) -> None:
        """It may not."""
        self._kept = False

    async def prepare(self, request: web.BaseRequest) -> Any:
        """Nothing is left to do."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to do."""


@lru_cache(maxsize=2)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
