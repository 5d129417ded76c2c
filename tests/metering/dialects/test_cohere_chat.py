"""Cohere's chat: each event and answer of its wire, cut anywhere; what a request says; how it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http import errors
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.metered import Metered
from proxy.metering.usage import PromptEvidence, Usage
from proxy.metering.wire.framing import SSE
from tests.metering.fixtures import cut_at, fed, read_answer

USED = {
    "billed_units": {"input_tokens": 9, "output_tokens": 5},
    "tokens": {"input_tokens": 90, "output_tokens": 8, "reasoning_tokens": 2},
    "cached_tokens": 64,
}
USAGE = Usage(90, 64, 8, 2, 98, unbilled_prompt_tokens=81, unbilled_completion_tokens=3)
ASK = {"model": "command", "messages": [{"role": "user", "content": "How much?"}]}


def event(kind: str, *, index: int | None = None, delta: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": kind, "index": index, "delta": delta, **more}


def adds(kind: str, index: int = 0, **message: Any) -> dict[str, Any]:
    return event(kind, index=index, delta={"message": message})


def call(kind: str, index: int, **function: str) -> dict[str, Any]:
    return adds(kind, index, tool_calls={"id": "c", "type": "function", "function": function})


def ends(reason: str = "COMPLETE", usage: Any = None, **more: Any) -> dict[str, Any]:
    return event("message-end", delta={"finish_reason": reason, "usage": USED if usage is None else usage, **more})


START = event(
    "message-start",
    id="r-1",
    delta={"message": {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}},
)
SPOKEN = (
    START,
    adds("content-start", content={"type": "thinking", "thinking": ""}),
    adds("content-delta", content={"thinking": "Hm, 水"}),
    event("content-end", index=0),
    adds("content-start", 1, content={"type": "text", "text": "So"}),
    adds("content-delta", 1, content={"text": " much."}),
    adds("citation-start", citations={"start": 0, "end": 2, "text": "So", "sources": [{"type": "tool", "id": "t:0"}]}),
    event("citation-end", index=0),
    event("content-end", index=1),
    ends(),
)


def sse(*events: dict[str, Any]) -> bytes:
    texts = [f"event: {one['type']}\ndata: {json.dumps(one, ensure_ascii=False)}\n\n" for one in events]
    return "".join(texts).encode()


def metered(body: bytes, at: tuple[int, ...] = ()) -> Metered:
    return fed(COHERE_CHAT.stream_meter(), cut_at(body, at))


def answered(**top: Any) -> Metered:
    return read_answer(COHERE_CHAT, top)


def test_a_stream_is_read_to_its_last_word() -> None:
    result = metered(sse(*SPOKEN))
    assert (result.usage, result.usage_raw) == (USAGE, USED)
    assert (result.finish_reason, result.response_id, result.complete, result.failed) == ("COMPLETE", "r-1", True, None)
    assert (result.events, result.flags) == (len(SPOKEN), ())
    evidence = result.evidence
    assert (evidence.text_events, evidence.chars, evidence.reasoning_chars, evidence.chars_wide) == (3, 13, 5, 1)
    assert metered(sse(*SPOKEN) + b"data: [DONE]\n\n").evidence == evidence


@given(st.lists(st.integers(0, 5000), max_size=12).map(tuple))
def test_a_stream_reads_the_same_at_every_cut(at: tuple[int, ...]) -> None:
    assert metered(sse(*SPOKEN), at) == metered(sse(*SPOKEN))


def test_broken_characters_lose_nothing_else() -> None:
    broken = metered(sse(*SPOKEN).replace("水".encode(), b"\xff"))
    assert (broken.usage, broken.evidence.chars, broken.finish_reason) == (USAGE, 13, "COMPLETE")


def test_a_plan_is_text_and_each_tool_call_is_one() -> None:
    body = sse(
        START,
        adds("tool-plan-delta", tool_plan="I ask "),
        adds("tool-plan-delta", tool_plan="twice."),
        call("tool-call-start", 0, name="gauge", arguments=""),
        call("tool-call-delta", 0, arguments='{"at":'),
        call("tool-call-delta", 0, arguments="1}"),
        event("tool-call-end", index=0),
        call("tool-call-start", 1, name="gauge", arguments="{}"),
        ends("TOOL_CALL"),
    )
    result = metered(body)
    evidence = result.evidence
    assert (evidence.text_events, evidence.chars_latin, evidence.reasoning_chars) == (2, 12, 0)
    assert (evidence.tool_calls, evidence.tool_events, evidence.tool_chars) == (2, 4, 20)
    assert result.finish_reason == "TOOL_CALL"


@pytest.mark.parametrize(
    ("last", "failed", "usage"),
    [
        (ends("ERROR", {}, error="no", error_type="INVALID_TOOL_GENERATION"), "error_event", None),
        (ends("TIMEOUT"), "error_event", USAGE),
        (ends("COMPLETE", error="no"), "error_event", USAGE),
        ({"type": None, "message": "too many requests"}, "error_event", None),
        (ends("MAX_TOKENS"), None, USAGE),
        (ends("STOP_SEQUENCE"), None, USAGE),
    ],
)
def test_an_answer_that_failed_says_so_in_its_last_event(last: Any, failed: str | None, usage: Usage | None) -> None:
    result = metered(sse(*SPOKEN[:4], last))
    assert (result.failed, result.usage) == (failed, usage)


def test_a_stream_that_breaks_off_is_not_complete() -> None:
    result = metered(sse(*SPOKEN[:-1]))
    assert (result.complete, result.usage, result.evidence.empty) == (False, None, False)


def test_an_answer() -> None:
    content = [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Much."}]
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    message = {"role": "assistant", "content": content, "tool_plan": "Ask.", "tool_calls": calls, "citations": [{}]}
    result = answered(id="r-2", message=message, finish_reason="COMPLETE", usage=USED)
    assert (result.usage, result.response_id, result.complete) == (USAGE, "r-2", True)
    evidence = result.evidence
    assert (evidence.text_events, evidence.chars, evidence.reasoning_chars) == (1, 17, 2)
    assert (evidence.tool_calls, evidence.tool_events, evidence.tool_chars) == (2, 1, 6)


@pytest.mark.parametrize(
    ("top", "failed"),
    [
        ({"id": "r", "message": "too many tokens", "error_type": "TOO_MANY_TOKENS"}, "error_body"),
        ({"message": {"content": []}, "finish_reason": "ERROR"}, "error_body"),
        ({"nothing": 1}, None),
    ],
)
def test_what_is_no_answer_is_not_complete(top: dict[str, Any], failed: str | None) -> None:
    result = answered(**top)
    assert (result.failed, result.complete, result.evidence.empty) == (failed, False, True)


@pytest.mark.parametrize(
    ("raw", "usage", "flags"),
    [
        (
            {"billed_units": {"input_tokens": 9, "output_tokens": 3}},
            Usage(9, None, 3, None, 12, unbilled_prompt_tokens=0, unbilled_completion_tokens=0),
            (),
        ),
        (
            {"billed_units": {"input_tokens": 9}, "tokens": {"input_tokens": 5, "output_tokens": 3}},
            Usage(5, None, 3, None, 8, unbilled_prompt_tokens=0),
            (),
        ),
        ({"tokens": {"input_tokens": -1}}, None, ("usage_invalid",)),
        ({"tokens": [], "billed_units": 7}, None, ()),
        ({}, None, ()),
    ],
)
def test_the_rule_of_usage(raw: dict[str, Any], usage: Usage | None, flags: tuple[str, ...]) -> None:
    result = metered(sse(*SPOKEN[:-1], ends(usage=raw)))
    assert (result.usage, result.flags) == (usage, flags)


def test_what_a_request_says() -> None:
    messages = [
        {"role": "system", "content": "Be brief"},
        {"role": "assistant", "tool_plan": "Ask.", "tool_calls": [{"function": {"name": "a"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "document", "document": {"data": "1"}}]},
        {"role": "user", "content": [{"type": "text", "text": "水"}, {"type": "image_url", "image_url": {"url": "x"}}]},
    ]
    said = COHERE_CHAT.facts({**ASK, "messages": messages, "max_tokens": 7, "stream": True, "documents": ["abc"]})
    assert (said.model, said.streamed, said.completion_tokens_max, said.n) == ("command", True, 7, 1)
    assert said.prompt == PromptEvidence(
        messages=4,
        chars_latin=12,
        chars_wide=1,
        blanks=1,
        marks=1,
        calls=1,
        results=1,
        call_chars=len('[{"function":{"name":"a"}}]'),
        tool_chars=len('["abc"][{"function":{"name":"a"}}]{"data":"1"}'),
        images=1,
    )
    assert COHERE_CHAT.upstream_document(ASK, upstream_model="up", inject_usage=False) == {**ASK, "model": "up"}


def test_a_refusal_is_a_message_and_in_a_stream_its_end() -> None:
    refusal = errors.bad_request("stream: must be a boolean", param="stream")
    assert json.loads(refusal.body(COHERE_CHAT.errors)) == {"message": "stream: must be a boolean"}
    result = metered(sse(*SPOKEN[:4]) + errors.upstream_stalled().event(COHERE_CHAT.errors, SSE))
    assert (result.finish_reason, result.failed, result.events) == ("ERROR", "error_event", 5)
