"""A provider that holds its streams: each sends its first event, and the rest once the test lets it.

Law: what is proven with it needs no clock. An event that a client has while the gate is shut came before the last one
was sent; streams that are all open while it is shut are open at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from tests.http.frames import framed
from tests.metering.dialects import bedrock


@dataclass(frozen=True, slots=True)
class Held:
    """A stream in two parts."""

    content_type: bytes
    first: bytes
    """its beginning, up to the end of an event"""
    last: bytes


EVENTS = Held(
    b"text/event-stream",
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"first"}}]}\n\n',
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}\n\n'
    b"data: [DONE]\n\n",
)
LINES = Held(
    b"application/x-ndjson",
    b'{"message":{"role":"assistant","content":"first"},"done":false}\n',
    b'{"message":{"content":""},"done":true,"done_reason":"stop","prompt_eval_count":3,"eval_count":1}\n',
)
ARRAY = Held(
    b"application/json",
    b'[{"candidates":[{"content":{"parts":[{"text":"first"}]}}]}\n',
    b',{"candidates":[{"content":{"parts":[]},"finishReason":"STOP"}],'
    b'"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":1,"totalTokenCount":4}}]\n',
)
_BEGUN, _SAID, *_REST = bedrock.converse("first")
BINARY = Held(b"application/vnd.amazon.eventstream", _BEGUN + _SAID, b"".join(_REST))
# The end of a request's path → what answers it.
_HELD = {
    b"/chat/completions": EVENTS, b"/chat": LINES, b":streamGenerateContent": ARRAY, b"/converse-stream": BINARY,
}  # fmt: skip


class Gate:
    """Use it as an async context manager; `base_url` is for the configuration."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        """let everything pass"""
        self.holding = 0
        """streams that have sent their first event and wait"""
        self.left = 0
        """streams whose other side closed before they could end"""
        self.changed = asyncio.Condition()
        self.base_url = ""

    async def __aenter__(self) -> Gate:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.open.set()
        self._server.close()

    async def until_held(self, streams: int, within_s: float) -> None:
        """So many are open at once. Raises TimeoutError."""
        async with asyncio.timeout(within_s), self.changed:
            await self.changed.wait_for(lambda: self.holding >= streams)

    async def until_left(self, streams: int, within_s: float) -> None:
        """So many were given up by the other side. Raises TimeoutError."""
        async with asyncio.timeout(within_s), self.changed:
            await self.changed.wait_for(lambda: self.left >= streams)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                held = await _request(reader)
                if held is None:
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                writer.write(_head(held) + framed(held.first))
                await self._count(held=1)
                if not await self._released(reader):
                    await self._count(held=-1, left=1)
                    break
                writer.write(framed(held.last) + b"0\r\n\r\n")
                await self._count(held=-1)
        writer.close()

    async def _released(self, reader: asyncio.StreamReader) -> bool:
        """True when the gate is open; False if the other side closed first."""
        loop = asyncio.get_running_loop()
        opened, gone = loop.create_task(self.open.wait()), loop.create_task(reader.read(1))
        try:
            await asyncio.wait([opened, gone], return_when=asyncio.FIRST_COMPLETED)
            return opened.done()
        finally:
            opened.cancel()
            gone.cancel()
            await asyncio.gather(opened, gone, return_exceptions=True)

    async def _count(self, *, held: int = 0, left: int = 0) -> None:
        async with self.changed:
            self.holding += held
            self.left += left
            self.changed.notify_all()


def _head(held: Held) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % held.content_type


async def _request(reader: asyncio.StreamReader) -> Held | None:
    """Read one request; None: for another path, such as the list of models. Raises IncompleteReadError at the end."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    length = int(lengths[0].split(b":")[1]) if lengths else 0
    await reader.readexactly(length)
    path = head.split(b" ", 2)[1].partition(b"?")[0]
    return next((held for end, held in _HELD.items() if path.endswith(end)), None)
