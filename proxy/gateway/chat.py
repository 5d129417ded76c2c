"""From a request to an open exchange: who asks, for what, from whom, at which price; or a refusal.

Law: nothing goes up before the exchange is open in the outbox. A refusal before that leaves no entry.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

import msgspec
from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.billing.record import Opened
from proxy.gateway import errors
from proxy.gateway.closing import Closing
from proxy.gateway.connection import ClientConnection
from proxy.gateway.errors import JSON_TYPE
from proxy.gateway.exchange import Exchange
from proxy.gateway.ids import exchange_id
from proxy.gateway.ports import OutboxFullError, Ports, Route
from proxy.gateway.request_body import parse_object, read_body
from proxy.gateway.routing import Models
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai_request import InvalidField, RequestFacts


class Authenticator(Protocol):
    """Who may: the keyring, as the gateway sees it."""

    async def key(self, presented: str | None) -> ApiKey | str:
        """The key, or why it is refused: missing, malformed, unknown, expired, revoked."""


class Chat:
    """Serves requests that go to a provider, and the list of models they can name."""

    def __init__(
        self,
        *,
        keys: Authenticator,
        models: Models,
        ports: Ports,
        request_bytes_max: int,
        closed: Callable[[], str | None],
    ) -> None:
        """`closed` says why no new work is taken, or None."""
        self._keys = keys
        self._models = models
        self._ports = ports
        self._request_bytes_max = request_bytes_max
        self._closed = closed
        self.live: set[Exchange] = set()

    async def serve(
        self, request: web.BaseRequest, connection: ClientConnection, dialect: Dialect
    ) -> web.StreamResponse:
        """One exchange, to its end. Raises ApiError if it is not admitted."""
        received_at = monotonic()
        if (reason := self._closed()) is not None:
            raise errors.overloaded(reason, code="not_accepting")
        key = await self._authenticated(request)
        document = parse_object(await self._body(request))
        facts = _facts(dialect, document)
        route = self._routed(facts.model, key)
        exchange = self._open(request, connection, dialect, key, facts, document, route, received_at)
        self.live.add(exchange)
        try:
            return await exchange.run()
        finally:
            self.live.discard(exchange)

    async def models(self, request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        """GET /v1/models: what this key may use."""
        key = await self._authenticated(request)
        listed = [
            {"id": name, "object": "model", "created": 0, "owned_by": provider}
            for name, provider in self._models.listed(key)
        ]
        body = msgspec.json.encode({"object": "list", "data": listed})
        return web.Response(body=body, content_type=JSON_TYPE)

    async def _authenticated(self, request: web.BaseRequest) -> ApiKey:
        presented = request.headers.getall("Authorization", ())
        if len(presented) > 1:
            raise errors.bad_request("More than one Authorization header.", param="Authorization")
        key = await self._keys.key(_bearer(presented[0]) if presented else None)
        if isinstance(key, str):
            raise errors.key_refused(key)
        return key

    async def _body(self, request: web.BaseRequest) -> bytes:
        try:
            return await read_body(request, bytes_max=self._request_bytes_max)
        except (web.RequestPayloadError, ConnectionError):
            raise errors.bad_request("The request body broke off.", code="incomplete_body") from None

    def _routed(self, model: str, key: ApiKey) -> Route:
        route = self._models.route(model)
        if route is None:
            raise errors.unknown_model(model)
        if not key.allows(model):
            raise errors.model_not_allowed(model)
        return route

    def _open(
        self,
        request: web.BaseRequest,
        connection: ClientConnection,
        dialect: Dialect,
        key: ApiKey,
        facts: RequestFacts,
        document: dict[str, Any],
        route: Route,
        received_at: float,
    ) -> Exchange:
        ports = self._ports
        made = exchange_id()
        try:
            slot = ports.outbox.claim(made)
            opened = self._opened(made, dialect, key, facts, route, slot.index)
            try:
                durable = ports.outbox.begin(opened)
            except OutboxFullError:
                slot.release()
                raise
        except OutboxFullError as full:
            raise errors.overloaded(str(full), code="not_accepting") from None
        closing = Closing(opened, slot, ports, prompt=facts.prompt, started_at=received_at)
        return Exchange(
            request, connection, facts=facts, document=document, route=route, closing=closing, ports=ports,
            dialect=dialect, received_at=received_at, durable=durable,
        )  # fmt: skip

    def _opened(self, made: str, dialect: Dialect, key: ApiKey, facts: RequestFacts, route: Route, slot: int) -> Opened:
        provider = route.provider.settings
        now = self._ports.unix_time()
        price, cost = route.prices(now)
        prompt = self._ports.estimator.prompt(f"{provider.name}/{route.upstream_model}", facts.prompt)
        return Opened(
            exchange_id=made,
            key_id=key.key_id,
            key_alias=key.alias,
            provider=provider.name,
            model=facts.model,
            upstream_model=route.upstream_model,
            endpoint=dialect.path,
            streamed=facts.streamed,
            started_at=now,
            price=price,
            cost=cost,
            prompt_tokens_estimate=prompt.tokens,
            completion_tokens_max=facts.completion_tokens_max,
            slot=slot,
            bill=provider.bill,
        )


def _facts(dialect: Dialect, document: dict[str, Any]) -> RequestFacts:
    try:
        return dialect.facts(document)
    except InvalidField as refusal:
        raise errors.bad_request(refusal.message, param=refusal.param, code="invalid_value") from None


def _bearer(header: str) -> str:
    """The credential of an Authorization header; a bare key is accepted as some clients send it."""
    scheme, _, credential = header.partition(" ")
    return credential.strip() if scheme.lower() == "bearer" else header
