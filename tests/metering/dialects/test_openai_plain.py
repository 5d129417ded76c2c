"""Embeddings, moderations and rerank: what a request is about, and the usage that is read of large answers."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.metering import meter as meters
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.plain import OPENAI_EMBEDDINGS, OPENAI_MODERATIONS, OPENAI_RERANK
from proxy.metering.usage import PromptEvidence, Usage
from tests.metering.fixtures import read_answer

EMBED = {"model": "m", "input": "Once"}
RANK = {"model": "m", "query": "who", "documents": ["one", {"text": "two!", "id": 7}]}


@pytest.mark.parametrize(
    ("dialect", "document", "prompt"),
    [
        (OPENAI_EMBEDDINGS, EMBED, PromptEvidence(chars_latin=4)),
        (OPENAI_EMBEDDINGS, EMBED | {"input": ["Wo", "堰"]}, PromptEvidence(chars_latin=2, chars_wide=1)),
        (OPENAI_EMBEDDINGS, EMBED | {"input": [5] * 10}, PromptEvidence(chars_latin=44)),
        (OPENAI_EMBEDDINGS, EMBED | {"input": [[5] * 10, [6] * 10]}, PromptEvidence(chars_latin=88)),
        (OPENAI_MODERATIONS, {"input": "Once"}, PromptEvidence(chars_latin=4)),
        (
            OPENAI_MODERATIONS,
            {"model": "m", "input": [{"type": "text", "text": "No"}, {"type": "image_url", "image_url": {"url": "u"}}]},
            PromptEvidence(chars_latin=2, images=1),
        ),
        (OPENAI_RERANK, RANK, PromptEvidence(chars_latin=13)),
    ],
)
def test_what_is_asked_is_evidence(dialect: Dialect, document: dict[str, Any], prompt: PromptEvidence) -> None:
    found = dialect.facts(document)
    assert found.prompt == prompt
    assert (found.streamed, found.completion_tokens_max) == (False, 0)


def test_a_moderation_that_names_no_model_is_openais_own() -> None:
    assert OPENAI_MODERATIONS.facts({"input": "x"}).model == "omni-moderation-latest"
    sent = OPENAI_MODERATIONS.upstream_document({"input": "x"}, upstream_model="u", inject_usage=False)
    assert sent == {"input": "x", "model": "u"}


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ({"usage": {"prompt_tokens": 6, "total_tokens": 6}}, Usage(6, None, 0, None, 6)),
        ({"usage": {"total_tokens": 12}}, Usage(12, None, 0, None, 12)),  # Voyage, Jina
        ({"usage": {"prompt_tokens": 4, "completion_tokens": 0, "total_tokens": 4}}, Usage(4, None, 0, None, 4)),
        ({"usage": {"prompt_tokens": 0, "total_tokens": 0}}, Usage(0, None, 0, None, 0)),
        ({"meta": {"billed_units": {"search_units": 2}}}, Usage(searches=2)),  # Cohere
        ({"usage": {"cost": 0.001, "search_units": 1}}, Usage(searches=1)),  # OpenRouter
        ({"meta": {"api_version": {"version": "2"}}}, None),
        ({"usage": {}}, None),
        ({}, None),
    ],
)
def test_usage_by_one_rule(told: dict[str, Any], usage: Usage | None) -> None:
    for dialect in (OPENAI_EMBEDDINGS, OPENAI_MODERATIONS, OPENAI_RERANK):
        result = read_answer(dialect, {"id": "a1", "data": [{"embedding": [0.5, -1e-7], "index": 0}]} | told, size=7)
        assert (result.usage, result.complete, result.failed, result.response_id) == (usage, True, None, "a1")
        assert result.evidence.empty


@pytest.mark.parametrize(
    ("body", "failed", "flags"),
    [
        (b'{"error":{"message":"no"}}', "error_body", ()),
        (b'{"usage":{"prompt_tokens":-1}}', None, ("usage_invalid",)),
        (b'{"usage":{"prompt_tokens":"6"}}', None, ("usage_invalid",)),
        (b"[[0.1,0.2]]", None, ("unparsable_body",)),
        (b'{"usage":{"prompt_tokens":6', None, ("cut_body",)),
    ],
)
def test_what_cannot_be_read_says_so(body: bytes, failed: str | None, flags: tuple[str, ...]) -> None:
    result = read_answer(OPENAI_EMBEDDINGS, body)
    assert (result.usage, result.failed, result.flags) == (None, failed, flags)


def test_an_answer_longer_than_all_that_is_kept_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "JSON_BYTES_MAX", 1000)
    vectors = [{"embedding": [0.25] * 400, "index": at} for at in range(20)]
    result = read_answer(
        OPENAI_EMBEDDINGS, {"data": vectors, "usage": {"prompt_tokens": 6, "total_tokens": 6}}, size=99
    )
    assert (result.usage, result.complete, result.flags) == (Usage(6, None, 0, None, 6), True, ())
