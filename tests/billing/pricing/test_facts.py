"""The facts of a bill, from an answer's bytes to money at the built-in book's prices. Each row is a documented shape
with its source, and what the provider charges for it by its own price list."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.billing.money import nusd_from_usd
from proxy.billing.pricing.book import PriceBook
from proxy.billing.pricing.prices import charge, unpriced, unpriced_service
from proxy.billing.pricing.rules import NO_LIST
from proxy.billing.record import BillableParts, Price
from proxy.billing.settlement import amount
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.usage import Usage
from tests.metering.fixtures import read_answer, read_events

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
    ended = {"stop_reason": "end_turn", "usage": usage}
    return {"id": "m", "type": "message", "role": "assistant", "content": [text], **ended}


# https://platform.claude.com/docs/en/build-with-claude/refusals-and-fallback; not billed by the release notes.
REFUSAL = {"type": "refusal", "category": "cyber"}
REFUSED = message() | {"content": [], "stop_reason": "refusal", "stop_details": REFUSAL}
REFUSED_LATER = REFUSED | {"content": [{"type": "text", "text": "First,"}]}


# https://platform.claude.com/docs/en/agents-and-tools/tool-use/advisor-tool: the example of usage and billing there.
ADVISED = message() | {"model": "claude-sonnet-4-6", "usage": {
    "input_tokens": 412, "output_tokens": 531,
    "iterations": [
        {"type": "message", "input_tokens": 412, "output_tokens": 89},
        {"type": "advisor_message", "model": "claude-opus-4-7", "input_tokens": 823, "output_tokens": 1612},
        {"type": "message", "input_tokens": 1348, "cache_read_input_tokens": 412, "output_tokens": 442},
    ],
}}  # fmt: skip
# Recorded in 2026 (the corpus: test_anthropic_advisor_tool_stream): the top level has the input of every step.
ADVISED_OF_LATE = message() | {"model": "claude-sonnet-5", "usage": {
    "input_tokens": 2411, "output_tokens": 145,
    "iterations": [
        {"type": "message", "input_tokens": 1128, "output_tokens": 135},
        {"type": "advisor_message", "model": "claude-opus-4-8", "input_tokens": 2543, "output_tokens": 18},
        {"type": "message", "input_tokens": 1283, "output_tokens": 10},
    ],
}}  # fmt: skip
# Recorded, as told in https://github.com/ccusage/ccusage/issues/1552: the top level is that of the model that served.
FELL_BACK = message() | {"model": "claude-opus-4-8", "usage": {
    "input_tokens": 2, "output_tokens": 13_658, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 79_214,
    "iterations": [
        {
            "type": "message", "model": "claude-fable-5", "input_tokens": 2, "output_tokens": 578,
            "cache_creation_input_tokens": 10_421, "cache_read_input_tokens": 72_769,
        },
        {
            "type": "fallback_message", "model": "claude-opus-4-8", "input_tokens": 2, "output_tokens": 13_658,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 79_214,
        },
    ],
}}  # fmt: skip
# The same page as of REFUSED: a model that declines before it generated anything is not billed.
DECLINED_AT_ONCE = message() | {"model": "claude-opus-4-8", "usage": {
    "input_tokens": 412, "output_tokens": 264,
    "iterations": [
        {"type": "message", "model": "claude-fable-5", "input_tokens": 535, "output_tokens": 0},
        {"type": "fallback_message", "model": "claude-opus-4-8", "input_tokens": 412, "output_tokens": 264},
    ],
}}  # fmt: skip


# The same: one declines half way, the next one at once; only the first one is billed.
BOTH_DECLINED = message() | {"stop_reason": "refusal", "usage": {
    "input_tokens": 9_100, "output_tokens": 0,
    "iterations": [
        {"type": "message", "model": "claude-fable-5", "input_tokens": 9_000, "output_tokens": 400},
        {"type": "fallback_message", "model": "claude-opus-4-8", "input_tokens": 9_100, "output_tokens": 0},
    ],
}}  # fmt: skip


def drawn(model: str) -> dict[str, Any]:
    """100 tokens in, 10 out, and an image. https://developers.openai.com/api/docs/guides/tools-image-generation"""
    images = {
        "input_tokens": 31, "input_tokens_details": {"image_tokens": 0, "text_tokens": 31},
        "output_tokens": 6_993, "output_tokens_details": {"image_tokens": 6_993, "text_tokens": 0},
        "total_tokens": 7_024,
    }  # fmt: skip
    return {
        "id": "r", "status": "completed", "output": [{"type": "image_generation_call", "id": "ig_1"}],
        "tools": [{"type": "function", "name": "f"}, {"type": "image_generation", "model": model, "size": "auto"}],
        "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110},
        "tool_usage": {"image_gen": images, "web_search": {"num_requests": 0}},
    }  # fmt: skip


