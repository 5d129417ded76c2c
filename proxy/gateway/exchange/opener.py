"""Opens exchanges: route, price, limits, outbox. Every billed request to a provider is opened here.

Invariant: a refused request leaves no ledger entry and no reservation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from random import random
from time import monotonic
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType, structs

from proxy.billing.byok import byok_lists
from proxy.billing.dimensions import Dimensions
from proxy.billing.ending import FREE
from proxy.billing.keys import ApiKey
from proxy.billing.limits import Scope, measured
from proxy.billing.money import Nusd
from proxy.billing.pricing.prices import can_quote
from proxy.billing.pricing.quote import Quote, completion_tokens, completion_tokens_bound, quote
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import Fallback, Opened, Price
from proxy.billing.reservation import Denied
from proxy.budgets.admission import OpenReservation
from proxy.gateway.exchange.open_exchange import OpenExchange, prompt_tokens, silence_of
from proxy.gateway.exchange.refusals import RequestedAmounts, refusal
from proxy.gateway.outbox import OutboxFullError
from proxy.gateway.ports import Ports, RequestLimits, Reserve
from proxy.gateway.upstream.routing import Models, Route, by_health, only_at, supporting
from proxy.http import errors
from proxy.journal.progress import Slot
from proxy.keys.keyring import Keyring
from proxy.keys.response_owners import ResponseOwner
from proxy.metering.dialect import Dialect
from proxy.metering.request import InvalidField, RequestFacts
from proxy.metering.usage import NO_USAGE

NOTHING_HELD = Quote(Nusd(0), 0, 0)
# Routes of keys that are kept; with the model "*", a client may send any name.
ROUTES_KEPT = 4_096

T = TypeVar("T")


class AdmissionTerms(Struct, frozen=True, gc=False):
    """The prices and limits of an exchange, fixed at admission."""

    at: float
    """Unix seconds"""
    price: Price | None
    cost: Price | None
    prompt_tokens: int
    payer: Payer


class ExchangeOpener:
    """Admits requests of authenticated keys."""

    def __init__(self, *, keys: Keyring, models: Models, ports: Ports, limits: RequestLimits) -> None:
        self._keys = keys
        self._models = models
        self._ports = ports
        self._limits = limits
        self._routes: dict[tuple[str, str, str], tuple[ApiKey, Route]] = {}
        """id of a key, model and dialect → the key as it was, and the route"""

    def find_route(self, model: str, key: ApiKey, dialect: Dialect) -> Route:
        """The providers of a model that support the dialect. Raises ApiError."""
        found = self._routes.get((key.key_id, model, dialect.name))
        if found is not None and found[0] is key:
            return found[1]
        route = self._search_route(model, key, dialect)
        if len(self._routes) >= ROUTES_KEPT:
            self._routes.clear()
        self._routes[key.key_id, model, dialect.name] = key, route
        return route

    def forget_routes(self) -> None:
        """The models have changed: search again."""
        self._routes.clear()

    def _search_route(self, model: str, key: ApiKey, dialect: Dialect) -> Route:
        route = self._models.route(model)
        if route is None:
            raise errors.unknown_model(model)
        if not key.allows(model):
            raise errors.model_not_allowed(model)
        supported = supporting(route, dialect)
        if supported is None:
            raise errors.unsupported_dialect(model, dialect.endpoint)
        return supported if key.byok is None else _with_own_credential(supported, key.byok, model)

    async def _previous(self, response_id: str, key: ApiKey) -> ResponseOwner:
        """The owner of the response that a request continues. Raises ApiError if the key may not use it."""
        try:
            owner = await self._ports.owners.owner(response_id)
        except OSError:
            raise errors.responses_unknown() from None
        if owner is None or not owner.shares_with(key):
            raise errors.unknown_previous_response(response_id)
        return owner

    async def pin_provider(self, route: Route, continues: str | None, files: Collection[str], key: ApiKey) -> Route:
        """Keep only the provider that stores the earlier response (`continues`) and the files with these ids. Raises
        ApiError if the key may not use one of them."""
        if continues is not None:
            route = only_at(route, (await self._previous(continues, key)).provider)
        if not files or self._ports.files is None:
            return route
        provider, *others = await self._ports.files(key, files)
        there = only_at(route, provider)
        if others or there.provider.settings.name != provider:
            message = "file_id: the files must all be at a provider of the model"
            raise errors.bad_request(message, param="file_id", code="file_elsewhere")
        return there

    def order_by_health(self, route: Route, model: str) -> Route:
        """Keep only available providers, in the order of failover. Raises ApiError if none is available."""
        if not route.others:
            return route  # a single provider is used even if it failed
        found = by_health(route, monotonic(), random)
        if not isinstance(found, Route):
            raise errors.no_provider(model, retry_after_s=ceil(found))
        return found

    async def admit(
        self,
        exchange_id: str,
        dialect: Dialect,
        key: ApiKey,
        facts: RequestFacts,
        route: Route,
        received_at: float,
        dimensions: Dimensions | UnsetType = UNSET,
        *,
        money_only: bool = False,
        fallback: Fallback | UnsetType = UNSET,
        byok: bool = False,
    ) -> OpenExchange:
        """Reserve at every level, and open the exchange. `money_only`: no level limits the number of requests or
        tokens. `byok`: the client's own credential is sent to the provider. Raises ApiError if a limit is reached, a
        dimension is missing, or the outbox is full."""
        if byok is not (key.byok is not None):  # it has changed since: the other terms would be billed
            raise errors.byok_unsupported("This connection")
        access = self._keys.access(key)
        terms = self._terms(dialect, access.payer, facts, route)
        scopes = access.scopes
        if access.rules or dimensions is not UNSET or key.caps:
            scopes = self._ports.dimensions.levels(key, access, facts.model, dimensions, route.provider_names)
        if money_only:
            scopes = tuple(map(_of_money, scopes))
        reservation = await self._reserved(exchange_id, key, facts, route, terms, scopes)
        try:
            opened, slot, durable = self._open(
                exchange_id, dialect, key, facts, route, terms, reservation, dimensions, fallback
            )
        except BaseException:
            reservation.close(0, 0)
            raise
        open_exchange = OpenExchange(
            opened, slot, self._ports,
            facts=facts, started_at=received_at, reservation=reservation, durable=durable,
            route=route, payer=terms.payer,
        )  # fmt: skip
        open_exchange.scopes = scopes
        return open_exchange

    def _terms(self, dialect: Dialect, payer: Payer, facts: RequestFacts, route: Route) -> AdmissionTerms:
        """Prices and prompt estimate of the request, fixed at admission."""
        now = self._ports.unix_time()
        if dialect.free:
            return AdmissionTerms(now, FREE, FREE, 0, payer)
        price, cost = route.prices(now, payer)
        if dialect.free_unpriced:
            price, cost = price or FREE, cost or FREE
        return AdmissionTerms(now, price, cost, prompt_tokens(self._ports.estimator, route, facts), payer)

    async def _reserved(
        self,
        exchange_id: str,
        key: ApiKey,
        facts: RequestFacts,
        route: Route,
        terms: AdmissionTerms,
        scopes: Sequence[Scope],
    ) -> OpenReservation:
        """Reserve at every level. Raises ApiError if a limit is reached."""
        price, reserve = terms.price, self._limits.reserve
        doubtful = price is None or price.lacking or not price.tiers
        if doubtful and any(scope.limits.spends for scope in scopes) and not _can_quote(price, facts):
            raise errors.model_unpriced(facts.model)
        held = self._quote(reserve, facts, route, terms) if scopes and terms.price is not FREE else NOTHING_HELD
        found = await self._ports.admission.admit(
            key, scopes, exchange_id, nusd=held.nusd, tokens=held.input_tokens + held.output_tokens,
            at_quotas=partial(measured, 1, held.input_tokens, held.output_tokens),
        )  # fmt: skip
        if isinstance(found, Denied):
            wanted = self._requested(reserve, held, facts, route, terms)
            raise refusal(found, key, scopes, wanted, at=terms.at, exceeded_status=reserve.exceeded_status)
        return found

    def _quote(self, reserve: Reserve, facts: RequestFacts, route: Route, terms: AdmissionTerms) -> Quote:
        return quote(
            terms.price,
            prompt_tokens=terms.prompt_tokens,
            completion_tokens=self._completion_tokens(reserve, facts, route),
            nusd_max=reserve.nusd_max,
            units=facts.asked,
            asked=facts.served_as,
        )

    def _completion_tokens(self, reserve: Reserve, facts: RequestFacts, route: Route) -> int:
        return completion_tokens(
            requested=facts.completion_tokens_max,
            n=facts.n,
            default=reserve.completion_tokens,
            model_max=route.completion_tokens_max,
        )

    def _requested(
        self, reserve: Reserve, held: Quote, facts: RequestFacts, route: Route, terms: AdmissionTerms
    ) -> RequestedAmounts:
        if held is NOTHING_HELD:
            return RequestedAmounts()
        completion = self._completion_tokens(reserve, facts, route)
        return RequestedAmounts(
            nusd=held.nusd,
            tokens=held.tokens,
            prompt_tokens=terms.prompt_tokens,
            completion_tokens=completion,
            answers=facts.n,
            assumed=completion // facts.n if facts.completion_tokens_max is None else 0,
            capped=held.nusd == reserve.nusd_max,
            units=facts.asked,
        )

    def _open(
        self,
        exchange_id: str,
        dialect: Dialect,
        key: ApiKey,
        facts: RequestFacts,
        route: Route,
        terms: AdmissionTerms,
        reservation: OpenReservation,
        dimensions: Dimensions | UnsetType,
        fallback: Fallback | UnsetType,
    ) -> tuple[Opened, Slot, asyncio.Future[None] | None]:
        """Open the exchange in the outbox. Raises ApiError if that is full."""
        outbox = self._ports.outbox
        limit = completion_tokens_bound(
            requested=facts.completion_tokens_max, n=facts.n, model_max=route.completion_tokens_max
        )
        try:
            slot = outbox.claim(exchange_id)
        except OutboxFullError as full:
            raise errors.overloaded(str(full), code="not_accepting") from None
        try:
            opened = Opened(
                exchange_id=exchange_id,
                key_id=key.key_id,
                key_alias=key.alias,
                provider=route.provider.settings.name,
                model=facts.model,
                upstream_model=route.upstream_model,
                endpoint=dialect.endpoint,
                streamed=facts.streamed,
                started_at=reservation.reserved.at or terms.at,  # in the windows in which it was admitted
                price=terms.price,
                cost=terms.cost,
                prompt_tokens_estimate=terms.prompt_tokens,
                completion_tokens_max=limit,
                slot=slot.index,
                bill=route.provider.settings.bill,
                reserved_nusd=Nusd(reservation.reserved.nusd) if reservation.spends else None,
                asked=UNSET if facts.asked is NO_USAGE else facts.asked,
                silence=silence_of(self._ports.estimator, route, limit, facts) if facts.streamed else UNSET,
                echoes=facts.echoes or UNSET,
                dimensions=dimensions,
                fallback=fallback,
                byok=UNSET if key.byok is None else key.byok,
            )
            return opened, slot, outbox.begin(opened)
        except BaseException as failure:
            slot.release()
            if isinstance(failure, OutboxFullError):
                raise errors.overloaded(str(failure), code="not_accepting") from None
            raise


def _with_own_credential(route: Route, terms: str, model: str) -> Route:
    """The first provider that takes clients' own credentials, and no other: a credential belongs to one provider. Its
    prices are those of a key with these terms. Raises ApiError if none takes them."""
    one = next((one for one in (route, *route.others) if one.provider.settings.byok), None)
    if one is None:
        raise errors.byok_model(model)

    def prices(at: float, payer: Payer, other: str | None = None, /) -> tuple[Price | None, Price | None]:
        return byok_lists(terms, *one.prices(at, payer, other))

    return replace(one, provider=one.provider.for_client(), others=(), prices=prices)


def _of_money(scope: Scope) -> Scope:
    """The level without its limits of requests, tokens and parallel requests."""
    only_money = structs.replace(scope.limits, rpm=None, tpm=None, parallel=None, quotas={})
    return structs.replace(scope, limits=only_money)


def _can_quote(price: Price | None, facts: RequestFacts) -> bool:
    return price is not None and can_quote(price, facts.asked, generates=facts.completion_tokens_max != 0)


def checked(read: Callable[..., T], *arguments: Any) -> T:
    """The result of `read`, a function of a dialect. Raises ApiError for an invalid field."""
    try:
        return read(*arguments)
    except InvalidField as refusal:
        raise errors.bad_request(str(refusal), param=refusal.param, code="invalid_value") from None
