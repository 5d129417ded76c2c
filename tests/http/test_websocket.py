"""The end of a WebSocket's connection."""

from __future__ import annotations

import asyncio

from aiohttp.base_protocol import BaseProtocol

from proxy.http.websocket import GOING_AWAY, WebSocket


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
