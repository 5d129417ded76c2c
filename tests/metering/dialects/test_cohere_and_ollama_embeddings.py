"""Cohere's and Ollama's embeddings: recorded answers, what a request says, and what is wrong in one."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.cohere.embed import COHERE_EMBED
from proxy.metering.dialects.ollama.embed import OLLAMA_EMBED, OLLAMA_EMBEDDINGS
from proxy.metering.usage import PromptEvidence, Usage
from tests.metering.fixtures import read_answer

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
TEXT = {"type": "text", "text": "How much?"}
HOW_MUCH = PromptEvidence(chars_latin=9)


@pytest.mark.parametrize(
    ("units", "usage"),
    [
        ({"input_tokens": 8}, Usage(8, None, 0, None, 8)),
        ({"input_tokens": 8, "image_tokens": 100}, Usage(108, None, 0, None, 108, image_prompt_tokens=100)),
        ({"image_tokens": 100}, Usage(100, None, 0, None, 100, image_prompt_tokens=100)),
        ({"image_tokens": -1}, None),
    ],
)
def test_text_and_images_are_billed_side_by_side(units: dict[str, int], usage: Usage | None) -> None:
    told = {"id": "x", "embeddings": {"float": [[0.5] * 9] * 9}, "meta": {"billed_units": units}}
    result = read_answer(COHERE_EMBED, told)
    assert result.usage == usage
    assert result.flags == (() if usage else ("usage_invalid",))


def test_images_by_the_piece_are_named_as_unread() -> None:
    result = read_answer(COHERE_EMBED, {"meta": {"billed_units": {"images": 1}}})
    assert (result.usage, result.unknown_usage_fields.paths) == (None, ("meta.billed_units.images",))


def test_ollamas_older_answer_says_nothing() -> None:
    result = read_answer(OLLAMA_EMBEDDINGS, {"embedding": [0.5] * 700})
    assert (result.usage, result.complete, result.failed) == (None, True, None)
    assert read_answer(OLLAMA_EMBED, b'{"error":"no such model"}').failed == "error_body"


@pytest.mark.parametrize(
    ("dialect", "fields", "prompt"),
    [
        (COHERE_EMBED, {"texts": ["How ", "much?"]}, HOW_MUCH),
        (COHERE_EMBED, {"images": ["data:image/png;base64,AA=="]}, PromptEvidence(images=1)),
        (COHERE_EMBED, {"inputs": [{"content": [TEXT, IMAGE]}]}, PromptEvidence(chars_latin=9, images=1)),
        (OLLAMA_EMBED, {"input": "How much?"}, HOW_MUCH),
        (OLLAMA_EMBED, {"input": ["How ", "much?"]}, HOW_MUCH),
        (OLLAMA_EMBEDDINGS, {"prompt": "How much?"}, HOW_MUCH),
    ],
)
def test_a_request(dialect: Dialect, fields: dict[str, Any], prompt: PromptEvidence) -> None:
    facts = dialect.facts({"model": "m"} | fields)
    assert (facts.model, facts.streamed, facts.completion_tokens_max, facts.prompt) == ("m", False, 0, prompt)
