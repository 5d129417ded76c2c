"""Gemini's embedContent, batchEmbedContents and countTokens: recorded answers, requests, and names of models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.gemini.embed import GEMINI_BATCH_EMBED, GEMINI_COUNT_TOKENS, GEMINI_EMBED
from proxy.metering.metered import Metered
from proxy.metering.request import InvalidField
from proxy.metering.usage import Usage
from tests.metering.corpus.corpus import CORPUS, cuts, records_named

CONTENT = {"parts": [{"text": "How much?"}]}


def answered(dialect: Dialect, pieces: list[bytes]) -> Metered:
    meter = dialect.plain_meter()
    for piece in pieces:
        meter.feed(piece)
    return meter.close()


@pytest.mark.skipif(not CORPUS.exists(), reason="the recorded corpus ../shared/corpus is not here")
def test_recorded_vectors_cost_their_prompt() -> None:
    records = records_named("google.embeddings")
    assert len(records) == 6
    for record in records:
        dialect = GEMINI_BATCH_EMBED if "batch" in record["path"] else GEMINI_EMBED
        prompt = (record["truth"] or {}).get("prompt_tokens")
        for pieces in cuts(record["body"].encode(), record["id"]):
            result = answered(dialect, pieces)
            assert result.usage == (None if prompt is None else Usage(prompt, None, 0, None, prompt)), record["id"]
            assert result.failed == ("error_body" if record["status"] >= 400 else None), record["id"]
            assert result.unknown_usage_fields.paths == (), record["id"]


@pytest.mark.skipif(not CORPUS.exists(), reason="the recorded corpus ../shared/corpus is not here")
def test_recorded_counts_cost_nothing() -> None:
    records = records_named("google.count_tokens")
    assert len(records) == 6
    assert GEMINI_COUNT_TOKENS.free
    for record in records:
        GEMINI_COUNT_TOKENS.facts(record["request_json"], "gemini")
        for pieces in cuts(record["body"].encode(), record["id"]):
            result = answered(GEMINI_COUNT_TOKENS, pieces)
            good = record["status"] == 200
            assert result.usage == (Usage(0, None, 0, None, 0) if good else None), record["id"]
            assert result.failed == (None if good else "error_body"), record["id"]
            assert result.unknown_usage_fields.paths == (), record["id"]


def test_images_and_audio_have_their_own_prices() -> None:
    parts = [{"modality": "TEXT", "tokenCount": 3}, {"modality": "IMAGE", "tokenCount": 5}]
    used = {"promptTokenCount": 8, "promptTokenDetails": parts}
    result = answered(GEMINI_EMBED, [json.dumps({"embedding": {"values": [0.5]}, "usageMetadata": used}).encode()])
    assert result.usage == Usage(8, None, 0, None, 8, image_prompt_tokens=5)


@pytest.mark.parametrize(
    ("dialect", "document", "chars"),
    [
        (GEMINI_EMBED, {"content": CONTENT}, 9),
        (GEMINI_BATCH_EMBED, {"requests": [{"content": CONTENT}, {"content": CONTENT}]}, 18),
        (GEMINI_COUNT_TOKENS, {"contents": [CONTENT]}, 9),
        (GEMINI_COUNT_TOKENS, {"generateContentRequest": {"contents": [CONTENT, CONTENT]}}, 18),
    ],
)
def test_a_request(dialect: Dialect, document: dict[str, Any], chars: int) -> None:
    facts = dialect.facts(document, "m")
    assert (facts.model, facts.streamed, facts.prompt.chars_latin) == ("m", False, chars)
    assert facts.completion_tokens_max == (None if dialect is GEMINI_COUNT_TOKENS else 0)


@pytest.mark.parametrize(
    ("dialect", "document", "param"),
    [
        (GEMINI_EMBED, {}, "content"),
        (GEMINI_EMBED, {"content": "text"}, "content"),
        (GEMINI_BATCH_EMBED, {}, "requests"),
        (GEMINI_BATCH_EMBED, {"requests": [{"content": CONTENT}, {}]}, "requests[1].content"),
        (GEMINI_COUNT_TOKENS, {}, "contents"),
        (GEMINI_COUNT_TOKENS, {"generateContentRequest": []}, "generateContentRequest"),
    ],
)
def test_wrong_fields_are_named(dialect: Dialect, document: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        dialect.facts(document, "m")
    assert caught.value.param == param


def test_every_name_of_the_model_in_a_body_is_the_upstream_one() -> None:
    asked = {"requests": [{"model": "models/mine", "content": CONTENT}, {"content": CONTENT}]}
    sent = GEMINI_BATCH_EMBED.upstream_document(asked, upstream_model="theirs", inject_usage=True)
    assert sent == {"requests": [{"model": "models/theirs", "content": CONTENT}, {"content": CONTENT}]}
    assert asked["requests"][0]["model"] == "models/mine"
    counted = {"generateContentRequest": {"model": "models/mine", "contents": [CONTENT]}}
    sent = GEMINI_COUNT_TOKENS.upstream_document(counted, upstream_model="theirs", inject_usage=True)
    assert sent == {"generateContentRequest": {"model": "models/theirs", "contents": [CONTENT]}}
    sent = GEMINI_EMBED.upstream_document({"content": CONTENT}, upstream_model="theirs", inject_usage=True)
    assert sent == {"content": CONTENT}