# Twelve steps of 20,000 tokens: none is longer than the 200,000 above which the model's prompts cost twice as much.
SHORT_STEPS = message() | {"usage": {
    "input_tokens": 240_000, "output_tokens": 1_200,
    "iterations": [{"type": "message", "input_tokens": 20_000, "output_tokens": 100}] * 12,
}}  # fmt: skip
ROWS: list[tuple[str, Dialect, str, str, dict[str, Any], str]] = [
    ("an image of Gemini", GEMINI_GENERATE, GOOGLE, "gemini-3-pro-image-preview", IMAGE, "0.13442"),
    ("searches in files", OPENAI_RESPONSES, OPENAI, "gpt-4.1", FILES, "0.0103"),
    # https://openai.com/api-priority-processing; flex: half
    # 31 tokens at 5 USD per million and 6,993 at 30 for gpt-image-2, at 40 for gpt-image-1; beside them gpt-4.1's
    ("an image of a tool", OPENAI_RESPONSES, OPENAI, "gpt-4.1", drawn("gpt-image-2"), "0.210225"),
    ("an image of the first tool", OPENAI_RESPONSES, OPENAI, "gpt-4.1", drawn("gpt-image-1"), "0.280155"),
    # Sonnet 4.6: 1,760 tokens at 3, 412 of the cache at 0.3, 531 at 15; Opus 4.7: 823 at 5, 1,612 at 25
    ("Claude, advised", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-sonnet-4-6", ADVISED, "0.0577836"),
    # Sonnet 5: 2,411 at 2, 145 at 10; Opus 4.8: 2,543 at 5, 18 at 25
    ("Claude, advised of late", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-sonnet-5", ADVISED_OF_LATE, "0.019437"),
    # Opus 4.8: 5, 0.5, 25; what Fable 5 had generated before it declined: 10, 1, 12.5 for the cache, 50
    ("Claude falls back", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-fable-5", FELL_BACK, "0.6130185"),
    ("Claude falls back at once", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-fable-5", DECLINED_AT_ONCE, "0.00866"),
    ("both Claudes decline", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-fable-5", BOTH_DECLINED, "0.11"),
    ("Claude in short steps", ANTHROPIC_MESSAGES, ANTHROPIC, "claude-sonnet-4-5", SHORT_STEPS, "0.738"),
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
    def price_of(name: str) -> Price:
        price = book.price(provider="p", base_url=base_url, model=name, at=AT)
        assert price is not None
        return price

    book, metered = PriceBook(), read_answer(dialect, answer)
    price = price_of(metered.served_model or model)
    assert metered.usage is not None
    assert metered.unknown_usage_fields.paths == ()
    assert unpriced_service(price, metered.served_as) == []
    others = [(price_of(one.model), one.usage) for one in metered.other_models]
    charged = charge(price, metered.usage, BillableParts.EVERYTHING, metered.served_as, others)
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
    assert unpriced_service(price, read_answer(dialect, answer).served_as) == missing


# Recorded of gpt-4o-search-preview: the usage of an answer that searched does not say so, its annotations do.
FOUND = {"type": "url_citation", "url_citation": {"url": "https://weir.test", "title": "Weir", "start_index": 0}}


def test_whether_a_credit_moves_the_price_is_said_because_nobody_says_by_how_much() -> None:
    """`BetaFallbackCreditUsage` of the SDK: no source says whether the reported counts are those before it or after."""
    answer = message()
    answer["usage"]["fallback_credit"] = {"status": {"type": "redeemed"}}
    unknown = read_answer(ANTHROPIC_MESSAGES, answer).unknown_usage_fields
    assert unknown.paths == ("usage.fallback_credit.status.type=redeemed",)


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_searches_is_known_by_what_it_cites(stream: bool) -> None:
    answer = chat(None)
    answer["choices"][0]["message"]["annotations"] = [FOUND]
    metered = read_answer(OPENAI_CHAT, answer)
    if stream:
        part = {"index": 0, "delta": {"content": "Rain", "annotations": [FOUND]}, "finish_reason": "stop"}
        metered = read_events(OPENAI_CHAT, {"choices": [part]}, {"choices": [], "usage": answer["usage"]})
    assert metered.usage is not None
    assert metered.usage.searches == 1
    book = PriceBook()
    listed = book.price(provider="p", base_url=OPENAI, model="gpt-4o-mini-search-preview", at=AT)
    unlisted = book.price(provider="p", base_url=OPENAI, model="gpt-4o-search-preview", at=AT)
    assert listed is not None
    assert unlisted is not None
    charged = charge(listed, metered.usage, BillableParts.EVERYTHING)
    assert charged == nusd_from_usd("0.031")  # 0.01 of it for the search
    assert unpriced(unlisted.tiers[0], metered.usage) == ["searches"]


@pytest.mark.parametrize(
    ("base_url", "states"),
    [
        ("https://openrouter.ai/api/v1", True), ("https://api.perplexity.ai", True), ("https://api.x.ai/v1", True),
        ("https://us.api.x.ai/v1", True), ("https://ai-gateway.vercel.sh/v1", True), ("https://api.venice.ai/v1", True),
        ("https://api.avian.io/v1", True), (OPENAI, False), ("https://openrouter.ai.evil.test/v1", False),
    ],
)  # fmt: skip
def test_what_a_provider_says_that_it_charges_is_its_cost(base_url: str, states: bool) -> None:
    price = PriceBook().price(provider="p", base_url=base_url, model="nobody/knows", at=AT)
    assert price == (replace(NO_LIST, stated=("1",)) if states else None)
    assert amount(price, Usage(10, None, 5), BillableParts.EVERYTHING, stated_nusd=77) == (77 if states else None)
    assert amount(price, Usage(10, None, 5), BillableParts.EVERYTHING) is None


def test_speed_and_geography_of_a_stream_stand_in_its_first_event() -> None:
    start = {"type": "message_start", "message": message(speed="fast", inference_geo="us") | {"content": []}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 50_000}}
    served_as = read_events(ANTHROPIC_MESSAGES, start, end, {"type": "message_stop"}).served_as
    assert (served_as.speed, served_as.geography, served_as.service_tier) == ("fast", "us", "standard")


def test_a_refusal_of_a_stream_that_said_nothing_is_counted_and_not_billed() -> None:
    start = {"type": "message_start", "message": message() | {"content": [], "stop_reason": None}}
    end = {"type": "message_delta", "delta": {"stop_reason": "refusal"}, "usage": {"output_tokens": 1}}
    metered = read_events(ANTHROPIC_MESSAGES, start, end, {"type": "message_stop"})
    assert metered.usage is not None
    assert (metered.usage.prompt_tokens, metered.usage.unbilled_prompt_tokens) == (200_000, 200_000)
    assert metered.flags == ("refused_unbilled",)
