"""Turns a client's handshake into a session.

Invariants: a session needs a valid key. If the URL names the model, the provider is connected before the client's
handshake is answered, so that a refusal is an HTTP response; if each request names a model, the first request connects
the provider.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from urllib.parse import parse_qs

from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.gateway.authentication import Accepting, about_key, accepted
from proxy.gateway.exchange.opener import ExchangeOpener
from proxy.gateway.exchange.refusals import too_many_at_once
from proxy.gateway.exchange.running import ExchangeOwners, LiveExchange
from proxy.gateway.exchange.uploads import Uploads
from proxy.gateway.ports import Ports, RequestLimits
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider, TimeLimits
from proxy.gateway.upstream.provider_call import MayAsk
from proxy.gateway.upstream.routing import Route
from proxy.gateway.websocket.dial import DeclinedError, Dialler, Line
from proxy.gateway.websocket.exchanges import SessionExchanges, check_metered
from proxy.gateway.websocket.session import Session
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.credentials import presented
from proxy.http.errors import ApiError
from proxy.http.headers import PROVIDER_KEY_HEADER, SERVER
from proxy.http.reply import Reply
from proxy.http.websocket import WebSocket
from proxy.http.websocket_head import PROTOCOL, Handshake, handshake
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import is_ours
from proxy.metering.dialect import Dialect

# Sessions of a key per request that it may run in parallel: idle sessions take memory.
SESSIONS_PER_REQUEST = 4


class WebSocketHandler:
    """Serves WebSockets."""

    def __init__(
        self,
        *,
        keys: Keyring,
        opener: ExchangeOpener,
        ports: Ports,
        providers: Mapping[str, Provider],
        live: set[LiveExchange],
        owners: ExchangeOwners,
        uploads: Uploads,
        limits: RequestLimits,
        sessions_max: int,
        accepting: Accepting,
    ) -> None:
        """`live`, `owners`: of all running exchanges."""
        self._keys = keys
        self._opener = opener
        self._ports = ports
        self._providers = providers
        self._live = live
        self._owners = owners
        self._uploads = uploads
        self._request_limits = limits
        self._sessions_max = sessions_max
        self._accepting = accepting
        self.sessions: set[Session] = set()
        self._sessions_of: Counter[str] = Counter()

    async def serve(
        self, request: web.BaseRequest, connection: ClientConnection, dialect: Dialect, _named: str | None
    ) -> web.StreamResponse:
        """Serve one session to its end. Raises ApiError if it cannot begin."""
        self._accepting.check()
        secret = presented(request, is_ours)
        authenticate = partial(accepted, self._keys, secret, request.remote)
        key = await authenticate()
        if key.byok is not None or PROVIDER_KEY_HEADER in request.headers:
            raise errors.no_upgrade()  # clients that can use HTTP do so at once
        shake = handshake(request)
        self._sessions_of[key.key_id] += 1
        try:
            self._check_number(key)
            return await self._served(request, connection, dialect, shake, key, authenticate)
        except ApiError as refusal:
            refusal.about = about_key(key, dialect.endpoint)
            raise
        finally:
            self._sessions_of[key.key_id] -= 1
            if not self._sessions_of[key.key_id]:
                del self._sessions_of[key.key_id]

    def _check_number(self, key: ApiKey) -> None:
        """Raises ApiError if there are too many sessions."""
        limits = [scope.limits.parallel for scope in self._keys.scopes(key) if scope.limits.parallel is not None]
        most, why = self._request_limits.sockets_per_key_max, ""
        if limits and SESSIONS_PER_REQUEST * min(limits) < most:
            most, why = SESSIONS_PER_REQUEST * min(limits), f" ({min(limits)} requests at once)"
        if self._sessions_of[key.key_id] > most:
            raise too_many_at_once(f"This key may have {most} WebSockets open{why}. Please try again later.")
        if self._sessions_of.total() > self._sessions_max:
            raise errors.overloaded("Too many connections at once. Please try again later.", code="not_accepting")

    async def _served(
        self,
        request: web.BaseRequest,
        connection: ClientConnection,
        dialect: Dialect,
        shake: Handshake,
        key: ApiKey,
        authenticate: Callable[[], Awaitable[ApiKey]],
    ) -> web.StreamResponse:
        assert dialect.socket is not None
        model, line, protocol = "", None, next(iter(shake.protocols), None)
        if dialect.socket.model_query:
            model = _model_in(request, dialect.socket.model_query)
            line = await self._dialled(request, dialect, shake, model, key)
            protocol = line.protocol
        limits = self._limits(dialect) if line is None else line.route.provider.limits
        reply = Reply(request)
        fields = [SERVER, *([] if protocol is None else [(str(PROTOCOL), protocol)])]
        transport = request.transport
        if transport is None or not reply.switch([("Sec-WebSocket-Accept", shake.accept), *fields]):
            if line is not None:
                line.socket.abort()
            return reply
        client = WebSocket(
            connection,
            transport,
            masks=False,
            message_bytes_max=self._request_limits.body_bytes_max,
            grew=self._uploads.take,
            shrank=self._uploads.give_back,
        )
        connection.set_parser(client)  # type: ignore[arg-type]  # it has what is called
        connection.listener = _Listener(client)
        session = self._session(request, dialect, shake, client, model, limits, authenticate)
        self.sessions.add(session)
        try:
            await session.run(line)
        finally:
            connection.listener = None
            self.sessions.discard(session)
        return reply

    def _session(
        self,
        request: web.BaseRequest,
        dialect: Dialect,
        shake: Handshake,
        client: WebSocket,
        model: str,
        limits: TimeLimits,
        authenticate: Callable[[], Awaitable[ApiKey]],
    ) -> Session:
        assert dialect.socket is not None
        wire = dialect.socket.wire()

        async def dial(route: Route, may_ask: MayAsk) -> Line:
            return await Dialler(self._ports, dialect, request, shake.protocols, route).dial(may_ask)

        exchanges = partial(
            SessionExchanges,
            keys=self._keys,
            authenticate=authenticate,
            opener=self._opener,
            ports=self._ports,
            dialect=dialect,
            wire=wire,
            model=model,
            live=self._live,
            owners=self._owners,
            headers=request.headers,
        )
        return Session(
            client, wire, exchanges, self._ports, limits=limits, dial=dial, names_models=not dialect.socket.model_query
        )

    async def _dialled(
        self, request: web.BaseRequest, dialect: Dialect, shake: Handshake, model: str, key: ApiKey
    ) -> Line:
        """Raises ApiError."""
        route = self._opener.order_by_health(self._opener.find_route(model, key, dialect), model)
        check_metered(route, self._ports.unix_time(), self._keys.payer(key), model)
        dialler = Dialler(self._ports, dialect, request, shake.protocols, route)
        try:
            async with asyncio.timeout(route.provider.limits.first_byte_s):
                return await dialler.dial()
        except UpstreamFailedError as failure:
            raise failure.refusal() from None
        except TimeoutError:
            route.provider.health.failed(monotonic())
            raise errors.upstream_stalled() from None
        except DeclinedError as declined:
            raise (
                declined.refusal if declined.speaks else errors.unsupported_dialect(model, dialect.endpoint)
            ) from None

    def _limits(self, dialect: Dialect) -> TimeLimits:
        """The limits of the first provider that may accept WebSockets in this dialect. Raises ApiError 426 if none
        does; clients then use HTTP."""
        now = monotonic()
        supporting = [one for one in self._providers.values() if one.speaks_sockets(dialect, now)]
        if not supporting:
            raise errors.no_upgrade()
        return supporting[0].limits


class _Listener:
    """Passes the client connection's flow control on to its WebSocket."""

    def __init__(self, client: WebSocket) -> None:
        self._client = client

    def client_left(self) -> None:
        """Nothing to do: the connection calls `feed_eof`, too."""

    def client_full(self) -> None:
        self._client.pause_writing()

    def client_drained(self) -> None:
        self._client.resume_writing()


def _model_in(request: web.BaseRequest, name: str) -> str:
    """The model in the query. Raises ApiError."""
    values = parse_qs(request.raw_path.partition("?")[2].partition("#")[0], max_num_fields=64).get(name, [])
    if len(values) != 1:
        raise errors.model_missing(name)
    return values[0]
