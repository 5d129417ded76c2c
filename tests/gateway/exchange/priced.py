"""One deployment for tests that need prices or limits of their own: a provider section and a model for each case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.gateway.deployment import SOON_S
from tests.support.net import Response, post_chat
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


class Priced(Tokenweir):
    """The deployment."""

    provider: ScriptedProvider
    secret = ""
    """of a key without an organization"""

    async def post(self, body: Any, path: str = "/v1/chat/completions", *, key: str = "", **headers: str) -> Response:
        """One answered request."""
        response = await post_chat(self.url, body, timeout_s=SOON_S, path=path, key=key or self.secret, headers=headers)
        assert response.status == 200
        return response


@pytest.fixture(scope="session")
def priced_process(tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider) -> Iterator[Priced]:
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
        "misreports": provider_section(base, usage={"refuted": "estimate"}),
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
    one = Priced(
        tmp_path_factory.mktemp("priced"),
        providers=sections,
        models={
            name: {"provider": section, "price": price, "cost": cost} for name, (section, price, cost) in models.items()
        },
        price_rules=rules,
        idempotency={"replay_bytes_max": "64 KiB"},
        write_stall_s=30,
    )
    with closing(one):
        one.start()
        one.provider, one.secret = provider_process, one.key()
        for organization in ("acme", "sevenths"):
            one.said("accounts", "create-organization", organization)
            one.said("accounts", "create-project", f"of-{organization}", "--organization", organization)
        yield one
        assert one.unreconciled() == []


@pytest.fixture
def priced(priced_process: Priced, provider: ScriptedProvider) -> Priced:
    """The deployment, its provider without plans."""
    assert provider is priced_process.provider
    return priced_process
