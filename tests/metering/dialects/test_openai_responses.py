"""OpenAI's responses: every shape of an event, an answer and a request, and the rule of its usage."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from proxy.http import errors
from proxy.metering.dialects.openai_responses.request import facts
from proxy.metering.dialects.openai_responses.responses import OPENAI_COMPACT, OPENAI_RESPONSES
from proxy.metering.metered import Metered
from proxy.metering.usage import ModelUsage, PromptEvidence, Usage
from tests.metering.fixtures import read_answer, read_stream

USAGE = {
    "input_tokens": 30, "input_tokens_details": {"cached_tokens": 10}, "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 8}, "total_tokens": 50,
}  # fmt: skip
COUNTED = Usage(30, 10, 20, 8, 50)


def event(kind: str, **fields: Any) -> bytes:
    """One event with its name."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n".encode()


def said(text: str, index: int = 0) -> bytes:
    return event("response.output_text.delta", output_index=index, delta=text, sequence_number=4)


def response(status: str = "completed", usage: Any = USAGE, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "usage": usage, **more}


def last(status: str = "completed", **more: Any) -> bytes:
    return event(f"response.{status}", response=response(status, **more))


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": text}]}


BEGUN = event("response.created", response=response("in_progress", None))
TALE = [
    BEGUN, event("response.output_item.added", output_index=0, item={"type": "reasoning", "summary": []}),
    event("response.reasoning_summary_text.delta", output_index=0, delta="So 水."),
    event("response.output_item.done", output_index=0,
          item={"type": "reasoning", "summary": [{"text": "So 水."}], "encrypted_content": "gAAAA"}),
    event("response.output_item.added", output_index=1, item={"type": "message", "content": []}),
    said("It fließt ", 1), said("down.", 1), event("response.output_text.done", output_index=1, text="It fließt down."),
    event("response.output_item.done", output_index=1, item=message("It fließt down.")),
    last(output=[{"type": "reasoning", "summary": [{"text": "So 水."}]}, message("It fließt down.")]),
]  # fmt: skip


def metered(*events: bytes) -> Metered:
    """Read in every cut: the same each time."""
    return read_stream(OPENAI_RESPONSES, b"".join(events))


answered = partial(read_answer, OPENAI_RESPONSES)


def test_a_whole_stream_counts_each_text_once() -> None:
    result = metered(*TALE)
    assert (result.usage, result.usage_raw) == (COUNTED, USAGE)
    assert (result.complete, result.failed, result.finish_reason, result.response_id) == (
        True, None, "completed", "resp_1",
    )  # fmt: skip
    evidence = result.evidence
    assert (evidence.text_events, evidence.chars, evidence.chars_wide, evidence.reasoning_chars) == (3, 20, 1, 5)
    assert result.flags == ()


@pytest.mark.parametrize("count", range(1, len(TALE)))
def test_before_its_last_event_nothing_is_reported(count: int) -> None:
    result = metered(*TALE[:count])
    assert (result.usage, result.complete, result.finish_reason) == (None, False, None)


