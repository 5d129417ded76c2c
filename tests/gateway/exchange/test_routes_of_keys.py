"""A route that is kept is the one of the key as it is now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

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
