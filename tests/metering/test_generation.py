"""Records of answers, as OpenRouter and Vercel report them afterwards."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from proxy.billing.later import is_answer
from proxy.metering.generation import generation_meter
from proxy.metering.metered import Metered
from proxy.metering.usage import Usage

# The members that OpenRouter's reference has, with its numbers.
RECORD: dict[str, Any] = {
    "id": "gen-3bhGkxlo4XFrqiabUM7NDtwDzWwG", "upstream_id": "chatcmpl-791bcf62", "api_type": "completions",
    "total_cost": 0.0015, "cache_discount": 0.0002, "upstream_inference_cost": 0.0012, "usage": 0.0015,
    "created_at": "2024-07-15T23:33:19.433273+00:00", "model": "sao10k/l3-stheno-8b", "app_id": 12345,
    "streamed": True, "cancelled": False, "provider_name": "Infermatic", "latency": 1250, "moderation_latency": 50,
    "generation_time": 1200, "finish_reason": "stop", "native_finish_reason": "stop", "tokens_prompt": 8,
    "tokens_completion": 20, "native_tokens_prompt": 10, "native_tokens_completion": 25,
    "native_tokens_completion_images": 0, "native_tokens_reasoning": 5, "native_tokens_cached": 3,
    "num_media_prompt": 1, "num_input_audio_prompt": 0, "num_media_completion": 0, "num_search_results": 5,
    "origin": "https://openrouter.ai/",
    "is_byok": False, "external_user": "user-123", "router": "openrouter/auto", "service_tier": "priority",
    "user_agent": "Mozilla/5.0", "http_referer": "https://a.example",
}  # fmt: skip


def read(body: Any) -> Metered:
    meter = generation_meter()
    meter.feed(body if isinstance(body, bytes) else json.dumps(body).encode())
    return meter.close()


def test_its_counts_are_those_of_the_models_own_tokenizer() -> None:
    found = read({"data": RECORD})
    expected = Usage(10, 3, 25, 5, 35, image_completion_tokens=0)
    assert (found.usage, found.stated_usd, found.served_as.service_tier) == (expected, Decimal("0.0015"), "priority")
    assert is_answer(found)
    assert found.unknown_usage_fields.values == {
        "data.num_media_prompt": 1, "data.num_search_results": 5, "data.cache_discount": 0.0002,
    }  # fmt: skip
    kept = json.dumps(found.usage_raw)
    assert '"native_tokens_prompt": 10' in kept
    assert [word for word in ("user", "Mozilla", "example", "openrouter") if word in kept] == []


def test_others_count_where_a_models_own_are_not_there() -> None:
    record = {name: value for name, value in RECORD.items() if not name.startswith("native_")}
    assert read({"data": record}).usage == Usage(8, None, 20, None, 28)
    assert read({"data": record}).flags == ("other_tokenizer",)
    partly = read({"data": RECORD | {"native_tokens_completion": None}})
    assert (partly.usage, partly.flags) == (Usage(10, 3, 20, 5, 30, image_completion_tokens=0), ("other_tokenizer",))
    assert read({"data": RECORD}).flags == ()


def test_what_a_cache_has_cost_is_named() -> None:
    """Tokens that were written to a cache are not among its counts."""
    for discount, named in ((-0.002, ("data.cache_discount",)), (0, ())):
        record = {
            "id": "gen-1",
            "native_tokens_prompt": 4000,
            "native_tokens_completion": 10,
            "cache_discount": discount,
        }
        assert read({"data": record}).unknown_usage_fields.paths == named


def test_with_a_key_of_ones_own_the_cost_is_both() -> None:
    assert read({"data": RECORD | {"is_byok": True, "total_cost": 0.0001}}).stated_usd == Decimal("0.0013")


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Generation not found", "code": 404}}, {"data": None}, {"data": {}}, {}, [], b"",
        b"<html>",
        {"data": RECORD | {"native_tokens_completion": None, "tokens_completion": -1}},
    ],
)  # fmt: skip
def test_what_is_no_record_is_no_answer(body: Any) -> None:
    assert not is_answer(read(body))
