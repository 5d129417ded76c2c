"""A client's connection: bodies that break off with malformed bytes, and what stands before and behind them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from aiohttp import web

from proxy.http.connection import LINES_MAX, PART_BYTES, ClientConnection
from proxy.http.errors import bad_request
from proxy.http.request_body import read_body
from proxy.http.server import Routes, Server
from tests.support.net import RawClient, Response

pytestmark = pytest.mark.io

POST, GET = b"POST /echo HTTP/1.1\r\nHost: a\r\n", b"GET /got HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK, WRONG = b"5\r\nhello\r\n", b"ZZ\r\n"
# The first part of it has the head, and is parsed before the request is served.
LONG = CHUNKED + b"1\r\na\r\n" * max(LINES_MAX, PART_BYTES // 6)
# Less than a body may take.
AT_ONCE_S = 5.0


@dataclass
class Echo:
    """A server whose routes return the body, or do not read it."""

    port: int
    served: list[str]
    log: list[logging.LogRecord]

    async def answers(self, *pieces: bytes) -> list[Response]:
        """All that come until the server closes; each piece is a read of its own."""
        found: list[Response] = []
        async with asyncio.timeout(AT_ONCE_S), await RawClient.connect("127.0.0.1", self.port) as client:
            for piece in pieces:
                await client.send(piece)
                await asyncio.sleep(0.05)
            while True:
                try:
                    found.append(await client.read())
                except EOFError:
                    return found


@pytest.fixture
async def echo(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Echo]:
    served: list[str] = []

    async def of_body(request: web.BaseRequest, _: ClientConnection) -> web.Response:
        served.append("echo")
        try:
            return web.Response(body=await read_body(request, bytes_max=1 << 20))
        except web.RequestPayloadError:
            raise bad_request("broke off", code="incomplete_body") from None

    async def of_none(_request: web.BaseRequest, _: ClientConnection) -> web.Response:
        served.append("got")
        return web.Response(body=b"got")

    routes = Routes()
    routes.local("POST", "/echo", of_body)
    routes.local("GET", "/got", of_none)
    routes.local("POST", "/got", of_none)
    server = Server(routes, refused=lambda *_: None)
    yield Echo(await server.start("127.0.0.1", 0), served, caplog.records)
    await server.close()


@pytest.mark.parametrize(
    "pieces",
    [
        (CHUNKED, CHUNK + WRONG),
        (CHUNKED + CHUNK, WRONG, CHUNK, GET),
        (CHUNKED + CHUNK, WRONG + GET),
        (CHUNKED + CHUNK, b"5\r\nhello!!0\r\n\r\n" + GET),
        (LONG + WRONG + GET,),
        (LONG + CHUNK * 4000 + WRONG, CHUNK),
    ],
    ids=["", "more", "hidden", "too long", "long", "longer"],
)
async def test_a_body_that_breaks_off_is_refused_at_once(pieces: tuple[bytes, ...], echo: Echo) -> None:
    (refusal,) = await echo.answers(*pieces)
    assert (refusal.status, refusal.header("Connection")) == (400, "close")
    assert b"incomplete_body" in refusal.body
    assert echo.served == ["echo"], "nothing behind it is a request"
    assert echo.log == []


async def test_requests_before_a_body_that_breaks_off_are_answered(echo: Echo) -> None:
    whole = POST + b"Content-Length: 5\r\n\r\nhello"
    answers = await echo.answers(GET + whole + CHUNKED + CHUNK, WRONG)
    assert [(one.status, one.body) for one in answers[:2]] == [(200, b"got"), (200, b"hello")]
    assert [one.status for one in answers[2:]] == [400]


async def test_a_body_that_nobody_reads_may_break_off(echo: Echo) -> None:
    """The answer is sent already: the rest is discarded, and is no bug that is logged."""
    answers = await echo.answers(CHUNKED.replace(b"/echo", b"/got") + CHUNK, WRONG, CHUNK)
    assert [(one.status, one.body) for one in answers] == [(200, b"got")]
    assert echo.log == []


async def test_a_request_before_malformed_bytes_in_the_same_read_is_dropped(echo: Echo) -> None:
    """It is not served, so that its one answer, the refusal, is right."""
    (refusal,) = await echo.answers(GET + b"GARBAGE\r\n\r\n")
    assert (refusal.status, echo.served) == (400, [])
    assert [one.status for one in await echo.answers(GET, b"GARBAGE\r\n\r\n")] == [200, 400]
    assert echo.served == ["got"]
