"""A WebSocket to a provider: over the pool's connections, so that certificates, proxies and headers are the same.

Invariants: nothing is redirected, and no extension negotiated. Bytes are read no faster than they are taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp.base_protocol import BaseProtocol

from proxy.gateway.upstream.client import Answer, UpstreamClient
from proxy.gateway.upstream.connection import UpstreamConnection, UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.http.websocket import WebSocket
from proxy.http.websocket_head import chosen, lines_up, new_key

# Twice the longest event that is read as a whole.
MESSAGE_BYTES_MAX = 32 << 20


class _Protocol(BaseProtocol):
    """Takes the bytes of a connection that has switched."""

    def __init__(self, lost: Callable[[Exception | None], None]) -> None:
        super().__init__(asyncio.get_running_loop())
        self._upgraded = True  # so that aiohttp pauses the transport, and no parser
        self._lost = lost
        self.socket: WebSocket | None = None

    def data_received(self, data: bytes) -> None:
        """Bytes of frames."""
        if self.socket is not None:
            self.socket.feed_data(data)

    def eof_received(self) -> None:
        """The transport closes itself, and `connection_lost` follows."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is lost."""
        super().connection_lost(exc)
        if self.socket is not None:
            self.socket.feed_eof()
        self._lost(exc if isinstance(exc, Exception) else None)


async def connect(
    client: UpstreamClient, provider: Provider, request: Callable[[str], bytes], protocols: tuple[str, ...]
) -> tuple[WebSocket, str | None] | Answer:
    """Open a WebSocket, and say which subprotocol it has; or the answer that declines. `request`: the bytes of it, with
    these lines in its head. Raises UpstreamFailedError."""
    key = new_key()
    found = await client.switch(provider, request(lines_up(key, protocols)))
    if isinstance(found, Answer):
        return found
    try:
        return _switched(found, key, protocols)
    except BaseException:
        found.abort()
        raise


def _switched(connection: UpstreamConnection, key: str, protocols: tuple[str, ...]) -> tuple[WebSocket, str | None]:
    assert connection.switched is not None
    try:
        protocol = chosen(connection.switched, key, protocols)
    except ValueError:
        raise UpstreamFailedError("bad WebSocket handshake") from None
    taker = _Protocol(connection.connection_lost)
    transport, rest = connection.hand_over(taker)
    taker.socket = WebSocket(taker, transport, masks=True, message_bytes_max=MESSAGE_BYTES_MAX)
    if rest:
        taker.socket.feed_data(rest)
    taker.resume_reading()
    return taker.socket, protocol
