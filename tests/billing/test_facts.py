"""The facts of a bill, from an answer's bytes to money at the built-in book's prices. Each row is a documented shape
with its source, and what the provider charges for it by its own price list."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from proxy.billing.money import nusd_from_usd
from proxy.billing.price_book import PriceBook
from proxy.billing.prices import charge, unpriced_service
from proxy.billing.record import BillableParts
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.metered import Metered

AT = 1_790_000_000.0
ANTHROPIC, GOOGLE = "https://api.anthropic.com", "https://generativelanguage.googleapis.com/v1beta"
OPENAI, OPENAI_EU = "https://api.openai.com/v1", "https://eu.api.openai.com/v1"
VERTEX = "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5/publishers/anthropic"
CLAUDE_OF_BEDROCK = "anthropic.claude-opus-4-6-v1"
BEDROCK = "https://bedrock-runtime.eu-central-1.amazonaws.com"
# https://ai.google.dev/gemini-api/docs/pricing: an image of 1024 × 1024 is 1,120 tokens at 120 USD per million.
IMAGE = {
    "candidates": [{"content": {"parts": [{"inlineData": {"mimeType": "image/png"}}]}, "finishReason": "STOP"}],
    "usageMetadata": {
        "promptTokenCount": 10, "candidatesTokenCount": 1120, "totalTokenCount": 1130,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 10}],
        "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1120}],
    },
}  # fmt: skip
# https://developers.openai.com/api/docs/pricing: searches in files cost 2.50 USD per thousand calls.
FILES = {
    "id": "r", "status": "completed",
    "output": [{"type": "file_search_call", "id": f"fs_{at}"} for at in range(3)],
    "usage": {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100},
}  # fmt: skip


def chat(tier: str | None) -> dict[str, Any]:
    """100,000 tokens in, 10,000 out. https://developers.openai.com/api/reference: `service_tier`."""
    usage = {"prompt_tokens": 100_000, "completion_tokens": 10_000, "total_tokens": 110_000}
    choice = {"index": 0, "message": {"role": "assistant", "content": "."}, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "service_tier": tier, "choices": [choice], "usage": usage}


