"""Denial of service: everything that a client or a provider can make long, deep, slow or many has a limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from proxy.demo.script import Send, Stall
from proxy.demo.shapes import sse
from proxy.http import connection as client_connection
from proxy.http import server as gateway_server
from proxy.http.connection import ClientConnection
from proxy.http.errors import ApiError
from proxy.http.server import Routes, Server
from proxy.keys.guesses import GUESSES_MAX
from tests.security.guarded import EXCHANGES_MAX, REQUEST_BYTES_MAX, Guarded
from tests.security.payloads import CHUNKED, chunked, request
from tests.support.net import RawClient, Response, ask, chat_request, connect, post_chat
from tests.support.provider import gzipped

pytestmark = pytest.mark.io

DONE = b"data: [DONE]\n\n"
# Whoever guesses too often is told so; the other tests come from elsewhere.
GUESSER = "127.0.2.1"
CONTENT = sse({"id": "c1", "choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]})
Serve = Callable[[web.BaseRequest, ClientConnection], Awaitable[web.StreamResponse]]


async def _hello(_request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
    return web.Response(text="hello")


@asynccontextmanager
async def _serving(serve: Serve = _hello) -> AsyncIterator[str]:
    """The gateway's own server in this loop, with one route at /; its URL."""
    routes = Routes()
    routes.local("GET", "/", serve)
    server = Server(routes, refused=lambda _status, _code: None)
    port = await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop_listening()
        await server.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n", b"\r\n" * 100])
async def test_a_head_that_does_not_come_is_not_waited_for(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "FIRST_HEAD_S", 0.1)
    async with _serving() as url, await connect(url) as client:
        await client.send(sent)
        assert await client.read_to_end(timeout_s=5) == b""


async def test_a_head_that_trickles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "FIRST_HEAD_S", 0.2)
    async with _serving() as url, await connect(url) as client:
        await client.send(b"GET / HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(_trickle(client), 5)


async def _trickle(client: RawClient) -> None:
    while True:
        await client.send(b"X: y\r\n")
        await asyncio.sleep(0.02)


async def test_the_second_head_of_a_connection_is_not_waited_for_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "KEEP_ALIVE_S", 0.2)
    async with _serving() as url, await connect(url) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.read()).body == b"hello"
        await client.send(b"GET / HTTP/1.1\r\nHost")
        assert await client.read_to_end(timeout_s=5) == b""


async def test_who_has_sent_a_request_is_not_hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "FIRST_HEAD_S", 0.1)

    async def slowly(_request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.Response(text="at last")

    async with _serving(slowly) as url, await connect(url) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.read()).body == b"at last"


async def test_half_a_body_holds_nothing(guarded: Guarded) -> None:
    """Neither a stream's place nor the provider: nothing is admitted before the body is whole."""
    clients = [await connect(guarded.url) for _ in range(EXCHANGES_MAX * 2)]
    wire = chat_request(ask("tera"), key=guarded.key)
    for client in clients:
        await client.send(wire[:-5])
    response = await guarded.ask("tera")
    assert response.status == 200
    assert len(guarded.provider.log()) == 1
    for client in clients:
        client.close()


async def _refused(guarded: Guarded, wire: bytes) -> tuple[int, str | None]:
    response = await guarded.send(wire)
    assert guarded.provider.log() == []
    return response.status, json.loads(response.body)["error"]["code"]


@pytest.mark.parametrize("in_chunks", [False, True])
async def test_a_large_body_is_refused(in_chunks: bool, guarded: Guarded) -> None:
    body = json.dumps(ask("tera", padding="x" * REQUEST_BYTES_MAX)).encode()
    wire = request(chunked(body), guarded.key, CHUNKED, length=False) if in_chunks else request(body, guarded.key)
    assert await _refused(guarded, wire) == (413, "request_too_large")


async def test_a_large_body_is_refused_before_it_is_sent(guarded: Guarded) -> None:
    wire = request(b"", guarded.key, b"Content-Length: 99999999999", length=False)
    assert await _refused(guarded, wire) == (413, "request_too_large")


