"""Which model serves when rules refuse; the rest of it is tested on a deployment (tests/budgets/deployed)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import UNSET

from proxy.billing.limit_rules import LimitRule
from proxy.billing.limits import Limits
from proxy.billing.record import Fallback
from proxy.gateway.exchange.fallback import FALLBACKS_MAX, admit_or_fall_back
from proxy.gateway.exchange.opener import ExchangeOpener
from proxy.gateway.exchange.refusals import RefusedByRuleError
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models, Route
from proxy.http.errors import ApiError, model_unpriced
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.settings import ProviderSettings
from tests.gateway.inprocess import KEY

ONE, TWO, ANTHROPIC = (
    Provider.of(ProviderSettings(name=name, base_url="http://p.test", dialects=(dialect,)), write_stall_s=60)
    for name, dialect in (("one", "openai"), ("two", "openai"), ("other", "anthropic"))
)


def route(provider: Provider, model: str, *others: Route) -> Route:
    return Route(provider, model, lambda *_: (None, None), others=others)


ROUTES = {name: route(ONE, name) for name in ("dear", "b", "c", "d", "e")} | {
    "cheap": route(ONE, "cheap-at-one", route(TWO, "cheap-at-two")),
    "spoken": route(ANTHROPIC, "spoken"),
}


class Refusing(ExchangeOpener):
    """Admits what no rule refuses. `rules`: model → its fallback model. `full`: providers whose rules refuse."""

    full: tuple[str, ...] = ()

    def __init__(self, **rules: str) -> None:
        none: Any = None
        super().__init__(keys=none, models=Models(ROUTES, lambda _: None), ports=none, limits=none)
        self.rules, self.asked = rules, list[str]()

    async def admit(self, exchange_id: str, dialect: Any, key: Any, facts: Any, route: Route, **how: Any) -> Any:
        self.asked.append(facts.model)
        refusing = [LimitRule(rule_id=f"rule_{one}", providers=(one,), **PLAIN) for one in self.full]
        if facts.model in self.rules:
            fallback = self.rules[facts.model]
            refusing.append(LimitRule(rule_id=f"rule_{facts.model}", fallback_model=fallback, **PLAIN))
        for rule in refusing:
            if rule.is_for_one_of(route.provider_names):
                error = ApiError(402, f"refused at {facts.model}", headers=(("x-should-retry", "false"),))
                raise RefusedByRuleError(error, rule)
        return how["fallback"]


PLAIN: dict[str, Any] = {"name": "plain", "limits": Limits(rpm=1), "created_at": 0.0, "revision": 1}
FACTS = OPENAI_CHAT.facts({"model": "dear", "messages": [{"role": "user", "content": "hi"}]})


async def admitted(opener: Refusing, key: Any = KEY, at: Route = ROUTES["dear"], *, pinned: bool = False) -> Any:
    return await admit_or_fall_back(opener, "x", OPENAI_CHAT, key, FACTS, at, pinned=pinned)


async def test_the_next_model_serves_at_its_own_providers() -> None:
    assert (await admitted(Refusing())).open_exchange is UNSET
    found = await admitted(Refusing(dear="cheap"))
    assert found.open_exchange == Fallback("dear", "rule_dear")
    assert (found.facts.model, found.route.upstream_model, len(found.route.others)) == ("cheap", "cheap-at-one", 1)
    further = await admitted(Refusing(dear="b", b="cheap"))
    assert (further.facts.model, further.open_exchange) == ("cheap", Fallback("dear", "rule_b"))


async def test_what_continues_stays_at_its_provider() -> None:
    found = await admitted(Refusing(dear="cheap"), at=route(TWO, "dear"), pinned=True)
    assert (found.route.upstream_model, found.route.others) == ("cheap-at-two", ())
    with pytest.raises(ApiError, match="refused at dear"):
        await admitted(Refusing(dear="b"), at=route(TWO, "dear"), pinned=True)


async def test_the_providers_of_a_rule_that_refuses_are_passed_over() -> None:
    both = route(ONE, "at-one", route(TWO, "at-two"))
    for full, left in (("one", "at-two"), ("two", "at-one")):
        opener = Refusing()
        opener.full = (full,)
        found = await admitted(opener, at=both)
        assert (found.route.upstream_model, found.route.others, found.open_exchange) == (left, (), UNSET)
    opener.full = ("one", "two")
    with pytest.raises(ApiError, match="refused at dear"):
        await admitted(opener, at=both)
    opener = Refusing(dear="cheap")
    opener.full = ("one",)
    found = await admitted(opener, at=both)
    assert (found.route.upstream_model, found.open_exchange) == ("cheap-at-two", Fallback("dear", "rule_dear"))


@pytest.mark.parametrize("model", ["unknown", "spoken", "b"])
async def test_a_model_that_cannot_serve_leaves_the_refusal(model: str) -> None:
    opener = Refusing(dear=model)
    with pytest.raises(ApiError, match="refused at dear") as refused:
        await admitted(opener, replace(KEY, models=frozenset({"dear", "unknown", "spoken"})))
    assert (refused.value.status, refused.value.headers) == (402, (("x-should-retry", "false"),))
    assert opener.asked == ["dear"]


async def test_a_model_without_a_price_leaves_the_refusal() -> None:
    class Unpriced(Refusing):
        async def admit(self, exchange_id: str, dialect: Any, key: Any, facts: Any, route: Route, **how: Any) -> Any:
            if facts.model == "cheap":
                raise model_unpriced("cheap")
            return await super().admit(exchange_id, dialect, key, facts, route, **how)

    with pytest.raises(ApiError, match="refused at dear"):
        await admitted(Unpriced(dear="cheap"))


async def test_rules_that_lead_to_one_another_end() -> None:
    opener = Refusing(dear="b", b="c", c="dear")
    with pytest.raises(ApiError, match="refused at dear"):
        await admitted(opener)
    assert len(opener.asked) == FALLBACKS_MAX + 1
