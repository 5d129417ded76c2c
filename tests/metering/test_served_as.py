"""How a request asks to be served: what is held for it goes by this, never what it is billed."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.billing.pricing.prices import configured
from proxy.billing.pricing.quote import quote
from proxy.billing.record import Rates
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.usage import NOT_SAID, ServedAs

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 10}
GEMINI = {"contents": [{"parts": [{"text": "x"}]}]}


@pytest.mark.parametrize(
    ("dialect", "document", "facts"),
    [
        (OPENAI_CHAT, CHAT, NOT_SAID),
        (OPENAI_CHAT, CHAT | {"service_tier": "priority"}, ServedAs("priority")),
        (OPENAI_CHAT, CHAT | {"service_tier": "fast"}, ServedAs("priority")),
        (OPENAI_CHAT, CHAT | {"service_tier": "auto"}, NOT_SAID),
        (OPENAI_CHAT, CHAT | {"service_tier": None}, NOT_SAID),
        (OPENAI_CHAT, CHAT | {"service_tier": ["flex"]}, ServedAs("other")),
        (OPENAI_RESPONSES, {"model": "m", "input": "x", "service_tier": "flex"}, ServedAs("flex")),
        (ANTHROPIC_MESSAGES, CHAT | {"service_tier": "standard_only"}, ServedAs("standard")),
        (ANTHROPIC_MESSAGES, CHAT | {"speed": "fast", "inference_geo": "us"}, ServedAs(None, "fast", "us")),
        (GEMINI_GENERATE, GEMINI | {"serviceTier": "SERVICE_TIER_PRIORITY"}, ServedAs("priority")),
        (GEMINI_GENERATE, GEMINI | {"service_tier": "flex"}, ServedAs("flex")),
    ],
)
def test_it_is_what_the_request_says(dialect: Dialect, document: dict[str, Any], facts: ServedAs) -> None:
    assert dialect.facts(document, "m").served_as == facts


def test_what_is_asked_for_is_held_for() -> None:
    price = configured(Rates(1_000_000, 0, 1_000_000), multipliers={"speed:fast": "6", "tier:flex": "0.5"})
    held = {
        facts: quote(price, prompt_tokens=10, completion_tokens=10, nusd_max=10**9, asked=facts).nusd
        for facts in (NOT_SAID, ServedAs("flex"), ServedAs(None, "fast"), ServedAs("flex", "fast"))
    }
    assert list(held.values()) == [20, 20, 120, 120], "who asks for less may be served as usual"