def gemini(tier: str) -> dict[str, Any]:
    """The same of Gemini."""
    counts = {"promptTokenCount": 100_000, "candidatesTokenCount": 10_000, "totalTokenCount": 110_000}
    candidate = {"content": {"parts": [{"text": "."}]}, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": counts | {"serviceTier": tier}}


def message(**said: str) -> dict[str, Any]:
    """200,000 tokens in, 50,000 out. https://platform.claude.com/docs/en/api/messages: `usage`."""
    usage = {"input_tokens": 200_000, "output_tokens": 50_000, "service_tier": "standard", **said}
    text = {"type": "text", "text": "."}
    return {"id": "m", "type": "message", "role": "assistant", "content": [text], "usage": usage} | {
        "stop_reason": "end_turn"
    }


def answered(dialect: Dialect, answer: dict[str, Any]) -> Metered:
    meter = dialect.plain_meter()
    meter.feed(json.dumps(answer).encode())
    return meter.close()


# https://platform.claude.com/docs/en/build-with-claude/refusals-and-fallback; not billed by the release notes.
REFUSED = message() | {
    "content": [],
    "stop_reason": "refusal",
    "stop_details": {"type": "refusal", "category": "cyber"},
}
REFUSED_LATER = REFUSED | {"content": [{"type": "text", "text": "First,"}]}
ROWS: list[tuple[str, Dialect, str, str, dict[str, Any], str]] = [
    ("an image of Gemini", GEMINI_GENERATE, GOOGLE, "gemini-3-pro-image-preview", IMAGE, "0.13442"),
    ("searches in files", OPENAI_RESPONSES, OPENAI, "gpt-4.1", FILES, "0.0103"),
    # https://openai.com/api-priority-processing; flex: half
    ("standard", OPENAI_CHAT, OPENAI, "gpt-5.1", chat("default"), "0.225"),
    ("priority", OPENAI_CHAT, OPENAI, "gpt-5.1", chat("priority"), "0.45"),
    ("flex", OPENAI_CHAT, OPENAI, "gpt-5.1", chat("flex"), "0.1125"),
    ("priority of a small one", OPENAI_CHAT, OPENAI, "gpt-4o-mini", chat("priority"), "0.035"),
    ("priority of o4-mini", OPENAI_CHAT, OPENAI, "o4-mini-2025-04-16", chat("priority"), "0.28"),
    # https://developers.openai.com/api/docs/guides/data-residency
    ("in Europe", OPENAI_CHAT, OPENAI_EU, "gpt-5.4", chat("default"), "0.44"),
    ("in Europe, at priority", OPENAI_CHAT, OPENAI_EU, "gpt-5.4", chat("priority"), "0.88"),
    ("in Europe, an older model", OPENAI_CHAT, OPENAI_EU, "gpt-5.1", chat("default"), "0.225"),
    ("flex of Gemini", GEMINI_GENERATE, GOOGLE, "gemini-2.5-flash", gemini("flex"), "0.0275"),
    # https://platform.claude.com/docs/en/about-claude/pricing: fast mode, data residency
    ("Claude", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-opus-4-6", message(), "2.25"),
    ("Claude anywhere", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-opus-4-6", message(inference_geo="global"), "2.25"),
    ("Claude, fast", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-opus-4-6", message(speed="fast"), "13.5"),
    ("Claude, in the US", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-opus-4-6", message(inference_geo="us"), "2.475"),
    (
        "Claude, fast, in the US", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-opus-4-6",
        message(speed="fast", inference_geo="us"), "14.85",
    ),
    ("Claude refuses", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-fable-5", REFUSED, "0"),
    ("Claude refuses half way", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-fable-5", REFUSED_LATER, "4.5"),
    ("Claude 4.8, fast", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-opus-4-8", message(speed="fast"), "4.5"),
    ("Claude in one region of Google", ANTHROPIC_MESSAGES, VERTEX, "claude-opus-4-6", message(), "2.475"),
    ("Claude, of Bedrock in Europe", ANTHROPIC_MESSAGES, BEDROCK, f"eu.{CLAUDE_OF_BEDROCK}", message(), "2.475"),
    ("Claude, of Bedrock anywhere", ANTHROPIC_MESSAGES, BEDROCK, f"global.{CLAUDE_OF_BEDROCK}", message(), "2.25"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "base_url", "model", "answer", "usd"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_an_answer_costs_what_its_provider_charges(
    dialect: Dialect, base_url: str, model: str, answer: dict[str, Any], usd: str
) -> None:
    metered = answered(dialect, answer)
    price = PriceBook().price(provider="p", base_url=base_url, model=model, at=AT)
    assert price is not None
    assert metered.usage is not None
    assert metered.unread.paths == ()
    assert unpriced_service(price, metered.served_as) == []
    charged = charge(price, metered.usage, BillableParts.EVERYTHING, metered.served_as)
    assert charged == nusd_from_usd(Decimal(usd))


@pytest.mark.parametrize(
    ("dialect", "base_url", "model", "answer", "missing"),
    [
        (OPENAI_CHAT, OPENAI, "gpt-5-nano", chat("priority"), ["tier:priority"]),
        (OPENAI_CHAT, OPENAI, "gpt-5.1", chat("scale"), ["tier:scale"]),
        (GEMINI_GENERATE, GOOGLE, "gemini-2.5-flash", gemini("priority"), ["tier:priority"]),
        (ANTHROPIC_MESSAGES, ANTHROPIC, "claude-sonnet-4-5", message(speed="fast"), ["speed:fast"]),
        (ANTHROPIC_MESSAGES, ANTHROPIC, "claude-opus-4-6", message(inference_geo="eu"), ["geography:eu"]),
        (ANTHROPIC_MESSAGES, ANTHROPIC, "claude-opus-4-6", message(service_tier="priority"), ["tier:priority"]),
    ],
)
def test_what_the_book_cannot_price_is_named(
    dialect: Dialect, base_url: str, model: str, answer: dict[str, Any], missing: list[str]
) -> None:
    price = PriceBook().price(provider="p", base_url=base_url, model=model, at=AT)
    assert unpriced_service(price, answered(dialect, answer).served_as) == missing


def test_speed_and_geography_of_a_stream_stand_in_its_first_event() -> None:
    start = {"type": "message_start", "message": message(speed="fast", inference_geo="us") | {"content": []}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 50_000}}
    meter = ANTHROPIC_MESSAGES.stream_meter()
    for event in (start, end, {"type": "message_stop"}):
        meter.feed(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    served_as = meter.close().served_as
    assert (served_as.speed, served_as.geography, served_as.service_tier) == ("fast", "us", "standard")


def test_a_refusal_of_a_stream_that_said_nothing_is_counted_and_not_billed() -> None:
    start = {"type": "message_start", "message": message() | {"content": [], "stop_reason": None}}
    end = {"type": "message_delta", "delta": {"stop_reason": "refusal"}, "usage": {"output_tokens": 1}}
    meter = ANTHROPIC_MESSAGES.stream_meter()
    for event in (start, end, {"type": "message_stop"}):
        meter.feed(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    metered = meter.close()
    assert metered == meter.close()
    assert metered.usage is not None
    assert (metered.usage.prompt_tokens, metered.usage.unbilled_prompt_tokens) == (200_000, 200_000)
    assert metered.flags == ("refused_unbilled",)
