"""Opens the provider's side of a session: chooses the provider and the credential, and reads refusals.

Invariants: nothing is generated before a session has begun, so another provider may replace any that fails. The
connection is one of the pool, so that certificates, proxies and headers are those of HTTP. No redirect is followed, and
no extension negotiated. Bytes are read no faster than the receiver processes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias
from urllib.parse import quote

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol

from proxy.gateway.exchange.upstream_request import target
from proxy.gateway.passing import refusal_body
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.client import Answer, UpstreamClient
from proxy.gateway.upstream.connection import UpstreamConnection
from proxy.gateway.upstream.credentials import Use
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.provider_call import Failover, MayAsk, ProviderCall
from proxy.gateway.upstream.routing import Route
from proxy.http import errors
from proxy.http.errors import ApiError
from proxy.http.headers import upward
from proxy.http.websocket import WebSocket
from proxy.http.websocket_head import chosen, lines_up, new_key
from proxy.metering.dialect import Dialect
from proxy.metering.wire.json_reader import document_of

# The statuses of servers without a WebSocket at the path. Some frameworks answer 403 without a body.
_NO_SOCKET = frozenset((404, 405, 426, 501))

# Twice the longest event that is parsed as a whole.
MESSAGE_BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """The open provider's side of a session."""

    socket: WebSocket
    protocol: str | None
    """the subprotocol that the provider has chosen"""
    route: Route
    use: Use | None
    """the use of one of several credentials, until the session ends"""


_Opened: TypeAlias = tuple[WebSocket, str | None]
"""the socket and its subprotocol"""


class DeclinedError(Exception):
    """The provider has declined the WebSocket."""

    def __init__(self, status: int, refusal: ApiError, *, speaks: bool) -> None:
        """`status`: the provider's. `refusal`: the error for the client. `speaks`: True if the provider may have
        declined this request, and not the protocol."""
        super().__init__(f"declined: {status}")
        self.status = status
        self.refusal = refusal
        self.speaks = speaks


class Dialler(ProviderCall["Answer | _Opened"]):
    """Connects one session to a provider."""

    GENERATES = False  # before a session has begun

    def __init__(
        self, ports: Ports, dialect: Dialect, request: web.BaseRequest, protocols: tuple[str, ...], route: Route
    ) -> None:
        """`route`: the providers to try, in order."""
        super().__init__(route, ports.unix_time)
        self._client = ports.upstream
        self._dialect = dialect
        self._request = request
        self._protocols = protocols

    async def dial(self, may_ask: MayAsk = lambda _failover: True) -> Line:
        """Try one provider after another. Raises DeclinedError, UpstreamFailedError."""
        try:
            socket, protocol = await self._opened(may_ask)
        except BaseException:
            self.release(0)
            raise
        return Line(socket, protocol, self.route, self.use)

    async def _opened(self, may_ask: MayAsk) -> _Opened:
        found = await self.answered(may_ask)
        if isinstance(found, Answer):
            raise await self._declined(self.route.provider, found)
        return found

    def fail_over(self, failover: Failover) -> None:
        """Use this provider next."""
        if isinstance(failover.outcome, Answer) and failover.outcome.status in _NO_SOCKET:
            self.route.provider.declined_sockets(self._dialect.name, monotonic())
        super().fail_over(failover)

    def _send(self, provider: Provider, use: Use | None) -> Awaitable[Answer | _Opened]:
        return _connect(self._client, provider, lambda lines: self._head(self.route, use, lines), self._protocols)

    def _head(self, route: Route, use: Use | None, lines: str) -> bytes:
        """The bytes of the handshake request."""
        dialect, provider = self._dialect, route.provider
        assert dialect.socket is not None
        path, name = target(dialect, route.upstream_model, self._request.raw_path), dialect.socket.model_query
        if name:
            path += f"{'&' if '?' in path else '?'}{name}={quote(route.upstream_model, safe='')}"
        passed = upward(self._request.headers, dialect.headers_up, provider.header_rules)
        credential = None if use is None else use.credential.name
        return provider.bodiless("GET", path, dialect.key_header, passed + lines, credential=credential)

    async def _declined(self, provider: Provider, answer: Answer) -> DeclinedError:
        """Turn a non-101 answer into DeclinedError. Raises UpstreamFailedError if its body must not be shown."""
        status = answer.status
        try:
            body = await refusal_body(answer, provider)
        except ApiError as refusal:
            return DeclinedError(status, refusal, speaks=True)
        finally:
            answer.close()
        error = _error_in(body)
        if _speaks(self._dialect, status, error is not None, is_empty=not body):
            return DeclinedError(status, _error_for_client(status, error or {}), speaks=True)
        provider.declined_sockets(self._dialect.name, monotonic())
        return DeclinedError(status, errors.no_upgrade(), speaks=False)


