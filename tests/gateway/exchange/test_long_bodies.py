"""A client's body delays nobody else, however long it is and whatever it has: no turn of the event loop, and no call
that holds the interpreter, is long."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.inprocess import gateway
from tests.support.examples import each
from tests.support.net import listening
from tests.support.turns import nobody_waits

pytestmark = pytest.mark.io

BYTES = 4_000_000
ANSWER = json.dumps({"choices": [{"message": {"content": "Much."}}], "usage": {"prompt_tokens": 1}}).encode()


def chat(content: bytes, more: bytes = b"") -> bytes:
    return b'{"model":"electron",%b"messages":[{"role":"user","content":"%b"}]}' % (more, content)


def messages(count: int) -> bytes:
    return b'{"model":"electron","messages":[%b]}' % b",".join([b'{"role":"user","content":"How much water?"}'] * count)


def objects(count: int, members: int) -> bytes:
    one = b"{%b}" % b",".join(b'"%d":null' % number for number in range(members))
    return chat(b"x", b'"x":[%b],' % b",".join([one] * count))


BODIES: dict[str, Callable[[], bytes]] = {
    "text": lambda: chat(b"How much water goes over the weir?\\n " * (BYTES // 37)),
    "quotes": lambda: chat(b'\\"' * (BYTES // 2)),
    "CJK": lambda: chat("水".encode() * (BYTES // 3)),
    "scripts in turn": lambda: chat("水a".encode() * 400_000),
    "escaped": lambda: chat(b"\\ud83d\\udca7" * (BYTES // 12)),
    "blanks": lambda: chat(b"x") + b" " * BYTES,
    "texts of medium length": lambda: chat(b"x", b'"x":[%b],' % b",".join([b'"%b"' % (b"y" * 3000)] * (BYTES // 3000))),
    "fractions": lambda: chat(b"x", b'"x":[%b0],' % (b"0.5," * 100_000)),
    "integers": lambda: chat(b"x", b'"x":[%b0],' % (b"300," * 390_000)),
    "short texts": lambda: chat(b"x", b'"x":[%b0],' % (b'"ab",' * 149_000)),
    "members": lambda: objects(5, 19_000),
    "messages": lambda: messages(24_000),
    "a file's name": lambda: chat(b"file_id " * (BYTES // 8)),
}


async def discard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    left = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while left:
        left -= len(await reader.read(left))
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER
    )
    await writer.drain()
    writer.close()


async def post(url: str, sent: bytes, *, packed: bool) -> int:
    """The status of the answer."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    coding = b"Content-Encoding: gzip\r\n" if packed else b""
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (coding, len(sent)))
    for at in range(0, len(sent), 1 << 16):
        writer.write(sent[at : at + (1 << 16)])
        await writer.drain()
    status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
    writer.close()
    return status


@pytest.mark.parametrize(
    ("name", "packed"),
    each(4, [*((name, False) for name in BODIES), ("text", True), ("blanks", True), ("members", True)]),
)
async def test_nobody_waits_for_a_long_body(tmp_path: Path, name: str, *, packed: bool) -> None:
    body = BODIES[name]()
    body = gzip.compress(body, 1) if packed else body
    async with (
        listening(discard) as url,
        gateway(tmp_path, f"{url}/v1", request_bytes_max=2 * BYTES) as one,
    ):

        async def posted() -> None:
            assert await post(one.url, body, packed=packed) == 200

        await nobody_waits(posted)
