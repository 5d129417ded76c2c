"""An HTTP proxy that opens tunnels, or fails in a way that is scripted.

Invariant: it remembers the heads of all requests, so that a test can look for what should not be in them.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

Behaviour = Literal[
    "tunnels", "forbids", "unauthorized", "fails", "hangs", "closes", "closes_in_head", "garbage", "endless", "adds"
]

OPENED = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n"
# Bytes before the proxy closes the connection; the others are below.
_ANSWERS: Mapping[Behaviour, bytes] = {
    "forbids": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\nno way",
    "unauthorized": b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n",
    "fails": b"HTTP/1.0 502 Bad Gateway\r\n\r\n",
    "closes": b"",
    "closes_in_head": OPENED[:20],
    "garbage": b"\x16\x03\x01 this is not HTTP",
    "adds": OPENED + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
}
PIECE_BYTES = 16 * 1024


@dataclass
class ConnectProxy:
    """The script of the proxy, and the heads of received requests."""

    behaviour: Behaviour = "tunnels"
    credentials: str | None = None
    """required `user:password`"""
    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    open: int = 0
    """open connections to the proxy"""

    @property
    def targets(self) -> list[str]:
        """The hosts of all tunnels that were requested."""
        return [head.split(b" ")[1].decode() for head in self.heads]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        behaviour = self.behaviour if self._may(head) else "unauthorized"
        if behaviour == "tunnels":
            await self._tunnel(head, reader, writer)
        elif behaviour == "hangs":
            await reader.read()
        elif behaviour == "endless":
            writer.write(OPENED[:-2])
            while not reader.at_eof() and not writer.is_closing():
                writer.write(b"X-Padding: " + b"x" * PIECE_BYTES + b"\r\n")
                await writer.drain()
        else:
            writer.write(_ANSWERS[behaviour])
            await writer.drain()

    def _may(self, head: bytes) -> bool:
        if self.credentials is None:
            return True
        return b"\r\nProxy-Authorization: Basic " + b64encode(self.credentials.encode()) + b"\r\n" in head

    async def _tunnel(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = head.split(b" ")[1].decode().rpartition(":")
        there, back = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.write(OPENED)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, back))
                both.create_task(_copy(there, writer))
        finally:
            back.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await source.read(PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
    sink.close()


@asynccontextmanager
async def connect_proxy(
    behaviour: Behaviour = "tunnels", *, credentials: str | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ConnectProxy]:
    """Start a proxy on 127.0.0.1."""
    proxy = ConnectProxy(behaviour, credentials)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
