"""What a running exchange is held to have cost so far."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

from proxy.billing.pricing.prices import configured
from proxy.billing.record import Rates
from proxy.gateway.exchange.spending import Spending
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.estimator.estimate import Estimator

PRICE = configured(
    Rates(1_000_000, 1_000_000, 2_000_000), service_tiers={"priority": (Rates(3_000_000, 3_000_000, 6_000_000),)}
)


@pytest.mark.parametrize(("tier", "nusd"), [(None, 1 * 10 + 2 * 5), ("default", 20), ("priority", 3 * 10 + 6 * 5)])
def test_it_is_the_price_of_the_tier_that_serves(tier: str | None, nusd: int) -> None:
    grown: list[int] = []
    open_exchange: Any = SimpleNamespace(
        opened=SimpleNamespace(
            reserved_nusd=1, price=PRICE, prompt_tokens_estimate=10, completion_tokens_max=None, echoes=UNSET
        ),
        reservation=SimpleNamespace(grow=grown.append),
        model_key="m",
    )
    estimator: Any = SimpleNamespace(completion=lambda *_, **__: SimpleNamespace(tokens=5))
    meter = OPENAI_CHAT.stream_meter()
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": "Rain."}}]}
    meter.feed(b"data: %s\n\n" % json.dumps(chunk | ({} if tier is None else {"service_tier": tier})).encode())
    meter.fold()
    Spending(open_exchange, estimator).folded(meter)
    assert grown == [nusd]


@pytest.mark.parametrize(("echoes", "least", "most"), [(UNSET, 2 * 406, 2 * 410), (True, 2, 2)])
def test_a_hold_grows_with_what_is_seen_whatever_was_asked(echoes: Any, least: int, most: int) -> None:
    """Else a limit that nobody keeps would hold one token, and a budget would never be short."""
    grown: list[int] = []
    open_exchange: Any = SimpleNamespace(
        opened=SimpleNamespace(
            reserved_nusd=1, price=PRICE, prompt_tokens_estimate=0, completion_tokens_max=1, echoes=echoes
        ),
        reservation=SimpleNamespace(grow=grown.append),
        model_key="p/m",
    )
    meter = OPENAI_CHAT.stream_meter()
    chunks = [{"id": "c", "choices": [{"index": 0, "delta": {"content": f" {day}"}}]} for day in range(406)]
    meter.feed(b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks))
    meter.fold()
    spending = Spending(open_exchange, Estimator())
    spending.folded(meter)
    assert least <= grown[-1] <= most
    assert spending.generated(meter) == grown[-1] / 2
