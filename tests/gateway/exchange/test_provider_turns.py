"""Whatever bytes a provider sends, nobody else waits longer than a slice for them; they are relayed and billed."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from proxy.billing.record import UsageRecord
from tests.gateway.inprocess import gateway
from tests.metering.fixtures import CHAT_USAGE
from tests.support.examples import each
from tests.support.turns import nobody_waits
from tests.support.waiting import until

pytestmark = pytest.mark.io

# Twice what a turn may take: the machine may be slower than any in production.
TURN_S_MAX = 0.04
SIZE = 100_000
REQUEST = {
    "model": "electron",
    "messages": [{"role": "user", "content": "x"}],
    "stream_options": {"include_usage": True},
}
USAGE = b'"usage":' + json.dumps(CHAT_USAGE).encode()
EVENT = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
LAST = b'data: {"choices":[],' + USAGE + b"}\n\ndata: [DONE]\n\n"

# Streams and answers, by their beginnings, a part that is repeated up to some size, and their ends.
STREAMS = {
    "an event of lines": (b"", b"data:x\n", b"\n" + LAST),
    "an event of brackets": (b"data: ", b"[", b"\n\n" + LAST),
    "an event of empty strings": (b'data: {"x":[', b'"",', b"1]}\n\n" + LAST),
    "events of eight bytes": (b"", b"data:0\n\n", LAST),
    "a text": (b'data: {"choices":[{"delta":{"content":"', b"word ", b'"}}]}\n\n' + LAST),
    "events": (b"", EVENT, LAST),
    "line ends": (b"", b"\n", LAST),
}
ANSWERS = {
    "members": (b'{"a":[', b'{"b":1},', b'{}],"choices":[],' + USAGE + b"}"),
    "numbers": (b'{"choices":[', b"1,", b"1]," + USAGE + b"}"),
    "broken off": (b'{"choices":[', b'{"message":{}},', b""),
    "brackets": (b"", b"[", b""),
    "a stream": (b"", EVENT, LAST),
}
# Of these, no usage can be read.
UNREAD = {"numbers", "broken off", "brackets"}


def filled(begin: bytes, part: bytes, end: bytes, size: int) -> bytes:
    return begin + part * (size // len(part)) + end


def framed(body: bytes, framing: str, kind: str) -> bytes:
    """The answer of a provider with this body."""
    headers = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n"
    if framing == "gzip":
        body, headers = gzip.compress(body, mtime=0), headers + "Content-Encoding: gzip\r\n"
    if framing == "chunks":
        chunks = [body[at : at + 3] for at in range(0, len(body), 3)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        headers += "Transfer-Encoding: chunked\r\n"
    elif framing != "close":
        headers += f"Content-Length: {len(body)}\r\n"
    return headers.encode() + b"\r\n" + body


@contextmanager
def sending(wire: bytes) -> Iterator[str]:
    """A provider, in a thread, that sends this answer to each request, on a connection of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # at the end, it listens no more
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        while b"\r\n\r\n" not in connection.recv(1 << 16, socket.MSG_PEEK):
                            pass
                        connection.sendall(wire)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(1 << 16):
                            pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def received(url: str, *, stream: bool) -> bytes:
    """The body of the answer to a request by HTTP/1.0, which has no framing."""
    body = json.dumps(REQUEST | {"stream": stream}).encode()
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /v1/chat/completions HTTP/1.0\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
        client.sendall(f"{head}Authorization: Bearer x\r\nContent-Type: application/json\r\n\r\n".encode() + body)
        pieces = []
        while piece := client.recv(1 << 16):
            pieces.append(piece)
        return b"".join(pieces).partition(b"\r\n\r\n")[2]


async def relayed(folder: Path, wire: bytes, *, stream: bool) -> tuple[bytes, UsageRecord]:
    """What the client gets, and the record. Nobody waits for longer than TURN_S_MAX."""
    got: list[bytes] = []
    with sending(wire) as url:
        async with gateway(folder, url) as made:

            async def asked() -> None:
                got.append(await asyncio.to_thread(received, made.url, stream=stream))
                await until(lambda: len(made.outbox.records) == len(got))

            await nobody_waits(asked, lambda: TURN_S_MAX)
    return got[-1], made.outbox.records[-1]


# Of the longer ones, too much is left out for the usage to be read; a compressed one is given up.
SIZES = [SIZE, pytest.param(20 << 20, marks=pytest.mark.slow)]


@pytest.mark.parametrize("framing", ["length", "chunks", "gzip", "close"])
@pytest.mark.parametrize("name", each(3, STREAMS))
@pytest.mark.parametrize("size", SIZES)
async def test_a_stream_delays_nobody(tmp_path: Path, name: str, framing: str, size: int) -> None:
    body = filled(*STREAMS[name], size)
    got, record = await relayed(tmp_path, framed(body, framing, "text/event-stream"), stream=True)
    assert got == (gzip.compress(body, mtime=0) if framing == "gzip" else body)
    tokens = record.reading.usage.completion_tokens
    assert tokens == CHAT_USAGE["completion_tokens"] if size == SIZE else tokens


@pytest.mark.parametrize("framing", ["length", "gzip", "close"])
@pytest.mark.parametrize("name", each(2, ANSWERS))
@pytest.mark.parametrize("size", SIZES)
async def test_an_answer_delays_nobody(tmp_path: Path, name: str, framing: str, size: int) -> None:
    body = filled(*ANSWERS[name], size)
    got, record = await relayed(tmp_path, framed(body, framing, "application/json"), stream=False)
    assert got == (gzip.compress(body, mtime=0) if framing == "gzip" else body)
    tokens = record.reading.usage.completion_tokens
    is_read = name not in UNREAD and size == SIZE
    assert tokens == CHAT_USAGE["completion_tokens"] if is_read else tokens
