"""A route that is kept is the one of the key as it is now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proxy.billing.byok import list_price
from proxy.billing.pricing.rules import NOBODY
from proxy.billing.record import Price, Rates
from proxy.gateway.exchange.opener import ROUTES_KEPT, ExchangeOpener
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models, Route
from proxy.http.errors import ApiError
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.settings import ProviderSettings
from tests.gateway.inprocess import KEY

PROVIDER = Provider.of(ProviderSettings(name="p", base_url="http://p.test"), write_stall_s=60)


def opener() -> ExchangeOpener:
    """Of one provider, which passes every model's name."""
    none: Any = None
    models = Models({}, lambda name: Route(PROVIDER, name, lambda *_: (None, None)))
    return ExchangeOpener(keys=none, models=models, ports=none, limits=none)


def test_a_changed_key_is_seen_at_the_next_request() -> None:
    found = opener()
    before = found.find_route("m", KEY, OPENAI_CHAT)
    assert found.find_route("m", KEY, OPENAI_CHAT) is before
    without = replace(KEY, models=frozenset({"other"}), revision=2)
    with pytest.raises(ApiError, match="m"):
        found.find_route("m", without, OPENAI_CHAT)
    assert found.find_route("m", replace(without, models=None, revision=3), OPENAI_CHAT).upstream_model == "m"


def test_what_is_refused_is_refused_again_and_each_dialect_has_its_own_route() -> None:
    found = opener()
    found.find_route("m", KEY, OPENAI_CHAT)
    for _ in range(2):
        with pytest.raises(ApiError):
            found.find_route("m", KEY, ANTHROPIC_MESSAGES)
        with pytest.raises(ApiError):
            found.find_route("m", replace(KEY, key_id="k2", models=frozenset()), OPENAI_CHAT)


def test_no_more_routes_are_kept_than_a_client_may_name() -> None:
    found = opener()
    for number in range(ROUTES_KEPT + 5):
        found.find_route(f"m{number}", KEY, OPENAI_CHAT)
    assert len(found._routes) <= ROUTES_KEPT


def test_a_clients_own_credential_goes_to_one_provider_that_takes_them() -> None:
    """Whatever the others of the model are, and however they are weighted."""
    none: Any = None
    sections = [ProviderSettings(name=name, base_url="http://p.test", byok=name != "a") for name in "abc"]
    made = [Provider.of(section, write_stall_s=60) for section in sections]
    price = Price("v1", (Rates(input=10, cached_input=10, output=20),))
    first, *others = [Route(one, "m", lambda *_: (price, price), weight=1) for one in made]
    models = Models({"m": replace(first, others=tuple(others)), "no": first}, lambda _: None)
    found = ExchangeOpener(keys=none, models=models, ports=none, limits=none)
    key = replace(KEY, byok="nothing")
    route = found.find_route("m", key, OPENAI_CHAT)
    assert (route.provider.settings.name, route.others) == ("b", ())
    charged, cost = route.prices(0.0, NOBODY)
    assert charged is not None
    assert cost is not None
    assert (charged.tiers[0].input, list_price(cost)) == (0, price)
    with pytest.raises(ApiError, match="own provider key"):
        found.find_route("no", key, OPENAI_CHAT)
    assert len(found.find_route("m", replace(key, byok=None), OPENAI_CHAT).others) == 2


async def test_what_sends_the_operators_credential_cannot_open_an_exchange_of_such_a_key() -> None:
    """A connection that was open when its key was marked, say."""
    document = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    facts, route = OPENAI_CHAT.facts(document, None), opener().find_route("m", KEY, OPENAI_CHAT)
    for key, byok in ((replace(KEY, byok="nothing"), False), (KEY, True)):
        with pytest.raises(ApiError) as refused:
            await opener().admit("id", OPENAI_CHAT, key, facts, route, 0.0, byok=byok)
        assert refused.value.code == "byok_not_supported"