async def test_a_body_of_the_largest_size_is_served(guarded: Guarded) -> None:
    bare = len(json.dumps(ask("tera", padding="")).encode())
    body = json.dumps(ask("tera", padding="x" * (REQUEST_BYTES_MAX - bare))).encode()
    assert len(body) == REQUEST_BYTES_MAX
    assert (await post_chat(guarded.url, body, key=guarded.key)).status == 200


async def test_pipelined_requests_are_answered_one_by_one(guarded: Guarded) -> None:
    wire = request(b"", guarded.key, line=b"GET /v1/models HTTP/1.1", length=False)
    async with await connect(guarded.url) as client:
        await client.send(wire * 200)
        for _ in range(200):
            assert (await client.read()).status == 200


async def test_nothing_is_unpacked(guarded: Guarded) -> None:
    """A compressed answer nobody asked for is passed on as it is: small here, however large it would become."""
    bomb = sse({"id": "c1", "choices": [{"index": 0, "delta": {"content": "0" * 1_000_000}}]})
    model = guarded.provider.script("bomb", gzipped([bomb] * 8))
    response = await guarded.ask(model)
    assert (response.status, response.ended, response.header("content-encoding")) == (200, "complete", "gzip")
    assert len(response.body) < 100_000
    assert response.body.startswith(b"\x1f\x8b")


async def test_keys_that_nobody_has_are_refused_by_the_hundred(guarded: Guarded) -> None:
    async def guess(number: int) -> int:
        key = f"tw-{number:043d}"
        return (await post_chat(guarded.url, ask("tera"), key=key, timeout_s=20, source=GUESSER)).status

    found = await asyncio.gather(*map(guess, range(200)))
    assert set(found) == {401, 429}
    assert found.count(401) == GUESSES_MAX, "from there on, the address is told to stop"
    assert guarded.provider.log() == []
    answer = await post_chat(guarded.url, ask("tera"), key=guarded.key, source=GUESSER)
    assert answer.status == 200, "others come from the same address, through one edge"


async def test_more_streams_than_there_are_places_are_refused_and_harm_none(guarded: Guarded) -> None:
    """The ones that run go on; the one too many learns when to come back; a place that is let go is taken again."""
    model = guarded.provider.script("waits", (Send(CONTENT), Stall()))
    clients = [await connect(guarded.url) for _ in range(EXCHANGES_MAX)]
    running: list[Response] = []
    for client in clients:
        await client.send(chat_request(ask(model), key=guarded.key))
        running.append(await client.read_body(await client.read_head(), until=CONTENT))
    refused = await guarded.ask(model)
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "not_accepting")
    assert refused.header("retry-after") is not None
    assert len(guarded.provider.log(model)) == EXCHANGES_MAX
    assert {one.ended for one in running} == {"open"}
    for client in clients:
        client.close()
    async with asyncio.timeout(10):
        while (await guarded.ask("tera")).status != 200:
            await asyncio.sleep(0.02)


async def test_our_own_bug_shows_and_logs_no_word_of_a_client(caplog: pytest.LogCaptureFixture) -> None:
    words = "-".join(("the", "clients", "own", "words"))

    async def broken(_request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        raise ValueError(words)

    async with _serving(broken) as url, await connect(url) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer the-clients-key\r\n\r\n")
        response = await client.read()
        assert await client.read_to_end() == b""
    assert (response.status, json.loads(response.body)["error"]["code"]) == (500, "internal_error")
    assert "ValueError" in caplog.text
    assert "in broken" in caplog.text, "where it happened is said"
    assert "the-clients" not in caplog.text + response.body.decode()


async def test_a_refusal_leaves_the_connection_usable() -> None:
    async def refuse(_request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        raise ApiError(429, "Later.", code="later")

    async with _serving(refuse) as url, await connect(url) as client:
        for _ in range(2):
            await client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await client.read()).status == 429
