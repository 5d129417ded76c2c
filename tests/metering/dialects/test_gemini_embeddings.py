"""Gemini's embedContent, batchEmbedContents and countTokens: recorded answers, requests, and names of models."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.gemini.embed import GEMINI_BATCH_EMBED, GEMINI_COUNT_TOKENS, GEMINI_EMBED
from proxy.metering.usage import Usage
from tests.metering.fixtures import read_answer

CONTENT = {"parts": [{"text": "How much?"}]}


def test_images_and_audio_have_their_own_prices() -> None:
    parts = [{"modality": "TEXT", "tokenCount": 3}, {"modality": "IMAGE", "tokenCount": 5}]
    used = {"promptTokenCount": 8, "promptTokenDetails": parts}
    result = read_answer(GEMINI_EMBED, {"embedding": {"values": [0.5]}, "usageMetadata": used})
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
