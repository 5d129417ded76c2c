"""A gateway in the process of the test, a provider that speaks WebSocket, and a client between whom a test stands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMessage, WSMsgType

from proxy.billing.keys import ApiKey
from proxy.billing.limits import Limits, Scope
from proxy.billing.money import Nusd
from proxy.billing.record import Price, Rates, UsageRecord
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Route
from proxy.gateway.websocket.dial import Line
from proxy.gateway.websocket.session import Session
from proxy.keys.access import KeyAccess
from tests.gateway.inprocess import Everybody, Gateway, gateway
from tests.support.socket_provider import PATIENCE_S, Link, SocketProvider

REALTIME, RESPONSES = "/v1/realtime?model=electron", "/v1/responses"
USAGE = {
    "total_tokens": 7, "input_tokens": 3, "output_tokens": 4,
    "input_token_details": {"text_tokens": 3}, "output_token_details": {"text_tokens": 4},
}  # fmt: skip


def begun(response_id: str = "resp_1", **more: Any) -> dict[str, Any]:
    """A response has begun, in either language."""
    return {"type": "response.created", "response": {"id": response_id, "status": "in_progress"}, **more}


def said(text: str, response_id: str = "resp_1", **more: Any) -> dict[str, Any]:
    """Some text of it."""
    return {"type": "response.output_text.delta", "response_id": response_id, "output_index": 0, "delta": text, **more}


def done(response_id: str = "resp_1", status: str = "completed", usage: Any = USAGE, **more: Any) -> dict[str, Any]:
    """Its end, in Realtime's words."""
    response = {"id": response_id, "status": status, "usage": usage, "conversation_id": "conv_1", **more}
    return {"type": "response.done", "response": response}


def completed(
    response_id: str = "resp_1", usage: Any = USAGE, status: str = "completed", **more: Any
) -> dict[str, Any]:
    """Its end, in those of responses."""
    response = {"id": response_id, "status": status, "usage": usage, "output": []}
    return {"type": f"response.{status}", "response": response, **more}


CREATE: dict[str, Any] = {"type": "response.create", "model": "electron", "input": "Was kostet das?"}


class Client:
    """A client's WebSocket."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, *events: dict[str, Any] | str | bytes) -> None:
        """Send messages: bytes as binary, all else as text."""
        for event in events:
            if isinstance(event, bytes):
                await self.socket.send_bytes(event)
            else:
                await self.socket.send_str(event if isinstance(event, str) else json.dumps(event))

    async def receive(self) -> WSMessage:
        """The next message. Raises TimeoutError."""
        return await self.socket.receive(timeout=PATIENCE_S)

    async def hear(self, kind: str | None = None) -> dict[str, Any]:
        """The next event, or the next of this type."""
        while True:
            message = await self.receive()
            assert message.type is WSMsgType.TEXT, message
            event: dict[str, Any] = json.loads(message.data)
            if kind is None or event["type"] == kind:
                return event

    async def hear_end(self) -> tuple[int | None, str]:
        """The close frame, after whatever comes before it: code and reason."""
        while True:
            message = await self.receive()
            if message.type is WSMsgType.CLOSE:
                return message.data, message.extra or ""
            if message.type in (WSMsgType.CLOSED, WSMsgType.ERROR):
                return None, ""

    async def hear_failure(self) -> tuple[str, int | None]:
        """An error and the close frame behind it: the code of each."""
        error = await self.hear("error")
        code, _ = await self.hear_end()
        return error["error"]["code"], code

    @property
    def transport(self) -> asyncio.Transport:
        connection = self.socket._response.connection
        assert connection is not None
        assert isinstance(connection.transport, asyncio.Transport)
        return connection.transport

    def abort(self) -> None:
        """Disconnect without a word."""
        self.transport.abort()


@dataclass
class Stage:
    """All of them."""

    gateway: Gateway
    provider: SocketProvider
    http: ClientSession

    @asynccontextmanager
    async def client(self, path: str = REALTIME, **options: Any) -> AsyncIterator[Client]:
        """A client that has connected."""
        options.setdefault("headers", {"Authorization": "Bearer k"})
        url = self.gateway.url.replace("http", "ws", 1) + path
        async with self.http.ws_connect(url, max_msg_size=64 << 20, **options) as socket:
            yield Client(socket)

    @asynccontextmanager
    async def talk(self, path: str = REALTIME, **options: Any) -> AsyncIterator[tuple[Client, Link]]:
        """The same, and the provider's end of it."""
        number = len(self.provider.links)
        async with self.client(path, **options) as client:
            yield client, await self.provider.link(number)

    @asynccontextmanager
    async def answering(self, **response: Any) -> AsyncIterator[tuple[Client, Link]]:
        """A session of Realtime in which the client has asked for a response, and the provider has heard it."""
        async with self.talk() as (client, link):
            await ask(client, link, **response)
            yield client, link

    @asynccontextmanager
    async def creating(self, **more: Any) -> AsyncIterator[tuple[Client, Link]]:
        """The same of responses, by `CREATE` with `more`."""
        number = len(self.provider.links)
        async with self.client(RESPONSES) as client:
            await client.say(CREATE | more)
            link = await self.provider.link(number)
            await link.hear("response.create")
            yield client, link

    @property
    def session(self) -> Session:
        """The one that runs."""
        (session,) = self.gateway.sockets.sessions
        return session

    @property
    def line(self) -> Line:
        """Its connection to the provider."""
        line = self.session._exchanges.line
        assert line is not None
        return line

    @property
    def records(self) -> list[UsageRecord]:
        """Of exchanges that have ended."""
        return self.gateway.outbox.records

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.005)

    async def record(self, number: int = 0) -> UsageRecord:
        """The one with this number, once it is there. Raises TimeoutError."""
        await self.until(lambda: len(self.records) > number)
        return self.records[number]

    async def until_over(self) -> None:
        """No session is left, and no exchange without a record. Raises TimeoutError."""
        await self.until(lambda: not self.gateway.sockets.sessions)
        assert not self.gateway.handler.live
        assert self.gateway.outbox.opened == len(self.records)
        assert [held.closed for held in self.gateway.unlimited.held] == [1] * len(self.gateway.unlimited.held)


