"""A request head that cannot be read has an answer of ours: HTTP/1.1, JSON of the dialect, the reason, and a close."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.http.connection import (
    FIELD_BYTES_MAX,
    FIELDS_MAX,
    HEAD_BYTES_MAX,
    TARGET_BYTES_MAX,
    ClientConnection,
    with_one_user_agent,
)
from proxy.http.server import Routes, Server
from proxy.metering.dialects import DIALECTS
from tests.support.examples import examples

pytestmark = pytest.mark.io

LINE, HOST, END = b"POST /v1/chat/completions HTTP/1.1\r\n", b"Host: a\r\n", b"Connection: close\r\n\r\n"
GEMINI, ANTHROPIC = b"POST /v1beta/models/m:generateContent HTTP/1.1\r\n", b"POST /v1/messages HTTP/1.1\r\n"
LONG = b"Cookie: " + b"c" * (FIELD_BYTES_MAX + 1) + b"\r\n"
SECRET = b"tw-secret-canary"
# What follows whatever was sent: a request that ends the connection.
LAST = b"\r\n\r\nGET /v1/none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
_RESPONSE = re.compile(rb"HTTP/1\.[01] (\d{3}) [A-Za-z -]+\r\n((?:[A-Za-z-]+: [ -~]*\r\n)+)\r\n")


class Asked:
    """A server of ours in a loop that runs while it is asked."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.refused: list[tuple[int, str | None]] = []
        self._port = self._runner.run(self._start())

    async def _start(self) -> int:
        async def agents(request: web.BaseRequest, _connection: ClientConnection, *_: object) -> web.Response:
            return web.json_response(request.headers.getall("User-Agent", []))

        routes = Routes()
        for dialect in DIALECTS:
            routes.metered(dialect, agents)
        self.server = Server(routes, refused=lambda status, code: self.refused.append((status, code)))
        return await self.server.start("127.0.0.1", 0)

    def close(self) -> None:
        self._runner.run(self.server.close())
        self._runner.close()

    def __call__(self, *pieces: bytes) -> bytes:
        """All that comes back until the server closes."""
        return self._runner.run(self._ask(pieces))

    def in_turn(self, *requests: bytes) -> bytes:
        """The same for whole requests, each sent when the one before it is answered."""
        return self._runner.run(self._ask(requests, waits=True))

    async def _ask(self, pieces: tuple[bytes, ...], *, waits: bool = False) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        got = b""
        async with asyncio.timeout(10):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                if waits:  # the answers are short enough to come as one
                    got += await reader.read(1 << 16)
            got += await reader.read()
        writer.close()
        return got


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.close()


def responses(wire: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """Status, headers and body of each; fails if there is anything else."""
    found = []
    while wire:
        head = _RESPONSE.match(wire)
        assert head is not None, wire[:300]
        headers = {name.lower(): value for name, _, value in (h.partition(b": ") for h in head[2].splitlines())}
        length = int(headers[b"content-length"])
        body = wire[head.end() : head.end() + length]
        assert len(body) == length
        found.append((int(head[1]), headers, body))
        wire = wire[head.end() + length :]
    return found


@pytest.mark.parametrize(
    ("head", "status", "words"),
    [
        (LINE + HOST + LONG + END, 431, f"A header of the request is longer than {FIELD_BYTES_MAX} bytes."),
        (LINE + HOST + LONG * 100 + END, 431, "A header of the request is longer"),
        (LINE + HOST + b"A: a\r\n" * (FIELDS_MAX + 1) + END, 431, f"The request has more than {FIELDS_MAX} headers."),
        (b"POST /" + b"a" * TARGET_BYTES_MAX + b" HTTP/1.1\r\n" + HOST + END, 414, "The URL is longer than"),
        (LINE + END, 400, "The request has no Host header."),
        (LINE + HOST + HOST + END, 400, "The request has more than one Host header."),
        (LINE + HOST + b"ETag: 1\r\netag: 2\r\n" + END, 400, "The request has more than one Etag header."),
        (LINE + HOST + b"Bad Name: a\r\n" + END, 400, "The request is not well-formed HTTP/1.1."),
        (LINE + HOST + b"A: a\0b\r\n" + END, 400, "The request is not well-formed HTTP/1.1."),
        (b"POST\r\n\r\n", 400, "The request line is not well-formed HTTP/1.1."),
        (b"what is this\r\n\r\n", 400, "The request line is not well-formed HTTP/1.1."),
        (b"GET http://[ HTTP/1.1\r\n" + HOST + END, 400, "The request line is not well-formed HTTP/1.1."),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "This port speaks HTTP, and the request is HTTPS."),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505, "Only HTTP/1.1 is supported."),
    ],
)  # fmt: skip
def test_it_is_answered_with_the_reason(head: bytes, status: int, words: str, asked: Asked) -> None:
    wire = asked(head)
    assert wire.startswith(b"HTTP/1.1 ")
    ((found, headers, body),) = responses(wire)
    assert (found, headers[b"content-type"], headers[b"connection"]) == (status, b"application/json", b"close")
    assert json.loads(body)["error"]["message"].lower().startswith(words.lower())
    assert asked.refused[-1][0] == status


