"""The wire languages say what the providers' pages say, and their numbers are honest."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.demo.shapes import (
    LANGUAGES,
    THOUGHTS,
    GeneratedAnswer,
    Language,
    Tool,
    arguments,
    stream,
    tokens_of,
    whole,
    words,
)
from tests.support import sse


def an_answer(**changes: object) -> GeneratedAnswer:
    fields: dict[str, object] = {
        "response_id": "r1",
        "created": 1_764_000_000,
        "model": "m",
        "prompt_tokens": 40,
        "content": words(6),
        "cached_tokens": 32,
    }
    return GeneratedAnswer(**{**fields, **changes})  # type: ignore[arg-type]


def body(name: str, answer: GeneratedAnswer, *, usage_asked: bool = True) -> bytes:
    return b"".join(event.wire for event in stream(LANGUAGES[name], answer, usage_asked=usage_asked))


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
@pytest.mark.parametrize("usage_asked", [True, False])
def test_a_stream_is_whole_events_whose_tokens_add_up(language: Language, usage_asked: bool) -> None:
    answer = an_answer(reasoning=words(3, THOUGHTS), tool=Tool("c", "note", arguments(4)))
    events = stream(language, answer, usage_asked=usage_asked)
    wire = b"".join(event.wire for event in events)
    assert [event.wire for event in sse.events(wire)] == [event.wire for event in events]
    assert sum(event.tokens for event in events) == answer.completion_tokens == 6 + 3 + 5
    assert sse.done(wire)
    assert sse.finish_reason(wire) == "stop"
    assert sse.text(wire, cumulative=language.cumulative) == "".join(answer.content)
    assert sse.text(wire, field="reasoning_content") == "".join(answer.reasoning)
    assert json.loads(sse.tool_arguments(wire)) == json.loads("".join(arguments(4)))


@pytest.mark.parametrize("name", ["tera", "tensorloop", "electron", "openai"])
def test_the_usage_event_comes_only_when_asked_for_and_last(name: str) -> None:
    asked = body(name, an_answer())
    assert sse.is_usage_event(sse.events(asked)[-2])
    assert sse.usage(body(name, an_answer(), usage_asked=False)) is None
    usage = sse.usage(asked)
    assert usage is not None
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (40, 6, 46)


def test_tensorloop_names_itself_once() -> None:
    first, *rest = sse.chunks(body("tensorloop", an_answer()))
    assert {"created", "model"} <= first.keys()
    assert all(not {"created", "model"} & chunk.keys() and chunk["id"] == "r1" for chunk in rest)


def test_siliconstorm_rides_its_usage_on_the_last_content_chunk_unasked() -> None:
    chunks = sse.chunks(body("siliconstorm", an_answer(), usage_asked=False))
    assert [chunk for chunk in chunks if "usage" in chunk] == chunks[-1:]
    last = chunks[-1]
    assert list(last).index("usage") < list(last).index("choices")
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["choices"][0]["delta"]["content"] == words(6)[-1]
    assert all(chunk["choices"][0]["delta"]["role"] == "assistant" for chunk in chunks)


def test_siliconstorm_fulltext_repeats_itself() -> None:
    chunks = sse.chunks(body("siliconstorm-fulltext", an_answer()))
    said = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert all(later.startswith(earlier) for earlier, later in pairwise(said))
    assert chunks[-1]["full_text"] == said[-1] == "".join(words(6))


def test_electron_says_its_role_once_and_its_cached_tokens() -> None:
    wire = body("electron", an_answer())
    deltas = [choice["delta"] for chunk in sse.chunks(wire) for choice in chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": words(1)[0]}
    assert all("role" not in delta for delta in deltas[1:])
    usage = sse.usage(wire)
    assert usage is not None
    assert usage["prompt_tokens_details"] == {"cached_tokens": 32}


def test_openai_says_usage_null_on_every_other_event_when_asked() -> None:
    *others, _ = sse.chunks(body("openai", an_answer()))
    assert all(chunk["usage"] is None for chunk in others)
    assert all("usage" not in chunk for chunk in sse.chunks(body("openai", an_answer(), usage_asked=False)))


def test_several_choices_are_told_apart_and_all_counted() -> None:
    answer = an_answer(choices=3)
    chunks = sse.chunks(body("openai", answer))
    reasons = [(c["index"], c["finish_reason"]) for chunk in chunks for c in chunk["choices"]]
    assert [index for index, reason in reasons if reason == "stop"] == [0, 1, 2]
    usage = sse.usage(body("openai", answer))
    assert usage is not None
    assert usage["completion_tokens"] == 18


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_a_whole_answer_says_the_same(language: Language) -> None:
    answer = an_answer(tool=Tool("c", "note", arguments(4)), finish_reason="tool_calls")
    said = json.loads(whole(language, answer))
    message = said["choices"][0]["message"]
    assert said["object"] == "chat.completion"
    assert message["content"] == "".join(answer.content)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert said["choices"][0]["finish_reason"] == "tool_calls"
    assert said["usage"]["completion_tokens"] == 11


@settings(deadline=None)
@given(st.text())
def test_tokens_join_to_their_text(text: str) -> None:
    tokens = tokens_of(text)
    assert "".join(tokens) == text
    assert all(tokens)


@settings(deadline=None)
@given(st.integers(2, 200))
def test_arguments_are_one_json_object_in_as_many_fragments(count: int) -> None:
    fragments = arguments(count)
    assert len(fragments) == count
    assert set(json.loads("".join(fragments))) == {"note"}
