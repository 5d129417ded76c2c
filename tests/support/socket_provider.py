"""A provider with WebSockets, in the test's process: it sends the test's events, and keeps the received messages."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

PATIENCE_S = 20.0


@dataclass
class Link:
    """A connection to the provider."""

    path: str
    query: str
    headers: dict[str, str]
    socket: web.WebSocketResponse
    heard: list[Any] = field(default_factory=list)
    """messages: a JSON document, or bytes that are none"""
    kinds: list[WSMsgType] = field(default_factory=list)
    closed: tuple[int | None, str] | None = None
    """by the other side: code and reason; None: lost, or open"""
    gone: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def say(self, *events: dict[str, Any] | bytes) -> None:
        """Send events, each as a text; bytes as binary."""
        for event in events:
            if isinstance(event, bytes):
                await self.socket.send_bytes(event)
            else:
                await self.socket.send_str(json.dumps(event, ensure_ascii=False))

    async def until(self, holds: Callable[[Link], bool]) -> None:
        """Wait. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(lambda: holds(self))

    async def hear(self, kind: str) -> dict[str, Any]:
        """The next message of this type, which is dropped with those before it. Raises TimeoutError."""

        def found() -> int | None:
            return next(
                (at for at, one in enumerate(self.heard) if isinstance(one, dict) and one["type"] == kind), None
            )

        await self.until(lambda _: found() is not None)
        at = found()
        assert at is not None
        message: dict[str, Any] = self.heard[at]
        del self.heard[: at + 1]
        return message

    async def until_gone(self) -> tuple[int | None, str] | None:
        """Wait until the other side has closed; returns how."""
        await self.until(lambda link: link.gone)
        return self.closed

    async def _note(self, change: Callable[[], object]) -> None:
        async with self.changed:
            change()
            self.changed.notify_all()


class SocketProvider:
    """Use it as an async context manager; `base_url` is for the configuration."""

    def __init__(
        self, *, protocols: tuple[str, ...] = (), heartbeat: float | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.links: list[Link] = []
        self.refuses: tuple[int, dict[str, Any] | None] | None = None
        """answer so, instead of a WebSocket"""
        self.reads = asyncio.Event()
        """clear it, and nothing is read"""
        self.reads.set()
        self.base_url = ""
        self.greets: Callable[[Link], Any] | None = None
        """called with each new connection, to send the first events"""
        self.answers: Callable[[Link, Any], Any] | None = None
        """called with each message"""
        self._protocols = protocols
        self._heartbeat = heartbeat
        self._tls = tls
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> SocketProvider:
        self._runner = web.ServerRunner(web.Server(self._serve))
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.base_url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        for link in self.links:
            self.reads.set()
            await link.socket.close(code=WSCloseCode.GOING_AWAY)
        await self._runner.cleanup()

    async def link(self, number: int = 0) -> Link:
        """The connection with this number, once it is there. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: len(self.links) > number)
        return self.links[number]

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.refuses is not None:
            status, body = self.refuses
            return web.Response(status=status) if body is None else web.json_response(body, status=status)
        socket = web.WebSocketResponse(
            protocols=self._protocols, autoclose=True, max_msg_size=64 << 20, heartbeat=self._heartbeat
        )
        await socket.prepare(request)
        path, _, query = request.raw_path.partition("?")
        link = Link(path, query, dict(request.headers), socket)
        async with self._changed:
            self.links.append(link)
            self._changed.notify_all()
        if self.greets is not None:
            await self.greets(link)
        await self._listen(link)
        return socket

    async def _listen(self, link: Link) -> None:
        while True:
            await self.reads.wait()
            message = await link.socket.receive()
            if message.type is WSMsgType.CLOSE:
                link.closed = message.data, message.extra or ""
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                await link._note(lambda: setattr(link, "gone", True))
                return
            found = _document(message.data)
            link.kinds.append(message.type)
            await link._note(partial(link.heard.append, found))
            if self.answers is not None:
                await self.answers(link, found)


def _document(data: str | bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data