@pytest.mark.parametrize("cut", [0, 30, 600])
def test_it_has_the_shape_of_the_paths_dialect(cut: int, asked: Asked) -> None:
    def answered(line: bytes) -> dict[str, Any]:
        head = line + HOST + LONG + END
        ((status, _, body),) = responses(asked(head[:cut], head[cut:]))
        assert status == 431
        document: dict[str, Any] = json.loads(body)
        return document

    assert answered(GEMINI)["error"]["status"] == "INVALID_ARGUMENT"
    assert answered(ANTHROPIC)["type"] == "error"


def test_a_head_has_an_end(asked: Asked) -> None:
    pieces = [b"A%d: %b\r\n" % (number, b"a" * 4000) for number in range(HEAD_BYTES_MAX // 4000 + 20)]
    ((status, _, body),) = responses(asked(LINE + HOST, *pieces))
    assert status == 431
    assert b"together longer" in body or b"A header" in body


def test_a_long_token_and_many_cookies_are_no_error(asked: Asked) -> None:
    more = b"Authorization: Bearer " + b"t" * 12_000 + b"\r\nCookie: " + b"c" * 15_000 + b"\r\n"
    assert [one[0] for one in responses(asked(LINE + HOST + more + END))] == [200]


@pytest.mark.parametrize("body", [b"", b"\r\nUser-Agent: of the body\r\nuser-agent: of the body"])
def test_a_repeated_user_agent_is_no_error(body: bytes, asked: Asked) -> None:
    agents = b"User-Agent: one\r\nX-Agent: x\r\nuser-agent: two\r\nUser-agent: three\r\n"
    length = b"Content-Length: %d\r\n" % len(body)
    keep, close = LINE + HOST + agents + length + b"\r\n" + body, LINE + HOST + agents + length + END + body
    assert [(status, json.loads(said)) for status, _, said in responses(asked(close))] == [(200, ["one"])]
    assert [status for status, _, _ in responses(asked.in_turn(keep, keep, close))] == [200] * 3


def test_a_body_is_never_changed(asked: Asked) -> None:
    """The look for repeated headers ends where the head does, and moves nothing."""
    text = b"\r\nUser-Agent: a\r\nUser-Agent: b"
    assert with_one_user_agent(LINE + HOST + END + text) == LINE + HOST + END + text
    changed = with_one_user_agent(LINE[:-2] + text + b"\r\n\r\n" + text)
    assert changed == LINE[:-2] + text.replace(b"User-Agent: b", b"X-Repeated: b") + b"\r\n\r\n" + text


LINES = (
    LINE, GEMINI, ANTHROPIC, HOST, END, b"GET / HTTP/1.1\r\n", b"HTTP/2.0\r\n", b"CONNECT a:1 HTTP/1.1\r\n",
    b"OPTIONS * HTTP/1.1\r\n", b"GET //[" + SECRET + b" HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET http://" + SECRET + b":x/ HTTP/1.1\r\n", b"GET /?key=" + SECRET + b" HTTP/1.0\r\n",
)  # fmt: skip
FIELDS = (
    b"User-Agent: " + SECRET, b"Authorization: Bearer " + SECRET, SECRET + b": x", b"Host: " + SECRET + b"/",
    b"Sec-WebSocket-Key1: " + SECRET, b"Content-Length: 3", b"Content-Length: x", b"Transfer-Encoding: chunked",
    b"Upgrade: websocket", b"Upgrade: h2c\r\nConnection: Upgrade", b"Expect: x", b"\xff\xfe: \xff", LONG[:-2],
)  # fmt: skip
BYTES = (b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"3\r\nabc\r\n0\r\n\r\n", b"A: a\r\n" * 130, b"\x16\x03\x01")
FRAGMENTS = st.sampled_from((*LINES, *(field + b"\r\n" for field in FIELDS), *BYTES)) | st.binary(max_size=12)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(FRAGMENTS, max_size=10), st.lists(st.integers(0, 400), max_size=3))
def test_whatever_comes_each_answer_is_well_formed_and_quotes_no_secret(
    asked: Asked, log: list[logging.LogRecord], fragments: list[bytes], cuts: list[int]
) -> None:
    wire = b"".join(fragments) + LAST
    places = sorted({0, *(cut % len(wire) for cut in cuts), len(wire)})
    answers = asked(*(wire[start:end] for start, end in pairwise(places)))
    assert SECRET not in answers
    assert responses(answers)[-1][1][b"connection"] == b"close"
    assert [record.getMessage() for record in log] == []


@pytest.fixture(scope="module")
def log() -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)
