"""Google's interactions: recorded answers, each event of the wire, what a request says, how it is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from proxy.http import errors
from proxy.metering.dialects.gemini_interactions.interactions import GEMINI_INTERACTIONS as DIALECT
from proxy.metering.usage import PromptEvidence, Usage
from tests.metering.fixtures import read_answer, read_events

USED = {"total_input_tokens": 30, "total_tool_use_tokens": 5, "total_output_tokens": 8, "total_thought_tokens": 12}
TOTAL = USED | {"total_tokens": 55, "total_cached_tokens": 3}
USAGE = Usage(35, 3, 20, 12, 55)
ASK = {"model": "gemini-3-flash", "input": "How much?"}


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"event_type": kind, **more}


def delta(kind: str, **more: Any) -> dict[str, Any]:
    return event("step.delta", index=1, delta={"type": kind, **more})


def ended(usage: dict[str, Any], **more: Any) -> dict[str, Any]:
    whole = {"id": "v1_x", "status": "completed", "model": "gemini-3-flash", "usage": usage} | more
    return event("interaction.completed", interaction=whole)


streamed = partial(read_events, DIALECT)
answered = partial(read_answer, DIALECT)


def test_a_stream_is_counted_by_its_last_event() -> None:
    result = streamed(
        event("interaction.created", interaction={"id": "v1_x", "status": "in_progress"}),
        event("step.start", index=0, step={"type": "thought"}),
        delta("thought_summary", content={"type": "text", "text": "Hm."}),
        delta("thought_signature", signature="A" * 999),
        event("step.start", index=1, step={"type": "model_output"}),
        delta("text", text="Much."),
        event("step.start", index=2, step={"type": "function_call", "name": "gate", "arguments": {}, "id": "1"}),
        delta("arguments_delta", arguments='{"by":4}'),
        ended(TOTAL, service_tier="flex"),
    )
    assert result.usage == USAGE
    assert (result.response_id, result.finish_reason, result.served_as.service_tier) == ("v1_x", "completed", "flex")
    assert result.usage_final
    assert result.complete
    evidence = result.evidence
    assert (evidence.chars_latin, evidence.reasoning_chars, evidence.tool_chars) == (8, 3, len('gate{"by":4}'))
    assert evidence.tool_calls == 1
    assert result.flags == ("tool_prompt",)


def test_a_stream_that_breaks_off_has_running_counts_only() -> None:
    result = streamed(delta("text", text="Much."), event("step.stop", index=1, usage=TOTAL))
    assert (result.usage, result.completion_so_far) == (Usage(prompt_tokens=35, cached_tokens=3), 20)
    assert not result.usage_final
    assert not result.complete


@pytest.mark.parametrize(
    ("counted", "queries", "model", "searches"),
    [
        ([{"type": "google_search", "count": 3}], [], "gemini-3-flash", 3),
        ([{"type": "google_search", "count": 3}], ["a"], "gemini-2.5-flash", 1),
        ([{"type": "google_maps", "count": 3}], [], "gemini-3-flash", None),
        (None, ["a", "b", "a"], "gemini-3-flash", 2),
        (None, ["a", "b"], "models/gemini-2.5-flash", 1),
        (None, [], "gemini-3-flash", None),
    ],
)
def test_searches(counted: Any, queries: list[str], model: str, searches: int | None) -> None:
    call = delta("google_search_call", arguments={"queries": queries})
    result = streamed(call, ended(TOTAL | {"grounding_tool_count": counted}, model=model))
    assert result.usage is not None
    assert result.usage.searches == searches
    unread = ("usage.grounding_tool_count.type=google_maps",) if counted and "maps" in str(counted) else ()
    assert (
        result.unknown_usage_fields.paths == tuple(f"interaction.{path}" for path in unread)
        or result.unknown_usage_fields.paths == unread
    )


def test_a_whole_answer() -> None:
    steps = [
        {"type": "thought", "summary": [{"type": "text", "text": "Hm."}]},
        {"type": "model_output", "content": [{"type": "text", "text": "Much."}, {"type": "image", "data": "A"}]},
        {"type": "function_call", "name": "gate", "arguments": {"by": 4}},
        {"type": "function_result", "result": "not generated"},
    ]
    parts = [{"modality": "image", "tokens": 7}]
    usage = TOTAL | {"output_tokens_by_modality": parts}
    result = answered({"id": "v1_y", "status": "requires_action", "steps": steps, "usage": usage})
    assert result.usage is not None
    assert (result.usage.completion_tokens, result.usage.image_completion_tokens) == (20, 7)
    assert (result.finish_reason, result.complete) == ("requires_action", True)
    assert (result.evidence.reasoning_chars, result.evidence.tool_chars) == (3, len('gate{"by":4}'))


@pytest.mark.parametrize(
    "told", [{"error": {"code": "x", "message": "later"}}, {"id": "v1", "status": "failed", "usage": TOTAL}]
)
def test_a_failure_is_one(told: dict[str, Any]) -> None:
    assert answered(told).failed == "error_body"
    assert streamed(event("error", error=told.get("error", {"message": "m"}))).failed == "error_event"


def test_a_request() -> None:
    document = ASK | {
        "stream": True,
        "system_instruction": "Be brief.",
        "generation_config": {"max_output_tokens": 40},
        "input": [
            {"type": "user_input", "content": [{"type": "text", "text": "How much?"}, {"type": "image", "data": "A"}]},
            {"type": "function_call", "name": "gate", "arguments": {"by": 4}},
        ],
    }
    facts = DIALECT.facts(document)
    assert (facts.model, facts.streamed, facts.completion_tokens_max) == ("gemini-3-flash", True, 40)
    assert facts.prompt.messages == 3
    assert (facts.prompt.chars_latin, facts.prompt.images, facts.prompt.tool_chars) == (18, 1, len('{"by":4}'))
    assert DIALECT.facts(ASK).prompt == PromptEvidence(messages=1, chars_latin=9, blanks=1, marks=1)


def test_an_agent_stands_in_place_of_a_model() -> None:
    document = {"agent": "deep-thought", "input": "?"}
    assert DIALECT.facts(document).model == "deep-thought"
    sent = DIALECT.upstream_document(document, upstream_model="other", inject_usage=True)
    assert sent == {"agent": "other", "input": "?"}
    assert DIALECT.upstream_document(ASK, upstream_model="m", inject_usage=True) == ASK | {"model": "m"}


def test_a_refusal_has_the_shape_that_the_sdk_reads() -> None:
    refusal = errors.bad_request("stream: no", param="stream", code="invalid_value")
    assert DIALECT.errors.body(refusal)["error"]["status"] == "INVALID_ARGUMENT"
    assert DIALECT.errors.event_body(refusal) == {
        "event_type": "error",
        "error": {"code": "invalid_value", "message": "stream: no"},
    }
