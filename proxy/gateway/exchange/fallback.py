"""Admission of a request, at other providers if a rule for some providers refuses it, then with the rule's fallback
model.

Invariants: A refused admission holds nothing when the next one is decided, and each is one atomic step at all levels of
its model and its providers. Another model serves only if the key may use it, its price can be reserved, and a provider
of it supports the client's dialect; else the client gets the refusal. A request that continues a stored response stays
at the provider of that response.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType, structs

from proxy.billing.keys import ApiKey
from proxy.billing.record import Fallback
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.exchange.opener import ExchangeOpener
from proxy.gateway.exchange.refusals import RefusedByRuleError
from proxy.gateway.upstream.routing import Route, only_at, without
from proxy.http.errors import ApiError
from proxy.metering.dialect import Dialect
from proxy.metering.request import RequestFacts

FALLBACKS_MAX = 3
"""fallback models that are tried for one request"""


class Admitted(NamedTuple):
    """An admitted request."""

    open_exchange: OpenExchange
    facts: RequestFacts
    """the facts of the request, with the model that serves"""
    route: Route


async def admit_or_fall_back(
    opener: ExchangeOpener,
    exchange_id: str,
    dialect: Dialect,
    key: ApiKey,
    facts: RequestFacts,
    route: Route,
    *,
    pinned: bool,
    **how: Any,
) -> Admitted:
    """Admit the request. `pinned`: only the provider of `route` can serve it. `how`: further arguments of
    `ExchangeOpener.admit`. Raises ApiError."""
    provider = route.provider.settings.name if pinned else None
    requested, left = facts.model, FALLBACKS_MAX
    fallback: Fallback | UnsetType = UNSET
    refusal: RefusedByRuleError | None = None
    while True:
        try:
            opened = await opener.admit(exchange_id, dialect, key, facts, route, fallback=fallback, **how)
        except RefusedByRuleError as refused:
            rule, model = refused.rule, refused.rule.fallback_model
            others = without(route, rule.providers) if rule.providers else None
            if others is not None:
                route = others
                continue
            found = _route(opener, model, key, dialect, provider) if model is not None and left else None
            if model is None or found is None:
                raise
            route, facts = opener.order_by_health(found, model), structs.replace(facts, model=model)
            fallback, left, refusal = Fallback(requested, rule.rule_id), left - 1, refused
        except ApiError as error:
            if refusal is not None and error.code == "model_unpriced":  # the client has not named that model
                raise refusal from None
            raise
        else:
            return Admitted(opened, facts, route)


def _route(opener: ExchangeOpener, model: str, key: ApiKey, dialect: Dialect, provider: str | None) -> Route | None:
    """The route of a fallback model. `provider`: the only one that can serve. None: the model cannot serve."""
    try:
        found = opener.find_route(model, key, dialect)
    except ApiError:
        return None
    if provider is None:
        return found
    found = only_at(found, provider)
    return found if found.provider.settings.name == provider else None
