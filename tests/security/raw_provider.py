"""A provider that is not even HTTP unless it is told to be: exact bytes in, exact bytes out, in the test's own loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

# What to write when the n-th request (from 0, over all connections) has come; a number is a pause in seconds.
Answer = Callable[[int], "list[bytes | float]"]

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)


@dataclass(slots=True)
class RawProvider:
    """What it was asked, to the byte."""

    answer: Answer
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the other side has enough."""
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                self.requests.append(head + await reader.readexactly(int(length[1]) if length else 0))
                for part in self.answer(len(self.requests) - 1):
                    if isinstance(part, bytes):
                        writer.write(part)
                        await writer.drain()
                    else:
                        await asyncio.sleep(part)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def raw_provider(port: int, answer: Answer) -> AsyncIterator[RawProvider]:
    """Listens on `port` of the loopback interface for as long as the block lasts."""
    provider = RawProvider(answer)
    talks: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        talks.add(talk)
        with suppress(asyncio.CancelledError):  # by us, below
            await provider.converse(reader, writer)
        talks.discard(talk)

    server = await asyncio.start_server(converse, "127.0.0.1", port)
    try:
        yield provider
    finally:
        server.close()
        for talk in list(talks):
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


def whole(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A JSON answer with its length."""
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def streamed(*events: bytes) -> bytes:
    """An event stream, one chunk per event, ended properly."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


def completion(text: str) -> bytes:
    """A small `chat.completion` that says `text`, with its usage."""
    message = f'{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}'
    usage = '{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}'
    return f'{{"id":"c1","object":"chat.completion","choices":[{message}],"usage":{usage}}}'.encode()
