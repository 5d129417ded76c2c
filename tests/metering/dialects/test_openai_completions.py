"""The older completions: what a request asks and holds, and text choices, plain and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS, facts
from proxy.metering.usage import PromptEvidence, Usage
from tests.metering.fixtures import DONE, cuts, fed, read_answer, sse, usage

ASK = {"model": "m", "prompt": "Once"}


def text(*texts: str, index: int = 0, finish: str | None = None) -> list[dict[str, Any]]:
    """One chunk for each text."""
    choices = [{"index": index, "text": one, "finish_reason": finish} for one in texts]
    return [{"id": "cmpl-7", "object": "text_completion", "choices": [one]} for one in choices]


@pytest.mark.parametrize(
    ("fields", "n", "limit"),
    [
        ({}, 1, None),
        ({"max_tokens": 16}, 1, 16),
        ({"max_tokens": 16, "n": 3}, 3, 48),
        ({"max_tokens": 16, "n": 2, "best_of": 5}, 5, 80),
        ({"max_tokens": 16, "prompt": ["a", "b"], "best_of": 3}, 6, 96),
        ({"max_tokens": 0, "echo": True}, 1, 0),
        ({"max_tokens": -1, "n": 2}, 2, None),
        ({"max_tokens": 4, "prompt": [1, 2, 3]}, 1, 4),
        ({"max_tokens": 4, "prompt": [[1, 2], [3]]}, 2, 8),
    ],
)
def test_all_that_the_provider_makes_is_held(fields: dict[str, Any], n: int, limit: int | None) -> None:
    found = facts(ASK | fields)
    assert (found.n, found.completion_tokens_max) == (n, limit)


@pytest.mark.parametrize(
    ("fields", "evidence"),
    [
        ({}, PromptEvidence(chars_latin=4)),
        ({"suffix": " end"}, PromptEvidence(chars_latin=8)),
        ({"prompt": ["Wo", "堰"]}, PromptEvidence(chars_latin=2, chars_wide=1)),
        ({"prompt": [7] * 10}, PromptEvidence(chars_latin=44)),
        ({"prompt": [[7] * 5, [8] * 5]}, PromptEvidence(chars_latin=44)),
        ({"prompt": None}, PromptEvidence(chars_latin=4)),
    ],
)
def test_every_spelling_of_a_prompt_is_evidence(fields: dict[str, Any], evidence: PromptEvidence) -> None:
    assert facts(ASK | fields).prompt == evidence


def test_usage_is_asked_for_in_the_clients_stead() -> None:
    sent = OPENAI_COMPLETIONS.upstream_document(ASK | {"stream": True}, upstream_model="u", inject_usage=True)
    assert sent == {"model": "u", "prompt": "Once", "stream": True, "stream_options": {"include_usage": True}}
    assert OPENAI_COMPLETIONS.stripper is not None


STREAM = sse(
    *text("Much", " more", " water"), *text("Little", index=1), *text("", finish="stop"),
    {"id": "cmpl-7", "choices": [], "usage": usage(5, 7, 12)}, DONE,
)  # fmt: skip


def test_every_text_of_a_stream_is_evidence_at_every_cut() -> None:
    for pieces in cuts(STREAM):
        read = fed(OPENAI_COMPLETIONS.stream_meter(), pieces)
        assert (read.evidence.chars_latin, read.evidence.text_events) == (21, 4)
        assert read.usage == Usage(prompt_tokens=5, completion_tokens=7, total_tokens=12)
        assert (read.finish_reason, read.response_id, read.complete) == ("stop", "cmpl-7", True)


def test_an_answer() -> None:
    choices = [{"index": at, "text": "Much more", "finish_reason": "length"} for at in range(3)]
    read = read_answer(OPENAI_COMPLETIONS, {"id": "cmpl-8", "choices": choices, "usage": usage()})
    assert (read.evidence.chars_latin, read.finish_reason, read.complete) == (27, "length", True)
    assert read.usage == Usage(prompt_tokens=9, completion_tokens=3, total_tokens=12)
