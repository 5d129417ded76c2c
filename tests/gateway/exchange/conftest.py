"""One deployment for tests that need prices or limits of their own: a provider section and a model for each case; and
the exchanges that are left in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import pytest

from proxy.gateway.exchange.exchange import Exchange
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section

DRAWN_PRICE = {"input": 2, "output": 8}
IMAGE_PRICE = {"input": 5, "output": 30, "image_output": 40}
TIERED = {
    **PRICE,
    "tiers": [{"above_prompt_tokens": 500, **PRICE, "input": 0.9}],
    "service_tiers": {"priority": {"input": 0.7, "cached_input": 0.3, "output": 3.1}},
}
PRIORITY = PRICE | {"service_tiers": {"priority": {"input": 0.26, "output": 0.82}}}
DOUBLED = PRICE | {"multipliers": {"tier:priority": 2}}


@pytest.fixture(scope="session")
def priced_process(tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider) -> Iterator[Tokenweir]:
    """A model `NAME/…` or `NAME` for each provider section; organizations and rules."""
    base = provider_process.base_url
    timeouts = {"connect_s": 5, "first_byte_s": 60, "idle_s": 0.4, "total_s": 0.6}
    plain = ("once", "stated-usage", "facts-plain", "facts-stream", "doubled", "drawing", "ruled", "stating", "tiered")
    sections = {
        **{name: provider_section(base) for name in plain},
        "hasty": provider_section(base, timeouts=timeouts),
        "unbilled": provider_section(base, not_billed=["usage.energy_kwh", "usage.mood=fast"]),
        "messages": provider_section(base, dialects=["anthropic.messages"]),
        "router": provider_section(base, usage_include=True),
        "partly": provider_section(base, bill={"served": "output"}),
    }
    prices = {"tiered": (TIERED, COST), "doubled": (DOUBLED, PRICE), "unbilled": (PRIORITY, PRIORITY)}
    models = {f"{name}/*": (name, *prices.get(name, (PRICE, COST))) for name in sections} | {
        "draws": ("drawing", DRAWN_PRICE, DRAWN_PRICE),
        "img": ("drawing", IMAGE_PRICE, {"input": 4, "output": 20}),
        "draws-unpriced": ("drawing", PRICE, PRICE),
        "fable": ("messages", {"input": 10, "output": 50}, {"input": 10, "output": 50}),
        "opus": ("messages", {"input": 5, "output": 25}, {"input": 5, "output": 25}),
    }
    rules = {
        "acme": {"organizations": ["acme"], "multiply": 0.9},
        "old-contract": {"organizations": ["acme"], "multiply": 0.1, "ends": "2026-01-01"},
        "supplier": {"changes": "cost", "providers": ["ruled"], "multiply": "1/2"},
        "as-stated": {"providers": ["stating"], "stated": 1},
        "fee": {"providers": ["stating"], "multiply": 1.05},
        "paid": {"changes": "cost", "providers": ["stating"], "stated": 1},
        "sevenths": {"organizations": ["sevenths"], "multiply": "7/9"},
        "routed": {"providers": ["router"], "stated": 1.05},
    }
    one = Tokenweir(
        tmp_path_factory.mktemp("priced"),
        providers=sections,
        models={
            name: {"provider": section, "price": price, "cost": cost} for name, (section, price, cost) in models.items()
        },
        price_rules=rules,
        idempotency={"replay_bytes_max": "64 KiB"},
        write_stall_s=30,
    )
    try:
        one.start()
        for organization in ("acme", "sevenths"):
            one.said("accounts", "create-organization", organization)
            one.said("accounts", "create-project", f"of-{organization}", "--organization", organization)
        yield one
        assert one.unreconciled() == []
    finally:
        one.close()


@pytest.fixture(scope="session")
def priced_key(priced_process: Tokenweir) -> str:
    """A key without an organization."""
    return priced_process.key()


@pytest.fixture
def priced(priced_process: Tokenweir, provider: ScriptedProvider) -> Tokenweir:
    """The deployment, its provider without plans."""
    assert provider
    return priced_process


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeakSet[Exchange]]:
    """The exchanges that something refers to. Garbage is not collected."""
    found: WeakSet[Exchange] = WeakSet()
    seen, begin = 0, Exchange.__init__

    def begun(exchange: Exchange, *arguments: Any, **options: Any) -> None:
        nonlocal seen
        seen += 1
        found.add(exchange)
        begin(exchange, *arguments, **options)

    monkeypatch.setattr(Exchange, "__init__", begun)
    gc.disable()
    yield found
    gc.enable()
    assert seen, "no exchange"
