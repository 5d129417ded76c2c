"""The end of a WebSocket's connection, after which nothing is counted."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol

from proxy.http.connection import LINES_MAX, PART_BYTES, ClientConnection
from proxy.http.reply import Reply
from proxy.http.server import WEBSOCKET, Routes, Server
from proxy.http.websocket import GOING_AWAY, INTERNAL, WebSocket
from proxy.http.websocket_head import handshake
from tests.support.net import RawClient

FRAME = b"\x82\xfd\0\0\0\0" + b"\n" * 125


class ClosedTransport(asyncio.Transport):
    """Of a connection that is lost, as uvloop's: it has no limits any more."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = 0

    def is_closing(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        raise RuntimeError("the handle is closed")

    def abort(self) -> None:
        self.aborted += 1


async def test_a_lost_connection_can_be_closed() -> None:
    given_back = list[int]()
    transport = ClosedTransport()
    protocol = BaseProtocol(asyncio.get_running_loop())
    socket = WebSocket(
        protocol, transport, masks=False, message_bytes_max=100, grew=lambda _: True, shrank=given_back.append
    )
    socket.feed_data(b"\x81\x85\0\0\0\0half")
    socket.feed_eof()
    await socket.close(GOING_AWAY)
    assert (transport.aborted, sum(given_back)) == (1, 10)


class Counted:
    """The bytes in memory, as one side's limit counts them."""

    def __init__(self) -> None:
        self.now = 0

    def grew(self, size: int) -> bool:
        self.now += size
        return True

    def shrank(self, size: int) -> None:
        self.now -= size


@pytest.mark.parametrize("how", ["abort", "close"])
async def test_what_comes_after_the_end_is_not_counted(how: str) -> None:
    memory = Counted()
    socket = WebSocket(
        BaseProtocol(asyncio.get_running_loop()), ClosedTransport(), masks=False, message_bytes_max=1000,
        grew=memory.grew, shrank=memory.shrank,
    )  # fmt: skip
    socket.feed_data(FRAME + FRAME)
    await socket.receive()
    assert memory.now > 0
    if how == "abort":
        socket.abort()
    else:
        await socket.close(GOING_AWAY)
    assert memory.now == 0
    socket.feed_data(FRAME)  # of a long read, which is parsed in parts
    assert memory.now == 0


@pytest.mark.io
@pytest.mark.parametrize("how", ["abort", "close"])
async def test_a_long_read_is_not_parsed_after_the_end(how: str) -> None:
    """A client sends more than is parsed at once, and the session ends at its first message."""
    memory, over = Counted(), asyncio.Event()
    heard_later: list[bool] = []

    async def serve(request: web.BaseRequest, connection: ClientConnection, *_: object) -> web.StreamResponse:
        reply, transport = Reply(request), request.transport
        assert transport is not None
        assert reply.switch([("Sec-WebSocket-Accept", handshake(request).accept)])
        socket = WebSocket(
            connection, transport, masks=False, message_bytes_max=1000, grew=memory.grew, shrank=memory.shrank
        )
        connection.set_parser(socket)  # type: ignore[arg-type]
        await socket.receive()
        if how == "abort":
            socket.abort()
        else:
            await socket.close(INTERNAL)
        heard_at = socket.heard_at
        await asyncio.sleep(0.05)
        heard_later.append(socket.heard_at > heard_at)
        over.set()
        return reply

    routes = Routes()
    routes._add(WEBSOCKET, "/", serve)
    server = Server(routes, refused=lambda *_: None)
    port = await server.start("127.0.0.1", 0)
    async with asyncio.timeout(10), await RawClient.connect("127.0.0.1", port) as client:
        await client.send(
            b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        await client.send(FRAME * (LINES_MAX + 4 * PART_BYTES // len(FRAME)))
        await over.wait()
    await server.close()
    assert (memory.now, heard_later) == (0, [False])
