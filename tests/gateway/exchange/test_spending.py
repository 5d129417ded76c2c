"""What a running exchange is held to have cost so far."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

from proxy.billing.limits import measured
from proxy.billing.pricing.prices import configured
from proxy.billing.record import Rates
from proxy.gateway.exchange.spending import Spending
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.metered import BodyMeter
from tests.metering.fixtures import say, sse

PRICE = configured(
    Rates(1_000_000, 1_000_000, 2_000_000), service_tiers={"priority": (Rates(3_000_000, 3_000_000, 6_000_000),)}
)


def spent(
    estimator: Any, events: list[dict[str, Any]], *, amounts: dict[str, int] | None = None, **opened: Any
) -> tuple[list[Any], Spending, BodyMeter]:
    """What is held after a stream of these events; `opened`: of the exchange; `amounts`: at quotas."""
    usual = {"prompt_tokens_estimate": 0, "completion_tokens_max": None, "echoes": UNSET, "reserved_nusd": 1}
    grown: list[Any] = []
    open_exchange: Any = SimpleNamespace(
        opened=SimpleNamespace(price=PRICE, **usual | opened),
        reservation=SimpleNamespace(
            grow=grown.append, grow_quotas=grown.append, reserved=SimpleNamespace(amounts=amounts or {})
        ),
        model_key="p/m",
    )  # fmt: skip
    spending, meter = Spending(open_exchange, estimator), OPENAI_CHAT.stream_meter()
    meter.feed(sse(*events))
    meter.fold()
    spending.folded(meter)
    return grown, spending, meter


def test_tokens_so_far_count_at_quotas() -> None:
    estimator: Any = SimpleNamespace(completion=lambda *_, **__: SimpleNamespace(tokens=5))
    more = {"amounts": {"rule_a#output_tokens": 9}, "prompt_tokens_estimate": 10, "reserved_nusd": None}
    grown, _, _ = spent(estimator, say("Rain."), **more)
    assert grown == [measured(1, 10, 5)]


@pytest.mark.parametrize(("tier", "nusd"), [(None, 1 * 10 + 2 * 5), ("default", 20), ("priority", 3 * 10 + 6 * 5)])
def test_it_is_the_price_of_the_tier_that_serves(tier: str | None, nusd: int) -> None:
    estimator: Any = SimpleNamespace(completion=lambda *_, **__: SimpleNamespace(tokens=5))
    grown, _, _ = spent(estimator, say("Rain.", service_tier=tier), prompt_tokens_estimate=10)
    assert grown == [nusd]


@pytest.mark.parametrize(("echoes", "least", "most"), [(UNSET, 2 * 406, 2 * 410), (True, 2, 2)])
def test_a_hold_grows_with_what_is_seen_whatever_was_asked(echoes: Any, least: int, most: int) -> None:
    """Else a limit that nobody keeps would hold one token, and a budget would never be short."""
    days = say(*(f" {day}" for day in range(406)))
    grown, spending, meter = spent(Estimator(), days, completion_tokens_max=1, echoes=echoes)
    assert least <= grown[-1] <= most
    assert spending.generated(meter) == grown[-1] / 2
