"""Anthropic's messages: every shape of an event, an answer and a request, and the rule of its usage."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from proxy.http import errors
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_COUNT_TOKENS, ANTHROPIC_ERRORS, ANTHROPIC_MESSAGES
from proxy.metering.dialects.anthropic.request import facts
from proxy.metering.metered import Metered
from proxy.metering.request import with_model
from proxy.metering.usage import PromptEvidence, Usage
from tests.metering.fixtures import read_answer, read_stream

SEED = {"input_tokens": 7, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 1}


def event(kind: str, **fields: Any) -> bytes:
    """One event with its name."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n".encode()


def start(**usage: Any) -> bytes:
    return event("message_start", message={"id": "msg_1", "type": "message", "content": [], "usage": SEED | usage})


def block(**fields: Any) -> bytes:
    return event("content_block_start", index=fields.pop("index", 0), content_block=fields)


def delta(index: int = 0, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta=fields)


def end(reason: str = "end_turn", **usage: Any) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


PING, STOP = event("ping"), event("message_stop")
TALE = [
    start(), block(type="thinking", thinking="", signature=""), PING, delta(thinking="Water 水. "),
    delta(signature="EqoBCkgIARABGAIiQL8"), event("content_block_stop", index=0),
    block(index=1, type="text", text=""), delta(1, text="It fließt "), delta(1, text="down."),
    event("content_block_stop", index=1), end(output_tokens=41), STOP,
]  # fmt: skip


def metered(*events: bytes) -> Metered:
    """Read in every cut: the same each time."""
    return read_stream(ANTHROPIC_MESSAGES, b"".join(events))


answered = partial(read_answer, ANTHROPIC_MESSAGES)


def test_a_whole_stream() -> None:
    result = metered(*TALE)
    assert result.usage == Usage(127, 100, 41, None, 168, 20)
    assert result.usage_raw == SEED | {"output_tokens": 41}
    assert (result.complete, result.failed, result.finish_reason, result.response_id) == (
        True, None, "end_turn", "msg_1",
    )  # fmt: skip
    evidence = result.evidence
    assert (evidence.text_events, evidence.chars, evidence.chars_wide, evidence.reasoning_chars) == (3, 24, 1, 9)
    assert (result.events, result.flags) == (len(TALE), ())


@pytest.mark.parametrize("count", range(1, len(TALE)))
def test_until_the_end_the_completion_is_not_reported(count: int) -> None:
    """The seed of message_start is no count (a client that leaves would be billed one token)."""
    result = metered(*TALE[:count])
    assert result.usage is not None
    assert result.usage.prompt_tokens == 127
    assert result.usage.completion_tokens == (41 if end(output_tokens=41) in TALE[:count] else None)
    assert result.complete is (count == len(TALE) - 1)


def test_only_the_last_event_says_that_it_is_done() -> None:
    meter = ANTHROPIC_MESSAGES.stream_meter()
    meter.feed(b"".join(TALE[:-1]))
    meter.fold()
    assert not meter.done
    meter.feed(STOP)
    meter.fold()
    assert meter.done


