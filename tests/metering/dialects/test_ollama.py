"""Ollama's chat and generate: each line and answer of their wire, cut anywhere; what a request says; refusals."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http import errors
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT, OLLAMA_GENERATE
from proxy.metering.metered import Metered
from proxy.metering.usage import PromptEvidence, Usage
from proxy.metering.wire.framing import NDJSON
from tests.metering.fixtures import cut_at, fed, read_answer

USED = {"total_duration": 9_000, "load_duration": 10, "prompt_eval_count": 26, "eval_count": 8, "eval_duration": 700}
ENDED = {"done": True, "done_reason": "stop", **USED}
CHAT = {"model": "weir", "messages": [{"role": "user", "content": "How much?"}]}
TEXT = {"model": "weir", "prompt": "How much?"}


def said(content: str = "", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **more}
    return {"model": "weir", "created_at": "2026-11-21T10:00:00Z", "message": message, "done": False}


def wrote(response: str = "", **more: Any) -> dict[str, Any]:
    return {"model": "weir", "created_at": "2026-11-21T10:00:00Z", "response": response, "done": False, **more}


def lines(*documents: dict[str, Any]) -> bytes:
    return "".join(f"{json.dumps(document, ensure_ascii=False)}\n" for document in documents).encode()


def metered(body: bytes, at: tuple[int, ...] = (), content_type: str = "application/x-ndjson") -> Metered:
    framing = OLLAMA_CHAT.framing(content_type, streamed=True)
    assert framing is not None
    return fed(OLLAMA_CHAT.stream_meter(framing), cut_at(body, at))


answered = partial(read_answer, OLLAMA_CHAT)


CALLS = [{"function": {"index": place, "name": "gauge", "arguments": {"at": "水"}}} for place in (0, 1)]
SPOKEN = lines(
    said(thinking="Hm, "), said(thinking="so"), said("Much\u2028"), said(" 水", tool_calls=CALLS), said() | ENDED
)


@pytest.mark.parametrize("content_type", ["application/x-ndjson", "application/json", ""])
def test_a_chat_is_read_to_its_last_line(content_type: str) -> None:
    result = metered(SPOKEN, content_type=content_type)
    assert (result.usage, result.usage_raw) == (Usage(26, None, 8, None, 34), USED)
    assert (result.finish_reason, result.complete, result.failed, result.flags) == ("stop", True, None, ())
    assert result.events == 5
    evidence = result.evidence
    assert (evidence.text_events, evidence.reasoning_chars, evidence.chars_wide) == (4, 6, 1)
    assert (evidence.tool_calls, evidence.tool_events, evidence.tool_chars) == (2, 1, 2 * len('gauge{"at":"水"}'))


@given(st.lists(st.integers(0, 2000), max_size=12).map(tuple))
def test_a_chat_reads_the_same_at_every_cut(at: tuple[int, ...]) -> None:
    assert metered(SPOKEN, at) == metered(SPOKEN)


def test_broken_characters_lose_nothing_else() -> None:
    broken = metered(SPOKEN.replace("水".encode(), b"\xff"))
    assert (broken.usage, broken.evidence.tool_calls) == (Usage(26, None, 8, None, 34), 2)
    assert broken.evidence.chars == metered(SPOKEN).evidence.chars


def test_a_text_ends_with_its_context_which_is_no_output() -> None:
    last = wrote(context=list(range(300)), **ENDED) | {"done": True, "done_reason": "length"}
    result = metered(lines(wrote(thinking="Hm"), wrote("Much"), last))
    assert (result.usage, result.finish_reason) == (Usage(26, None, 8, None, 34), "length")
    assert (result.evidence.text_events, result.evidence.chars, result.evidence.reasoning_chars) == (2, 6, 2)


def test_a_last_line_without_an_end_is_read() -> None:
    assert metered(SPOKEN[:-1]).usage == Usage(26, None, 8, None, 34)
    one = metered(lines(said("All") | ENDED)[:-1])
    assert (one.usage, one.complete) == (Usage(26, None, 8, None, 34), True)


@pytest.mark.parametrize("cut", [1, 200])
def test_a_stream_that_breaks_off_is_not_complete(cut: int) -> None:
    result = metered(SPOKEN[:-cut] if cut > 1 else lines(said("Much"))[:-1])
    assert (result.complete, result.usage, result.failed, result.evidence.empty) == (False, None, None, False)


def test_an_error_is_a_line_and_no_output() -> None:
    result = metered(lines(said("Much"), {"error": "the runner has stopped"}))
    assert (result.failed, result.complete, result.evidence.chars, result.usage) == ("error_event", False, 4, None)
    result = answered({"error": "model 'weir' not found"})
    assert (result.failed, result.complete, result.evidence.empty) == ("error_body", False, True)


def test_an_answer() -> None:
    chat = answered(said("Much", thinking="Hm", tool_calls=CALLS) | ENDED)
    text = answered(wrote("Much", thinking="Hm") | ENDED)
    for result in (chat, text):
        assert (result.usage, result.finish_reason, result.complete) == (Usage(26, None, 8, None, 34), "stop", True)
        assert (result.evidence.text_events, result.evidence.reasoning_chars) == (1, 2)
    assert (chat.evidence.tool_calls, text.evidence.tool_calls) == (2, 0)
    assert not answered(said("Much")).complete


@pytest.mark.parametrize(
    ("used", "usage", "flags"),
    [
        ({"eval_count": 8}, Usage(None, None, 8), ()),
        ({"total_duration": 5}, None, ()),
        ({"prompt_eval_count": -1, "eval_count": 8}, Usage(None, None, 8), ("usage_invalid",)),
    ],
)
def test_the_rule_of_usage(used: dict[str, Any], usage: Usage | None, flags: tuple[str, ...]) -> None:
    result = metered(lines(said("Much"), said() | {"done": True, **used}))
    assert (result.usage, result.flags, result.complete) == (usage, flags, True)
    assert result.usage_raw == (used if usage else None)


def test_counts_before_the_last_line_are_none() -> None:
    assert metered(lines(said("Much") | USED)).usage is None


@pytest.mark.parametrize(
    ("stream", "streamed"),
    [({}, True), ({"stream": None}, True), ({"stream": True}, True), ({"stream": False}, False)],
)
def test_it_streams_unless_that_is_declined(stream: dict[str, Any], streamed: bool) -> None:
    assert OLLAMA_CHAT.facts(CHAT | stream).streamed is OLLAMA_GENERATE.facts(TEXT | stream).streamed is streamed


@pytest.mark.parametrize("none", [None, {}, {"num_predict": None}, *[{"num_predict": below} for below in (0, -1, -2)]])
def test_the_limit_is_an_option_and_may_be_none(none: Any) -> None:
    assert OLLAMA_CHAT.facts(CHAT | {"options": none}).completion_tokens_max is None
    assert OLLAMA_GENERATE.facts(TEXT | {"options": {"num_predict": 7}}).completion_tokens_max == 7


def test_what_a_request_says() -> None:
    messages = [
        {"role": "user", "content": "Look", "images": ["aGk=", "aGk="]},
        {"role": "assistant", "content": "", "thinking": "水", "tool_calls": [{"function": {"name": "a"}}]},
    ]
    said = OLLAMA_CHAT.facts({"model": "weir:4b", "messages": messages, "format": {"type": "object"}})
    assert (said.model, said.n) == ("weir:4b", 1)
    told = len('{"type":"object"}[{"function":{"name":"a"}}]')
    assert said.prompt == PromptEvidence(
        messages=2, chars_latin=4, chars_wide=1, tool_chars=told, images=2, calls=1, call_chars=27
    )
    text = TEXT | {"system": "Be brief", "suffix": "!", "images": ["aGk="], "context": [1, 22]}
    prompt = OLLAMA_GENERATE.facts(text).prompt
    assert prompt == PromptEvidence(messages=2, chars_latin=18, tool_chars=len("[1,22]"), images=1, blanks=2, marks=2)
    assert OLLAMA_CHAT.upstream_document(CHAT, upstream_model="up", inject_usage=True) == {**CHAT, "model": "up"}


def test_a_refusal_is_an_error_and_in_a_stream_its_last_line() -> None:
    refusal = errors.bad_request("stream: must be a boolean", param="stream")
    assert json.loads(refusal.body(OLLAMA_CHAT.errors)) == {"error": "stream: must be a boolean"}
    result = metered(lines(said("Much")) + errors.upstream_stalled().event(OLLAMA_CHAT.errors, NDJSON))
    assert (result.failed, result.events) == ("error_event", 2)