@pytest.mark.parametrize(
    ("status", "more", "told"),
    [
        ("completed", {}, ("completed", None)),
        ("incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}, ("max_output_tokens", None)),
        ("incomplete", {"incomplete_details": None}, ("incomplete", None)),
        ("failed", {"error": {"code": "server_error", "message": "no"}}, ("failed", "error_event")),
        ("failed", {"usage": None}, ("failed", "error_event")),
    ],
)
def test_every_last_event_says_how_it_ended_and_what_it_used(
    status: str, more: dict[str, Any], told: tuple[str, str | None]
) -> None:
    result = metered(BEGUN, said("Down."), last(status, **more))
    assert (result.finish_reason, result.failed) == told
    assert result.usage == (None if more.get("usage", 1) is None else COUNTED)
    meter = OPENAI_RESPONSES.stream_meter()
    meter.feed(last(status, **more))
    meter.fold()
    assert meter.done


def test_searches_are_counted_once_each_and_looking_at_pages_is_none() -> None:
    kinds = ("search", "open_page", "search", None)
    items = [
        {"type": "web_search_call", "id": str(at)} | ({"action": {"type": k}} if k else {})
        for at, k in enumerate(kinds)
    ]
    done = [event("response.output_item.done", output_index=at, item=item) for at, item in enumerate(items)]
    assert metered(BEGUN, *done, last(output=items)).usage == structs.replace(COUNTED, searches=3)
    assert answered(response(output=items)).usage == structs.replace(COUNTED, searches=3)
    grok = {"server_side_tool_usage_details": {"web_search_calls": 2}}
    assert answered(response(output=items, usage=USAGE | grok)).usage == structs.replace(COUNTED, searches=2)


@pytest.mark.parametrize(
    ("tools", "searches"),
    [
        ({"web_search": {"num_requests": 7}}, 7),  # several requests of one item
        ({"web_search": {"num_requests": 0}}, 0),
        ({"web_search": {}}, 1),
        ({"web_search": {"num_requests": "7"}}, 1),
        ({}, 1),
        (None, 1),
    ],
)
def test_the_number_of_searches_that_is_charged_for_is_the_one_that_is_told(
    tools: dict[str, Any] | None, searches: int
) -> None:
    item = {"type": "web_search_call", "id": "ws", "action": {"type": "search"}}
    told = {"output": [item], "tool_usage": tools}
    for result in (metered(BEGUN, last(**told)), answered(response(**told))):
        assert result.usage == structs.replace(COUNTED, searches=searches)
        assert result.unknown_usage_fields.paths == ()


def test_what_tools_cost_beside_the_tokens_is_said() -> None:
    image = {"image_gen": {"input_tokens": 31, "output_tokens": 6993, "total_tokens": 7024, "previews": 2}}
    items = [
        {"type": kind, "id": kind} for kind in ("file_search_call", "shell_call", "shell_call", "message", "mcp_call")
    ]
    told = {"output": items, "tool_usage": image}
    paths = {"output.shell_call": 2, "tool_usage.image_gen.previews": 2}
    done = [event("response.output_item.done", output_index=at, item=item) for at, item in enumerate(items)]
    for result in (metered(BEGUN, last(**told)), metered(BEGUN, *done, last(**told)), answered(response(**told))):
        assert result.unknown_usage_fields.paths == tuple(sorted(paths))
        assert result.unknown_usage_fields.values == paths
        assert result.usage == structs.replace(COUNTED, file_searches=1)
        assert result.other_models == (
            ModelUsage("gpt-image-1", Usage(31, None, 6993, None, 7024, image_completion_tokens=6993)),
        )


def test_what_else_costs_is_counted() -> None:
    details = {"input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2}}
    usage = metered(BEGUN, last(usage=USAGE | details)).usage
    assert usage is not None
    assert (usage.cached_tokens, usage.cache_write_tokens) == (1, 2)
    asked = event("response.created", response={"id": "resp_1", "status": "in_progress", "service_tier": "auto"})
    assert metered(asked, last(service_tier="flex")).served_as.service_tier == "flex"
    assert answered(response(output=[], service_tier="priority")).served_as.service_tier == "priority"


def test_gateways_that_end_with_done() -> None:
    assert metered(*TALE, b"data: [DONE]\n\n").usage == COUNTED


def test_calls_of_every_kind_are_generated_and_what_tools_print_is_not() -> None:
    result = metered(
        BEGUN,
        event("response.output_item.added", output_index=0, item={"type": "function_call", "name": "gauge"}),
        event("response.function_call_arguments.delta", output_index=0, delta='{"a":1}'),
        event("response.output_item.done", output_index=0,
              item={"type": "function_call", "name": "gauge", "arguments": '{"a":1}'}),
        event("response.output_item.added", output_index=1, item={"type": "web_search_call"}),
        event("response.output_item.added", output_index=2, item={"type": "shell_call"}),
        event("response.shell_call_command.delta", output_index=2, delta="ls"),
        event("response.shell_call_output_content.delta", output_index=3, delta="not ours"),
        event("response.output_item.done", output_index=4,
              item={"type": "custom_tool_call", "name": "sed", "input": "s/a/b/"}),
        event("response.audio.delta", output_index=5, delta="AAAA"),
        event("response.image_generation_call.partial_image", output_index=6, partial_image_b64="AAAA"),
        last(),
    )  # fmt: skip
    evidence = result.evidence
    assert (evidence.tool_calls, evidence.tool_events, evidence.text_events) == (4, 3, 0)
    assert evidence.tool_chars == len("gauge") + len('{"a":1}') + len("ls") + len("sed") + len("s/a/b/")


@pytest.mark.parametrize(
    "told",
    [
        event("error", code="server_error", message="no", param=None),
        b"event: error\ndata: no\n\n",
        b'data: {"error":{"message":"no"}}\n\n',
    ],
)
def test_an_error_in_the_stream_is_a_failure(told: bytes) -> None:
    result = metered(*TALE[:6], told)
    assert (result.failed, result.complete, result.usage) == ("error_event", False, None)
    assert not result.evidence.empty


def test_a_whole_answer() -> None:
    call = {"type": "function_call", "name": "gauge", "arguments": "{}"}
    refused = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    result = answered(response(output=[message("Down."), call, refused, {"type": "function_call_output"}]))
    assert (result.usage, result.complete, result.finish_reason) == (COUNTED, True, "completed")
    assert (result.evidence.chars_latin, result.evidence.tool_chars, result.evidence.tool_calls) == (8, 7, 1)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"error": {"message": "no"}}, ("error_body", False)),
        (response("failed", None, error={"code": "x"}, output=[]), ("error_body", False)),
        (response("queued", None, output=[]), (None, False)),
        (response("incomplete", output=[]), (None, True)),
    ],
)
def test_what_is_no_answer(document: Any, told: tuple[str | None, bool]) -> None:
    result = answered(document)
    assert (result.failed, result.complete) == told