def test_tools_of_the_client_and_of_the_server_are_generated_and_their_results_are_not() -> None:
    result = metered(
        start(),
        block(type="tool_use", id="toolu_1", name="gauge", input={}),
        delta(partial_json=""),
        delta(partial_json='{"weir":'),
        delta(partial_json=' "north"}'),
        block(index=1, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        delta(1, partial_json='{"query":"水"}'),
        block(index=2, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[{"title": "not ours"}]),
        block(index=3, type="text", text=""),
        delta(3, citations={"cited_text": "not generated"}, type="citations_delta"),
        end("tool_use", output_tokens=30, server_tool_use={"web_search_requests": 1}),
        STOP,
    )
    evidence = result.evidence
    assert (evidence.tool_calls, evidence.tool_events, evidence.text_events) == (2, 5, 0)
    assert evidence.tool_chars == len("gauge") + len('{"weir": "north"}') + len("web_search") + len('{"query":"水"}')
    assert result.usage_raw is not None
    assert result.usage_raw["server_tool_use"] == {"web_search_requests": 1}


def test_a_compaction_is_text_and_its_tokens_are_added() -> None:
    steps = [
        {"type": "compaction", "input_tokens": 900, "output_tokens": 50, "cache_read_input_tokens": 10},
        {"type": "message", "input_tokens": 7, "output_tokens": 5},
    ]
    result = metered(
        start(input_tokens=900, cache_creation_input_tokens=0, cache_read_input_tokens=10),
        block(type="compaction", content=None),
        delta(type="compaction_delta", content="The talk so far."),
        end(input_tokens=7, cache_read_input_tokens=0, output_tokens=5, iterations=steps),
        STOP,
    )
    assert result.usage == Usage(917, 10, 55, None, 972, 0)
    assert (result.evidence.chars, result.flags) == (16, ())


@pytest.mark.parametrize(
    ("steps", "flags"),
    [
        ([{"type": "message", "input_tokens": 7, "output_tokens": 41}], ()),
        ([{"type": "message", "output_tokens": 20}, {"type": "message", "output_tokens": 21}], ()),
        ([{"type": "message", "output_tokens": 41}, {"type": "advisor_message", "output_tokens": 9}], ()),
        ("many", ()),
        ([None, 5], ()),
    ],
)  # fmt: skip
def test_steps_are_never_added_twice(steps: Any, flags: tuple[str, ...]) -> None:
    result = metered(start(), end(output_tokens=41, iterations=steps), STOP)
    assert result.usage == Usage(127, 100, 41, None, 168, 20)
    assert result.flags == flags


def test_steps_of_many_models_are_bounded() -> None:
    steps = [
        {"type": "advisor_message", "model": f"m-{number}", "input_tokens": 2, "output_tokens": 1}
        for number in range(500)
    ]
    result = metered(start(), end(output_tokens=41, iterations=steps), STOP)
    assert len(result.other_models) == 9
    assert sum(one.usage.prompt_tokens or 0 for one in result.other_models) == 1_000


@pytest.mark.parametrize(
    "told",
    [
        event("error", error={"type": "overloaded_error", "message": "Overloaded"}),
        b"event: error\ndata: overloaded\n\n",
        b'data: {"type":"error","error":{"type":"api_error"}}\n\n',
    ],
)
def test_an_error_in_the_stream_is_a_failure_and_no_output(told: bytes) -> None:
    result = metered(*TALE[:8], told)
    assert (result.failed, result.complete) == ("error_event", False)
    assert result.evidence == metered(*TALE[:8]).evidence


def test_a_whole_answer() -> None:
    content = [
        {"type": "thinking", "thinking": "So.", "signature": "x"},
        {"type": "text", "text": "Down."},
        {"type": "tool_use", "id": "toolu_1", "name": "gauge", "input": {"weir": 1}},
    ]
    message = {"id": "msg_2", "type": "message", "content": content, "stop_reason": "tool_use"}
    result = answered(message | {"usage": SEED | {"output_tokens": 9}})
    assert result.usage == Usage(127, 100, 9, None, 136, 20)
    assert (result.complete, result.finish_reason, result.response_id) == (True, "tool_use", "msg_2")
    assert (result.evidence.chars_latin, result.evidence.reasoning_chars, result.evidence.tool_chars) == (8, 3, 15)


def test_an_error_is_no_answer() -> None:
    result = answered({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}})
    assert (result.failed, result.complete, result.evidence.empty) == ("error_body", False, True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda e: e["message"].update(id=5), lambda e: e["message"].update(usage="many"),
        lambda e: e["message"].update(content="none"), lambda e: e.update(index="first"), lambda e: e.update(delta=[]),
    ],
)  # fmt: skip
def test_what_is_wrongly_typed_costs_only_itself(spoil: Callable[[Any], None]) -> None:
    document = json.loads(start().partition(b"data: ")[2])
    spoil(document)
    result = metered(event(**{"kind": document.pop("type"), **document}), *TALE[6:])
    assert result.usage is not None
    assert (result.usage.completion_tokens, result.evidence.text_events, result.complete) == (41, 2, True)


# -- requests ----------------------------------------------------------------------------------------------------

ASKED = {"model": "weir", "max_tokens": 50, "messages": [{"role": "user", "content": "How much?"}]}


def test_what_a_request_says() -> None:
    found = facts(ASKED | {"stream": True, "system": [{"type": "text", "text": "Be brief."}]})
    assert (found.model, found.streamed, found.completion_tokens_max, found.n) == ("weir", True, 50, 1)
    assert found.prompt == PromptEvidence(messages=2, chars_latin=18, blanks=2, marks=2)
    assert facts(ASKED | {"model": "x"}, "named").model == "named"


def test_what_a_prompt_holds() -> None:
    blocks = [
        {"type": "text", "text": "水"},
        {"type": "image", "source": {"type": "base64", "data": "…"}},
        {"type": "document", "source": {"type": "text", "data": "page"}},
        {"type": "document", "source": {"type": "base64", "data": "…"}},
        {"type": "tool_use", "name": "gauge", "input": {"a": 1}},
        {"type": "tool_result", "content": [{"type": "text", "text": "level"}, {"type": "image", "source": {}}]},
        {"type": "tool_result", "content": "dry"},
    ]
    found = facts(ASKED | {"messages": [{"role": "user", "content": blocks}], "tools": [{"name": "g"}]}).prompt
    assert found == PromptEvidence(1, 12, 1, 0, len('{"a":1}') + len('[{"name":"g"}]'), 2, 1)


def test_only_the_model_changes_on_the_way_up() -> None:
    sent = with_model(ASKED, upstream_model="claude", inject_usage=True)
    assert sent == ASKED | {"model": "claude"}
    assert ASKED["model"] == "weir"


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (errors.bad_request("wrong", param="n"), "invalid_request_error"),
        (errors.key_refused("missing"), "authentication_error"), (errors.budget_cut(), "billing_error"),
        (errors.model_not_allowed("m"), "permission_error"), (errors.unknown_model("m"), "not_found_error"),
        (errors.key_refused("too_many"), "rate_limit_error"), (errors.internal(), "api_error"),
        (errors.shutting_down(), "overloaded_error"), (errors.upstream_stalled(), "timeout_error"),
    ],
)  # fmt: skip
def test_refusals_have_the_shape_its_sdk_reads(refusal: errors.ApiError, kind: str) -> None:
    body = json.loads(refusal.body(ANTHROPIC_ERRORS))
    assert body == {"type": "error", "error": {"type": kind, "message": refusal.message}}
    assert refusal.event(ANTHROPIC_ERRORS).startswith(b'event: error\ndata: {"type":"error",')


def test_counting_tokens_uses_none() -> None:
    for document, usage in (({"input_tokens": 14}, Usage(0, None, 0, None, 0)), ({"error": {"type": "x"}}, None)):
        result = read_answer(ANTHROPIC_COUNT_TOKENS, document)
        assert (result.usage, result.complete) == (usage, usage is not None)
        assert result.usage_raw == (document if usage else None)