def _speaks(dialect: Dialect, status: int, explains: bool, *, is_empty: bool) -> bool:
    """True if the refusal may be about this request, for example about the model in its path."""
    assert dialect.socket is not None
    if status == 404 and dialect.socket.model_query:
        return explains
    return status not in _NO_SOCKET and not (status == 403 and is_empty)


def _error_in(body: bytes) -> dict[str, Any] | None:
    document = document_of(body)
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else None


def _error_for_client(status: int, error: dict[str, Any]) -> ApiError:
    """The error for the client, with the provider's message."""
    text, kind, code = (
        value if isinstance(value := error.get(name), str) else None for name in ("message", "type", "code")
    )
    message = text or "The provider refused the connection."
    return ApiError(status, message, kind=kind or "invalid_request_error", code=code or "upstream_refused")


class _Protocol(BaseProtocol):
    """Receives the bytes of a connection that has switched protocols."""

    def __init__(self, lost: Callable[[Exception | None], None]) -> None:
        super().__init__(asyncio.get_running_loop())
        self._upgraded = True  # so that aiohttp pauses the transport, and no parser
        self._lost = lost
        self.socket: WebSocket | None = None

    def data_received(self, data: bytes) -> None:
        """Receive bytes of frames."""
        if self.socket is not None:
            self.socket.feed_data(data)

    def pause_writing(self) -> None:
        """The socket's write buffer is full: the provider reads too slowly."""
        super().pause_writing()
        if self.socket is not None:
            self.socket.pause_writing()

    def resume_writing(self) -> None:
        """The socket's write buffer has space again."""
        super().resume_writing()
        if self.socket is not None:
            self.socket.resume_writing()

    def eof_received(self) -> None:
        """The transport closes itself, and `connection_lost` follows."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is lost."""
        super().connection_lost(exc)
        if self.socket is not None:
            self.socket.feed_eof()
        self._lost(exc if isinstance(exc, Exception) else None)


async def _connect(
    client: UpstreamClient, provider: Provider, request: Callable[[str], bytes], protocols: tuple[str, ...]
) -> _Opened | Answer:
    """Open a WebSocket. Returns the socket and its subprotocol, or the answer that declines. `request`: lines of the
    handshake → the request with these lines in its head. Raises UpstreamFailedError."""
    key = new_key()
    found = await client.switch(provider, request(lines_up(key, protocols)))
    if isinstance(found, Answer):
        return found
    try:
        return _switched(found, key, protocols)
    except BaseException:
        found.abort()
        raise


def _switched(connection: UpstreamConnection, key: str, protocols: tuple[str, ...]) -> _Opened:
    assert connection.switched is not None
    try:
        protocol = chosen(connection.switched, key, protocols)
    except ValueError:
        raise UpstreamFailedError("bad WebSocket handshake") from None
    receiver = _Protocol(connection.connection_lost)
    transport, rest = connection.hand_over(receiver)
    receiver.socket = WebSocket(receiver, transport, masks=True, message_bytes_max=MESSAGE_BYTES_MAX)
    if rest:
        receiver.socket.feed_data(rest)
    receiver.resume_reading()
    return receiver.socket, protocol