@asynccontextmanager
async def stage(folder: Path, *, provider: SocketProvider | None = None, **options: Any) -> AsyncIterator[Stage]:
    """`options`: of the gateway and its provider. In the end nothing is left of any session."""
    async with (
        provider or SocketProvider() as speaking,
        gateway(folder, speaking.base_url, **options) as made,
        ClientSession() as http,
    ):
        found = Stage(made, speaking, http)
        yield found
        await found.until_over()


EAR = "ear-1"
TRANSCRIPT = "conversation.item.input_audio_transcription"
SESSION = {
    "type": "session.updated",
    "session": {"model": "electron", "audio": {"input": {"transcription": {"model": EAR}}}},
}
SCOPES = (Scope("k", Limits(budget_nusd=Nusd(10**9), rpm=1, tpm=10, parallel=1), 0.0),)


async def ask(client: Client, link: Link, **response: Any) -> None:
    """A client asks for a response in Realtime, and the provider hears it."""
    await client.say({"type": "response.create", "response": response})
    await link.hear("response.create")


async def tell(client: Client, link: Link, *events: dict[str, Any]) -> None:
    """The provider says `events`, and the client hears up to the last one's type."""
    await link.say(*events)
    await client.hear(events[-1]["type"])


async def leave(on: Stage, client: Client, how: str) -> None:
    if how == "closes":
        await client.socket.close(code=1000)
    else:
        client.abort()
    await on.until_over()


class Limited(Everybody):
    """A key with limits."""

    def access(self, key: ApiKey) -> KeyAccess:
        return super().access(key)._replace(scopes=SCOPES)


LIST = Price("test", (Rates(10**6, 10**6, 10**6, audio_hour=10**9),))


@asynccontextmanager
async def priced_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """With a key that has limits."""
    async with stage(tmp_path, keys=Limited()) as on:
        named_as(on, "electron", "electron", LIST)
        yield on


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Stage]:
    """With a key that may do everything."""
    async with stage(tmp_path) as made:
        yield made


def named_as(
    on: Stage, name: str, upstream_model: str, price: Price | None = None, provider: Provider | None = None
) -> None:
    """Another model of the provider, or of another one."""
    route = Route(provider or on.gateway.provider, upstream_model, lambda *_: (price, price))
    on.gateway.sockets._opener._models._named[name] = route