@pytest.mark.parametrize("spoilt", [{"output": "none"}, {"id": 5}, {"output": [5, {"type": 7}]}, {"status": {}}])
def test_what_is_wrongly_typed_costs_only_itself(spoilt: dict[str, Any]) -> None:
    result = metered(BEGUN, said("Down."), event("response.completed", response=response() | spoilt))
    assert (result.usage, result.complete, result.evidence.chars) == (COUNTED, True, 5)


# -- requests ----------------------------------------------------------------------------------------------------

ASKED = {"model": "weir", "input": "How much?"}


def test_what_a_request_says() -> None:
    found = facts(ASKED | {"stream": True, "max_output_tokens": 9, "instructions": "Be brief."})
    assert (found.model, found.streamed, found.completion_tokens_max) == ("weir", True, 9)
    assert found.prompt == PromptEvidence(messages=2, chars_latin=18, blanks=2, marks=2)
    assert facts({"model": "weir", "previous_response_id": "resp_0"}).prompt == PromptEvidence()


def test_what_a_prompt_holds() -> None:
    parts = [{"type": "input_text", "text": "水"}, {"type": "input_image"}, {"type": "input_file"}]
    items = [
        {"role": "user", "content": parts},
        {"type": "function_call", "arguments": "{}"},
        {"type": "function_call_output", "output": "dry"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}], "encrypted_content": "gAAA"},
    ]
    assert facts(ASKED | {"input": items}).prompt == PromptEvidence(4, 3, 1, 0, len('"{}"') + len('"dry"'), 1, 1, 0, 1)


def test_its_error_event_is_its_own() -> None:
    refusal = errors.upstream_stalled()
    name, _, told = refusal.event(OPENAI_RESPONSES.errors).partition(b"\ndata: ")
    assert name == b"event: error"
    assert json.loads(told) == {
        "type": "error", "code": "upstream_stalled", "message": refusal.message, "param": None,
    }  # fmt: skip
    assert refusal.body(OPENAI_RESPONSES.errors) == refusal.body()


def test_messages_of_a_compacted_conversation_are_not_generated() -> None:
    items = [
        {"type": "message", "content": [{"type": "input_text", "text": "How much?"}]},
        {"type": "compaction", "encrypted_content": "AAAA"},
    ]
    usage = {"input_tokens": 300, "output_tokens": 40, "total_tokens": 340}
    result = read_answer(OPENAI_COMPACT, {"object": "response.compaction", "output": items, "usage": usage})
    assert (result.usage, result.evidence.empty) == (Usage(300, None, 40, None, 340), True)
    assert (result.complete, result.usage_final, result.unknown_usage_fields.paths) == (True, True, ())
