"""Turns a request into an open exchange: authentication, model, route, price, limits.

Invariants: nothing is sent upstream before the exchange is open in the outbox. A refusal before that leaves no entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from random import random
from time import monotonic
from typing import Any, TypeVar

from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.billing.limits import OnExhausted, limit_counters
from proxy.billing.pricing.prices import can_quote
from proxy.billing.pricing.quote import Quote, completion_tokens, completion_tokens_bound, quote
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import Opened, Outcome, Price
from proxy.billing.reservation import Denied
from proxy.billing.response_owner import ResponseOwner
from proxy.foundation.ids import exchange_id
from proxy.gateway.authentication import Authenticator, authenticated
from proxy.gateway.exchange.answer_record import FREE
from proxy.gateway.exchange.exchange import Exchange
from proxy.gateway.exchange.hand_over import Background
from proxy.gateway.exchange.idempotency import Claim, claimed
from proxy.gateway.exchange.open_exchange import OpenExchange, model_key
from proxy.gateway.exchange.rate_limits import refusal
from proxy.gateway.exchange.running import ExchangeOwners
from proxy.gateway.exchange.told_cost import TellsCost
from proxy.gateway.exchange.uploads import Upload, Uploads
from proxy.gateway.ports import LeasedSlot, OutboxFullError, Ports, Reservation, Reserve
from proxy.gateway.upstream.routing import Models, Route, by_health, only_at, supporting
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.headers import TRACEPARENT
from proxy.http.request_body import CODECS, is_compressed, read_body
from proxy.metering.answer_cost.request import MEMBER, cost_asked
from proxy.metering.dialect import Dialect
from proxy.metering.file_ids import file_ids, may_name_files
from proxy.metering.request import InvalidField, RequestFacts

NOTHING_HELD = Quote(0, 0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Terms:
    """The prices and limits of an exchange, fixed at admission."""

    at: float
    """Unix seconds"""
    price: Price | None
    cost: Price | None
    prompt_tokens: int
    payer: Payer


class ProxyHandler:
    """Handles requests to providers."""

    def __init__(
        self,
        *,
        keys: Authenticator,
        models: Models,
        ports: Ports,
        reserve: Reserve,
        request_bytes_max: int,
        closed: Callable[[], str | None],
        background: Background,
        owners: ExchangeOwners,
    ) -> None:
        """`closed`: the reason why no new requests are accepted, or None. `background`: takes exchanges over; it tells
        `owners` when they end."""
        self._keys = keys
        self._models = models
        self._ports = ports
        self._reserve = reserve
        self._request_bytes_max = request_bytes_max
        self._closed = closed
        self.uploads = Uploads(body_bytes_max=request_bytes_max)
        self.live: set[Exchange] = set()
        self.owners = owners
        self._background = background

    async def serve(
        self, request: web.BaseRequest, connection: ClientConnection, dialect: Dialect, named: str | None
    ) -> web.StreamResponse:
        """Serve one exchange to its end. `named`: the model in its path. Raises ApiError if it is not admitted."""
        received_at = monotonic()
        if (reason := self._closed()) is not None:
            raise errors.overloaded(reason, code="not_accepting")
        key = await authenticated(self._keys, request)
        upload = None if _is_here(request) else self.uploads.begin(key.key_id, self._keys.scopes(key))
        try:
            begun = await self._begun(request, connection, dialect, named, key, received_at, upload)
            return await self._run(*begun, key) if isinstance(begun, tuple) else begun
        finally:
            if upload is not None:
                upload.free()

    async def _run(
        self, exchange: Exchange, closing: OpenExchange, claim: Claim | None, key: ApiKey
    ) -> web.StreamResponse:
        self.live.add(exchange)
        self.owners.began(exchange.exchange_id, key.key_id)
        try:
            return await exchange.run()
        finally:
            self.live.discard(exchange)
            if not closing.handed_over:
                self.owners.ended(exchange.exchange_id)
            if claim is not None:
                await claim.end(closing)

    async def _begun(
        self,
        request: web.BaseRequest,
        connection: ClientConnection,
        dialect: Dialect,
        named: str | None,
        key: ApiKey,
        received_at: float,
        upload: Upload | None,
    ) -> web.Response | tuple[Exchange, OpenExchange, Claim | None]:
        """Admitted and open; or the stored answer of an earlier request. The body and its document are dropped with
        this call's frame: an exchange can take an hour."""
        body = await self._body(request, upload)
        if upload is not None:
            upload.arrived()
        writing, content_type = CODECS[dialect.request_body], request.headers.get("Content-Type", "")
        document = writing.parse(body, content_type)
        facts = _checked(dialect.facts, document, named)
        tells_cost = TellsCost.NO
        if dialect.cost_path:
            if MEMBER in document and _checked(cost_asked, document):
                tells_cost = TellsCost.ASKED
            elif self._keys.tells_cost(key):
                tells_cost = TellsCost.WITH_USAGE
        route = self._routed(facts.model, key, dialect)
        if facts.continues is not None or (dialect.names_files and may_name_files(body)):
            route = await self._pinned(route, facts, document, dialect, key)
        made = exchange_id()
        claim = await claimed(request, key, writing.idempotency_bytes(body, content_type), made, self._ports.claims)
        if claim is not None and not isinstance(claim, Claim):
            return claim
        closing: OpenExchange | None = None
        try:
            route = self._arranged(route, facts.model)
            closing = await self._admitted(made, dialect, key, facts, route, received_at)
            if self._ports.traces is not None:
                closing.traceparent = request.headers.get(TRACEPARENT)
            if claim is not None:
                claim.keep_answer(closing)
            exchange = Exchange(
                request, connection, facts=facts, document=document, route=route, closing=closing, ports=self._ports,
                dialect=dialect, received_at=received_at, cuts=key.on_exhausted is OnExhausted.CUT,
                tells_cost=tells_cost, project_id=key.project_id, background=self._background, upload=upload,
            )  # fmt: skip
        except BaseException:
            if closing is not None:
                closing.close(Outcome.CRASHED, now=monotonic(), details={"failed": "proxy_bug"})
            if claim is not None:
                await claim.end(closing)
            raise
        return exchange, closing, claim

    async def _body(self, request: web.BaseRequest, upload: Upload | None) -> bytes:
        try:
            if upload is None:
                return await read_body(request, bytes_max=self._request_bytes_max)
            return await read_body(request, bytes_max=self._request_bytes_max, grew=upload.grew)
        except (web.RequestPayloadError, ConnectionError):
            raise errors.bad_request("The request body broke off.", code="incomplete_body") from None

    def _routed(self, model: str, key: ApiKey, dialect: Dialect) -> Route:
        route = self._models.route(model)
        if route is None:
            raise errors.unknown_model(model)
        if not key.allows(model):
            raise errors.model_not_allowed(model)
        speaks = supporting(route, dialect)
        if speaks is None:
            raise errors.unsupported_dialect(model, dialect.endpoint)
        return speaks

    async def _previous(self, response_id: str, key: ApiKey) -> ResponseOwner:
        """Who made the response that a request goes on with: its provider alone has it. Raises ApiError."""
        try:
            owner = await self._ports.owners.owner(response_id)
        except OSError:
            raise errors.responses_unknown() from None
        if owner is None or not owner.shares_with(key):
            raise errors.unknown_previous_response(response_id)
        return owner

    async def _pinned(
        self, route: Route, facts: RequestFacts, document: dict[str, Any], dialect: Dialect, key: ApiKey
    ) -> Route:
        """The provider that has what the request names: an earlier response, files. Raises ApiError: it is not the
        key's."""
        if facts.continues is not None:
            route = only_at(route, (await self._previous(facts.continues, key)).provider)
        named = file_ids(document) if dialect.names_files else set()
        if not named or self._ports.files is None:
            return route
        provider, *others = await self._ports.files(key, named)
        there = only_at(route, provider)
        if others or there.provider.settings.name != provider:
            message = "file_id: the files must all be at a provider of the model"
            raise errors.bad_request(message, param="file_id", code="file_elsewhere")
        return there

    def _arranged(self, route: Route, model: str) -> Route:
        """Raises ApiError: nobody can be asked now."""
        if not route.others:
            return route  # whatever is known of its health
        found = by_health(route, monotonic(), random)
        if not isinstance(found, Route):
            raise errors.no_provider(model, retry_after_s=ceil(found))
        return found

    def _terms(self, dialect: Dialect, key: ApiKey, facts: RequestFacts, route: Route) -> Terms:
        """What it may come to, at today's prices."""
        now = self._ports.unix_time()
        payer = self._keys.payer(key)
        if dialect.free:
            return Terms(now, FREE, FREE, 0, payer)
        price, cost = route.prices(now, payer)
        if dialect.free_unpriced:
            price, cost = price or FREE, cost or FREE
        model = model_key(route.provider.settings.name, route.upstream_model)
        return Terms(now, price, cost, self._ports.estimator.prompt_tokens(model, facts.prompt), payer)

    async def _admitted(
        self, made: str, dialect: Dialect, key: ApiKey, facts: RequestFacts, route: Route, received_at: float
    ) -> OpenExchange:
        """Held at every level, and open. Raises ApiError: a limit is reached, or there is no room."""
        terms = self._terms(dialect, key, facts, route)
        reservation = await self._reserved(made, key, facts, route, terms)
        try:
            opened, slot, durable = self._open(made, dialect, key, facts, route, terms, reservation)
        except BaseException:
            reservation.close(0, 0)
            raise
        return OpenExchange(
            opened, slot, self._ports,
            facts=facts, started_at=received_at, reservation=reservation, durable=durable,
            route=route, payer=terms.payer,
        )  # fmt: skip

    async def _reserved(self, made: str, key: ApiKey, facts: RequestFacts, route: Route, terms: Terms) -> Reservation:
        """Raises ApiError: a limit is reached."""
        scopes = self._keys.scopes(key)
        price = terms.price
        doubtful = price is None or price.lacking or not price.tiers
        if doubtful and any(scope.limits.spends for scope in scopes) and not _can_quote(price, facts):
            raise errors.model_unpriced(facts.model)
        held = self._quote(facts, route, terms) if scopes and terms.price is not FREE else NOTHING_HELD
        found = await self._ports.admission.admit(key, scopes, made, nusd=held.nusd, tokens=held.tokens)
        if isinstance(found, Denied):
            limits = tuple(gate for scope in scopes for gate in limit_counters(scope, terms.at))
            raise refusal(found, limits, exceeded_status=self._reserve.exceeded_status)
        return found

    def _quote(self, facts: RequestFacts, route: Route, terms: Terms) -> Quote:
        completion = completion_tokens(
            requested=facts.completion_tokens_max,
            n=facts.n,
            default=self._reserve.completion_tokens,
            model_max=route.completion_tokens_max,
        )
        nusd_max = self._reserve.nusd_max
        return quote(
            terms.price,
            prompt_tokens=terms.prompt_tokens,
            completion_tokens=completion,
            nusd_max=nusd_max,
            units=facts.asked,
            asked=facts.served_as,
        )

    def _open(
        self,
        made: str,
        dialect: Dialect,
        key: ApiKey,
        facts: RequestFacts,
        route: Route,
        terms: Terms,
        reservation: Reservation,
    ) -> tuple[Opened, LeasedSlot, asyncio.Future[None] | None]:
        """In the outbox. Raises ApiError."""
        outbox = self._ports.outbox
        try:
            slot = outbox.claim(made)
        except OutboxFullError as full:
            raise errors.overloaded(str(full), code="not_accepting") from None
        try:
            opened = Opened(
                exchange_id=made,
                key_id=key.key_id,
                key_alias=key.alias,
                provider=route.provider.settings.name,
                model=facts.model,
                upstream_model=route.upstream_model,
                endpoint=dialect.endpoint,
                streamed=facts.streamed,
                started_at=reservation.hold.at or terms.at,  # in the windows that it was admitted in
                price=terms.price,
                cost=terms.cost,
                prompt_tokens_estimate=terms.prompt_tokens,
                completion_tokens_max=completion_tokens_bound(
                    requested=facts.completion_tokens_max, n=facts.n, model_max=route.completion_tokens_max
                ),
                slot=slot.index,
                bill=route.provider.settings.bill,
                held_usd=reservation.hold.nusd if reservation.spends else None,
            )
            return opened, slot, outbox.begin(opened)
        except BaseException as failure:
            slot.release()
            if isinstance(failure, OutboxFullError):
                raise errors.overloaded(str(failure), code="not_accepting") from None
            raise


def _is_here(request: web.BaseRequest) -> bool:
    """The body has arrived with its head, as most do: it takes no more memory than that."""
    return request.content.is_eof() and not is_compressed(request)


def _can_quote(price: Price | None, facts: RequestFacts) -> bool:
    return price is not None and can_quote(price, facts.asked, generates=facts.completion_tokens_max != 0)


def _checked(read: Callable[..., T], *arguments: Any) -> T:
    """What it reads of the request. Raises ApiError."""
    try:
        return read(*arguments)
    except InvalidField as refusal:
        raise errors.bad_request(str(refusal), param=refusal.param, code="invalid_value") from None
