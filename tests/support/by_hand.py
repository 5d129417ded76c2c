"""A provider and a client under the control of the test, which sends each piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from proxy.http.framing import ChunkReader

# Of all clients and providers; closed with the provider.
_open: set[asyncio.StreamWriter] = set()

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class ProviderByHand:
    """A provider that answers only when the test sends a piece."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Answering] = asyncio.Queue()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _open.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                document = json.loads(await reader.readexactly(length) or b"null")
                self.asked.put_nowait(Answering(writer, head, document))
        writer.close()


class Answering:
    def __init__(self, writer: asyncio.StreamWriter, head: bytes, document: Any) -> None:
        self.head = head
        self.document = document
        self._writer = writer

    def begin(self, head: bytes = HEAD) -> None:
        self._writer.write(head)

    def send(self, payload: bytes) -> None:
        """A piece of the body, in one chunk."""
        if payload:
            self._writer.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")

    def abort(self) -> None:
        self._writer.transport.abort()

    @property
    def gone(self) -> bool:
        return self._writer.transport.is_closing()


@asynccontextmanager
async def provider_by_hand() -> AsyncIterator[ProviderByHand]:
    made = ProviderByHand()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield made
    finally:
        server.close()
        while _open:
            writer = _open.pop()
            writer.transport.abort()
            writer.close()
        await asyncio.sleep(0)


class Reading:
    """A client that is reading an answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._chunks: ChunkReader | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        """properly"""
        self.broken = False

    async def head(self) -> int:
        """Read the head: the status."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.strip().split("\r\n")
        self.status = int(line.split()[1])
        self.headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
        if self.headers.get("transfer-encoding") == "chunked":
            self._chunks = ChunkReader()
        return self.status

    async def take(self, size: int) -> bytes:
        """The body, once it has so many bytes, or has ended."""
        while len(self.body) < size and not self.ended and not self.broken:
            await self._more()
        return self.body

    async def rest(self) -> bytes:
        while not self.ended and not self.broken:
            await self._more()
        return self.body

    async def _more(self) -> None:
        piece = b""
        with suppress(ConnectionError):
            piece = await self._reader.read(65536)
        if not piece:
            self.broken = True
        elif self._chunks is None:
            self.body += piece
            self.ended = len(self.body) >= int(self.headers.get("content-length", 1 << 60))
        else:
            self.body += self._chunks.feed(piece)[0]
            self.ended = self._chunks.rest is not None

    def leave(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()


async def asking(url: str, request: bytes) -> Reading:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    _open.add(writer)
    writer.write(request)
    return Reading(reader, writer)


def get(path: str, key: str = "anna", **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n{more}\r\n".encode()
