"""What is on both sides of a connection to a provider, without a network: a transport, and a sink of the body."""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.gateway.upstream.connection import UpstreamConnection
from tests.http.frames import unframed

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
LAST = b"0\r\n\r\n"


class Heard:
    """A sink that only listens; one that `knows` some bytes takes them as they came."""

    def __init__(self, knows: bytes | None = None) -> None:
        self.payload = b""
        self.ended: list[str] = []
        self.knows = knows
        self.known = 0

    def relay_matched(self, wire: bytes) -> bool:
        assert not self.ended
        if wire != self.knows:
            return False
        self.known += 1
        return True

    def piece(self, payload: bytes, framed: bytes | None = None) -> None:
        assert not self.ended
        assert payload
        assert framed is None or unframed(framed) == payload
        self.payload += payload

    def complete(self) -> None:
        self.ended.append("complete")

    def internal_error(self) -> None:
        self.ended.append("failed")

    def upstream_error(self) -> None:
        self.ended.append("broken")


class FakeTransport(asyncio.Transport):
    """Remembers how it was steered."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closed = False
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Pool:
    """Counts what comes back."""

    def __init__(self) -> None:
        self.rested: list[UpstreamConnection] = []
        self.gone: list[UpstreamConnection] = []

    def connected(self) -> tuple[UpstreamConnection, FakeTransport]:
        connection, transport = UpstreamConnection(self.rested.append, self.gone.append), FakeTransport()
        connection.connection_made(transport)
        return connection, transport
