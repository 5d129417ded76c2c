"""Bedrock: Converse and InvokeModel of every family, whole and streamed; requests; errors.

Shapes: the SDK's own model of the service (botocore), https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html,
and recorded answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.errors import ApiError
from proxy.metering.dialect import NO_HEADERS, Dialect
from proxy.metering.dialects.bedrock.converse import (
    BEDROCK_CONVERSE,
    BEDROCK_CONVERSE_STREAM,
    BEDROCK_COUNT_TOKENS,
    BEDROCK_ERRORS,
)
from proxy.metering.dialects.bedrock.invoke import BEDROCK_INVOKE, BEDROCK_INVOKE_STREAM
from proxy.metering.metered import Metered
from proxy.metering.usage import PromptEvidence, ServedAs, Usage, service_of
from tests.metering.dialects import bedrock
from tests.metering.dialects.bedrock import METRICS, TEXTS, USAGE, chunk, converse, delta, event, failure
from tests.metering.fixtures import cut_at, fed, read_again_of, read_answer

DIALECTS = (
    BEDROCK_INVOKE, BEDROCK_INVOKE_STREAM, BEDROCK_CONVERSE, BEDROCK_CONVERSE_STREAM, BEDROCK_COUNT_TOKENS,
)  # fmt: skip


def streamed(dialect: Dialect, pieces: list[bytes], headers: Mapping[str, str] = NO_HEADERS) -> Metered:
    framing = dialect.framing("application/vnd.amazon.eventstream", streamed=True)
    assert framing is not None
    return fed(dialect.stream_meter(framing, headers=headers), pieces)


def whole(dialect: Dialect, document: Any, headers: Mapping[str, str] = NO_HEADERS) -> Metered:
    assert dialect.framing("application/json", streamed=False) is None
    return read_answer(dialect, document, headers)


# -- Converse ----------------------------------------------------------------------------------------------------


def test_a_stream_of_converse() -> None:
    metered = streamed(BEDROCK_CONVERSE_STREAM, converse(), {"x-amzn-requestid": "0b5d-1"})
    assert metered.usage == Usage(prompt_tokens=11, completion_tokens=17, total_tokens=28)
    assert metered.usage_raw == USAGE
    assert (metered.complete, metered.usage_final, metered.finish_reason) == (True, True, "end_turn")
    assert (metered.events, metered.flags, metered.failed, metered.unknown_usage_fields.paths) == (7, (), None, ())
    assert (metered.evidence.text_events, metered.evidence.chars) == (3, len("".join(TEXTS)))
    assert metered.response_id == "0b5d-1"


CALL = {"toolUse": {"toolUseId": "tooluse_1", "name": "open_gate"}}


def test_calls_reasoning_and_citations_are_output() -> None:
    pieces = [
        event("contentBlockDelta", {"delta": {"reasoningContent": {"text": "Hm."}}, "contentBlockIndex": 0}),
        event("contentBlockDelta", {"delta": {"reasoningContent": {"signature": "c2ln"}}, "contentBlockIndex": 0}),
        event("contentBlockStart", {"start": CALL, "contentBlockIndex": 1}),
        event("contentBlockDelta", {"delta": {"toolUse": {"input": '{"by":'}}, "contentBlockIndex": 1}),
        event("contentBlockDelta", {"delta": {"toolUse": {"input": "40}"}}, "contentBlockIndex": 1}),
    ]
    evidence = streamed(BEDROCK_CONVERSE_STREAM, pieces).evidence
    assert (evidence.reasoning_chars, evidence.tool_calls, evidence.tool_events) == (3, 1, 3)
    assert evidence.tool_chars == len("open_gate") + len('{"by":40}')
    content = [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}},
        {"toolUse": CALL["toolUse"] | {"input": {"by": 40}}},
        {"citationsContent": {"content": [{"text": "High."}], "citations": [{"title": "a long title"}]}},
    ]
    answer = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "tool_use"}
    told = whole(BEDROCK_CONVERSE, answer | {"usage": USAGE})
    assert (told.evidence.reasoning_chars, told.evidence.tool_calls, told.evidence.chars) == (3, 1, 3 + 5 + 9 + 9)
    assert (told.finish_reason, told.complete, told.usage_final) == ("tool_use", True, True)


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        # Recorded: Nova, with a prompt that was cached.
        (
            {"cacheReadInputTokenCount": 27, "cacheReadInputTokens": 27, "cacheWriteInputTokenCount": 0,
             "cacheWriteInputTokens": 0, "inputTokens": 0, "outputTokens": 48, "totalTokens": 75},
            Usage(27, 27, 48, None, 75, 0),
        ),
        # Anthropic's, written to the cache for an hour and for five minutes.
        (
            {"inputTokens": 10, "outputTokens": 5, "totalTokens": 65, "cacheReadInputTokens": 20,
             "cacheWriteInputTokens": 30,
             "cacheDetails": [{"ttl": "1h", "inputTokens": 12}, {"ttl": "5m", "inputTokens": 18}]},
            Usage(60, 20, 5, None, 65, 30, 12),
        ),
        ({"inputTokens": 3, "outputTokens": 4}, Usage(3, None, 4, None, 7)),
    ],
)  # fmt: skip
def test_the_prompt_has_what_was_cached(raw: dict[str, Any], usage: Usage) -> None:
    answer = {"output": {"message": {"content": [{"text": "Hi"}]}}, "stopReason": "end_turn", "usage": raw}
    for metered in (whole(BEDROCK_CONVERSE, answer), streamed(BEDROCK_CONVERSE_STREAM, converse(usage=raw))):
        assert metered.usage == usage
        assert metered.flags == metered.unknown_usage_fields.paths == ()


def test_the_documented_counts_are_all_read() -> None:
    """Whatever a later version of the service counts is named as unread."""
    from botocore.loaders import Loader

    members = Loader().load_service_model("bedrock-runtime", "service-2")["shapes"]["TokenUsage"]["members"]
    raw = {name: 5 for name in members if name != "cacheDetails"} | {"newTokens": 7, "serverToolUsage": {"web": 2}}
    metered = whole(BEDROCK_CONVERSE, {"output": {"message": {"content": []}}, "usage": raw})
    assert metered.unknown_usage_fields.paths == ("usage.newTokens", "usage.serverToolUsage.web")


@pytest.mark.parametrize(
    ("more", "headers", "served"),
    [
        ({}, {}, ServedAs()),
        ({"serviceTier": {"type": "priority"}}, {}, service_of("priority")),
        ({"serviceTier": {"type": "flex"}, "performanceConfig": {"latency": "optimized"}}, {},
         service_of("flex", "optimized")),
        ({}, {"x-amzn-bedrock-service-tier": "priority"}, service_of("priority")),
        ({}, {"x-amzn-bedrock-performanceconfig-latency": "optimized"}, service_of(None, "optimized")),
    ],
)  # fmt: skip
def test_how_it_was_served(more: dict[str, Any], headers: dict[str, str], served: ServedAs) -> None:
    assert streamed(BEDROCK_CONVERSE_STREAM, converse(**more), headers).served_as == served
    answer = {"output": {"message": {"content": []}}, "usage": USAGE, **more}
    assert whole(BEDROCK_CONVERSE, answer, headers).served_as == served


def test_what_is_billed_beside_the_tokens_is_named() -> None:
    units = {
        "topicPolicyUnits": 2,
        "contentPolicyUnits": 1,
        "wordPolicyUnits": 9,
        "sensitiveInformationPolicyFreeUnits": 3,
    }
    assessed = {"g1": {"invocationMetrics": {"guardrailProcessingLatency": 114, "usage": units}}}
    trace = {"guardrail": {"inputAssessment": assessed, "outputAssessments": {"g1": [assessed["g1"]]}}}
    metered = streamed(BEDROCK_CONVERSE_STREAM, converse(trace=trace))
    assert metered.unknown_usage_fields.values == {"guardrail.contentPolicyUnits": 2, "guardrail.topicPolicyUnits": 4}
    tool = {"toolUse": {"toolUseId": "1", "name": "nova_grounding", "type": "server_tool_use"}}
    answer = {"output": {"message": {"content": [tool, {"image": {"format": "png", "source": {"bytes": "aGk="}}}]}}}
    assert whole(BEDROCK_CONVERSE, answer | {"usage": USAGE}).unknown_usage_fields.paths == (
        "content.image",
        "content.server_tool_use",
    )


def test_an_exception_ends_a_stream_as_failed() -> None:
    for dialect, piece in (
        (BEDROCK_CONVERSE_STREAM, delta("The ")),
        (BEDROCK_INVOKE_STREAM, chunk(bedrock.anthropic()[2])),
    ):
        metered = streamed(dialect, [piece, failure("modelStreamErrorException")])
        assert (metered.failed, metered.complete, metered.usage) == ("error_event", False, None)
        assert metered.evidence.chars == 4


def test_without_its_metadata_a_stream_has_no_usage() -> None:
    metered = streamed(BEDROCK_CONVERSE_STREAM, converse()[:-1])
    assert (metered.usage, metered.complete, metered.finish_reason) == (None, True, "end_turn")


@pytest.mark.parametrize("damaged", [4, 6])
def test_a_damaged_message_lowers_what_is_known_and_nothing_else(damaged: int) -> None:
    pieces = converse()
    broken = bytearray(pieces[damaged])
    broken[-20] ^= 1
    pieces[damaged] = bytes(broken)
    metered = streamed(BEDROCK_CONVERSE_STREAM, pieces)
    assert metered.flags == ("damaged_event",)
    assert (metered.usage is None) == (damaged == 6)
    assert metered.events == 7


@given(st.lists(st.integers(0, 1500), max_size=8))
def test_the_same_at_every_cut(at: list[int]) -> None:
    for dialect, pieces in (
        (BEDROCK_CONVERSE_STREAM, converse()),
        (BEDROCK_INVOKE_STREAM, STREAMS["anthropic"].wire()),
    ):
        body = b"".join(pieces)
        assert streamed(dialect, cut_at(body, at)) == streamed(dialect, [body])


# -- InvokeModel -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """How a family answers, and what is to be read of it."""

    events: list[dict[str, Any]]
    finish: str | None
    usage: Usage = field(default_factory=lambda: Usage(11, None, 17, None, 28))
    text: str = "".join(TEXTS)
    calls: int = 0

    def wire(self) -> list[bytes]:
        return [chunk(one) for one in self.events]


LAST = {"amazon-bedrock-invocationMetrics": METRICS}
OPENAI = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def choices(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return OPENAI | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


STREAMS: dict[str, Family] = {
    "anthropic": Family(bedrock.anthropic(), "end_turn", Usage(11, 0, 17, None, 28, 0)),
    "anthropic, of which only the metrics tell": Family(
        [*bedrock.anthropic()[1:5], {"type": "message_stop", **LAST}], None
    ),
    "claude 2": Family(
        [*({"type": "completion", "completion": text, "stop_reason": None} for text in TEXTS),
         {"type": "completion", "completion": "", "stop_reason": "stop_sequence", **LAST}],
        "stop_sequence",
    ),
    "nova": Family(
        [
            {"messageStart": {"role": "assistant"}},
            *({"contentBlockDelta": {"delta": {"text": text}, "contentBlockIndex": 0}} for text in TEXTS),
            {"contentBlockStop": {"contentBlockIndex": 0}},
            {"messageStop": {"stopReason": "end_turn"}},
            {"metadata": {"usage": {"inputTokens": 11, "outputTokens": 17}, "metrics": {}, "trace": {}}, **LAST},
        ],
        "end_turn",
    ),
    "titan": Family(
        [*({"outputText": text, "index": 0, "totalOutputTextTokenCount": None, "completionReason": None,
            "inputTextTokenCount": 11} for text in TEXTS),
         {"outputText": "", "index": 0, "totalOutputTextTokenCount": 17, "completionReason": "FINISH",
          "inputTextTokenCount": 11, **LAST}],
        "FINISH",
    ),
    "llama": Family(
        [{"generation": TEXTS[0], "prompt_token_count": 11, "generation_token_count": 5, "stop_reason": None},
         {"generation": TEXTS[1], "prompt_token_count": None, "generation_token_count": 9, "stop_reason": None},
         {"generation": TEXTS[2], "prompt_token_count": None, "generation_token_count": 17, "stop_reason": "stop",
          **LAST}],
        "stop",
    ),
    "mistral": Family(
        [*({"outputs": [{"text": text, "stop_reason": None}]} for text in TEXTS),
         {"outputs": [{"text": "", "stop_reason": "length"}], **LAST}],
        "length",
    ),
    "cohere command": Family(
        [*({"is_finished": False, "text": text} for text in TEXTS),
         {"is_finished": True, "finish_reason": "COMPLETE", **LAST}],
        "COMPLETE",
    ),
    "cohere command r": Family(
        [*({"is_finished": False, "event_type": "text-generation", "text": text} for text in TEXTS),
         {"is_finished": True, "event_type": "stream-end", "finish_reason": "COMPLETE",
          "response": {"text": "".join(TEXTS), "finish_reason": "COMPLETE"}, **LAST}],
        "COMPLETE",
    ),
    "copies of openai": Family(
        [choices({"role": "assistant", "content": ""}), *(choices({"content": text}) for text in TEXTS),
         choices({}, "stop") | LAST],
        "stop",
    ),
    "their calls": Family(
        [choices({"tool_calls": [{"index": 0, "id": "1", "function": {"name": "open_gate", "arguments": ""}}]}),
         choices({"tool_calls": [{"index": 0, "function": {"arguments": '{"by":40}'}}]}, "tool_calls") | LAST],
        "tool_calls", text="", calls=1,
    ),
    "deepseek": Family(
        [*({"choices": [{"text": text, "stop_reason": None}]} for text in TEXTS),
         {"choices": [{"text": "", "stop_reason": "stop"}], **LAST}],
        "stop",
    ),
    "nobody knows": Family([{"x": text} for text in TEXTS] + [{"x": "", **LAST}], None, text=""),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_each_family(name: str) -> None:
    family = STREAMS[name]
    metered = streamed(BEDROCK_INVOKE_STREAM, family.wire())
    assert metered.usage == family.usage
    assert (metered.complete, metered.usage_final, metered.finish_reason) == (True, True, family.finish)
    assert (metered.failed, metered.flags, metered.unknown_usage_fields.paths) == (None, (), ())
    evidence = metered.evidence
    assert (evidence.chars_latin, evidence.tool_calls) == (len(family.text), family.calls)
    assert evidence.tool_chars == (len('open_gate{"by":40}') if family.calls else 0)


@pytest.mark.parametrize("name", [name for name, family in STREAMS.items() if family.text])
def test_a_stream_that_breaks_off_is_estimated_by_its_text(name: str) -> None:
    family = STREAMS[name]
    half = streamed(BEDROCK_INVOKE_STREAM, family.wire()[: len(family.events) // 2 + 1])
    assert 0 < half.evidence.chars_latin <= len(family.text)
    assert not half.complete
    assert not half.usage_final


HEADERS = {
    "x-amzn-bedrock-input-token-count": "11", "x-amzn-bedrock-output-token-count": "17",
    "x-amzn-bedrock-invocation-latency": "9", "x-amzn-requestid": "0b5d-1",
}  # fmt: skip
TEXT = "".join(TEXTS)
ANSWERS: dict[str, tuple[dict[str, Any], Usage | None, str]] = {
    "anthropic": (
        {"id": "msg_bdrk_1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": TEXT}],
         "stop_reason": "end_turn", "stop_sequence": None,
         "usage": {"input_tokens": 4, "cache_creation_input_tokens": 7, "cache_read_input_tokens": 1209,
                   "output_tokens": 10, "output_tokens_details": {"thinking_tokens": 4},
                   "server_tool_use": {"web_fetch_requests": 1}}},
        Usage(1220, 1209, 10, 4, 1230, 7), "end_turn",
    ),
    "claude 2": ({"type": "completion", "completion": TEXT, "stop_reason": "stop_sequence", "stop": "\n\nHuman:"},
                 None, "stop_sequence"),
    "nova": (
        {"output": {"message": {"content": [{"text": TEXT}], "role": "assistant"}}, "stopReason": "end_turn",
         "usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7, "cacheReadInputTokenCount": 0,
                   "cacheWriteInputTokenCount": 0}},
        Usage(3, 0, 4, None, 7, 0), "end_turn",
    ),
    "titan": (
        {"inputTextTokenCount": 3, "results": [{"tokenCount": 4, "outputText": TEXT, "completionReason": "LENGTH"}]},
        Usage(3, None, 4, None, 7), "LENGTH",
    ),
    "llama": ({"generation": TEXT, "prompt_token_count": 3, "generation_token_count": 4, "stop_reason": "stop"},
              Usage(3, None, 4, None, 7), "stop"),
    "mistral": ({"outputs": [{"text": TEXT, "stop_reason": "stop"}]}, None, "stop"),
    "mistral's chat": (
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "stop_reason": "stop"}]}, None,
        "stop"),
    "copies of openai": (
        OPENAI | {"choices": [{"index": 0, "message": {"content": TEXT}, "finish_reason": "stop"}],
                  "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}},
        Usage(3, None, 4, None, 7), "stop",
    ),
    "cohere command": ({"generations": [{"text": TEXT, "finish_reason": "COMPLETE", "id": "1"}], "prompt": "?"}, None,
                       "COMPLETE"),
    "cohere command r": ({"text": TEXT, "generation_id": "1", "finish_reason": "COMPLETE", "chat_history": []}, None,
                         "COMPLETE"),
    "ai21": ({"id": 1234, "prompt": {"text": "?", "tokens": [{"topTokens": None, "textRange": {"start": 7}}]},
              "completions": [{"data": {"text": TEXT, "tokens": []}, "finishReason": {"reason": "endoftext"}}]}, None,
             "endoftext"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_of_each_family_counts_by_its_body_or_its_head(name: str) -> None:
    document, usage, finish = ANSWERS[name]
    metered = whole(BEDROCK_INVOKE, document, HEADERS)
    assert metered.usage == (usage or Usage(11, None, 17, None, 28))
    assert (metered.complete, metered.usage_final, metered.finish_reason) == (True, True, finish)
    assert (metered.failed, metered.flags, metered.unknown_usage_fields.paths) == (None, (), ())
    assert (metered.evidence.chars_latin, metered.response_id) == (len(TEXT), "0b5d-1")
    assert whole(BEDROCK_INVOKE, document).usage == usage


@pytest.mark.parametrize(
    ("document", "headers", "usage"),
    [
        ({"embedding": [0.5], "inputTextTokenCount": 3, "embeddingsByType": {"float": [0.5]}}, HEADERS,
         Usage(3, None, 0, None, 3)),
        ({"embeddings": [[0.5]], "id": "1", "response_type": "embeddings_floats", "texts": ["a"]},
         {"x-amzn-bedrock-input-token-count": "11"}, Usage(11, None, 0, None, 11)),
        ({"embeddings": [[0.5]], "id": "1", "texts": ["a"]}, {}, None),
        ({"images": ["aGk=", "aGk="], "error": None}, {}, Usage(images=2)),
        ({"images": ["aGk="], "seeds": [7], "finish_reasons": [None]}, {}, Usage(images=1)),
        ({"results": [{"index": 0, "relevance_score": 0.5}]}, {}, None),
    ],
)  # fmt: skip
def test_what_generates_no_tokens(document: dict[str, Any], headers: dict[str, str], usage: Usage | None) -> None:
    metered = whole(BEDROCK_INVOKE, document, headers)
    assert metered.usage == usage
    assert (metered.complete, metered.evidence.empty, metered.failed) == (True, True, None)


def test_headers_that_are_no_counts_are_none() -> None:
    for odd in ("", "-1", "1.5", "1e3", "x", "9" * 13, "٣"):
        headers = HEADERS | {"x-amzn-bedrock-input-token-count": odd, "x-amzn-bedrock-output-token-count": odd}
        usage = whole(BEDROCK_INVOKE, ANSWERS["mistral"][0], headers).usage
        assert usage is None or usage.reported_nothing, odd


def test_a_head_counts_an_answer_that_cannot_be_read() -> None:
    metered = whole(BEDROCK_INVOKE, b"\x89PNG...", HEADERS)
    assert (metered.usage, metered.flags) == (Usage(11, None, 17, None, 28), ("unparsable_body",))


def test_an_error_in_an_answer_is_a_failure() -> None:
    assert whole(BEDROCK_INVOKE, {"error": "content filtered", "images": None}).failed == "error_body"
    assert (
        streamed(BEDROCK_INVOKE_STREAM, [chunk({"type": "error", "error": {"message": "x"}})]).failed == "error_event"
    )


def test_what_was_kept_of_a_usage_is_read_again_as_it_was() -> None:
    """`rerate` reads the usage of an entry, whatever the family."""
    for dialect, metered in (
        *((BEDROCK_INVOKE_STREAM, streamed(BEDROCK_INVOKE_STREAM, family.wire())) for family in STREAMS.values()),
        *((BEDROCK_INVOKE, whole(BEDROCK_INVOKE, document, HEADERS)) for document, *_ in ANSWERS.values()),
        (BEDROCK_CONVERSE, whole(BEDROCK_CONVERSE, {"output": {"message": {"content": []}}, "usage": USAGE})),
        (BEDROCK_INVOKE, whole(BEDROCK_INVOKE, {"images": ["aGk="]})),
    ):
        assert metered.usage_raw is not None
        assert read_again_of(dialect, metered) == metered.usage


@given(st.binary(max_size=300), st.integers(0, 2**32))
def test_nothing_that_a_provider_sends_raises(noise: bytes, seed: int) -> None:
    rng = Random(seed)
    for dialect, pieces in ((BEDROCK_INVOKE_STREAM, STREAMS["nova"].wire()), (BEDROCK_CONVERSE_STREAM, converse())):
        body = bytearray(b"".join(pieces))
        at = rng.randrange(len(body))
        body[at : at + rng.randrange(3)] = noise
        streamed(dialect, [bytes(body)])
    whole(BEDROCK_INVOKE, noise)
    whole(BEDROCK_CONVERSE, noise)


ODD: list[Any] = [None, 1, "x", [], [1], {}, {"text": 1}]


@pytest.mark.parametrize("name", ["output", "usage", "choices", "outputs", "results", "metadata", "type", "images"])
def test_members_of_other_types_are_passed_over(name: str) -> None:
    for odd in ODD:
        whole(BEDROCK_INVOKE, {name: odd})
        whole(BEDROCK_CONVERSE, {name: odd})
        streamed(BEDROCK_INVOKE_STREAM, [chunk({name: odd})])


# -- requests ----------------------------------------------------------------------------------------------------


def limit(dialect: Dialect, document: dict[str, Any], named: str = "m") -> int | None:
    return dialect.facts(document, named).completion_tokens_max


MESSAGES = [{"role": "user", "content": [{"text": "How high is the water?"}]}]


def test_a_request_of_converse() -> None:
    call = {"toolUse": {"toolUseId": "1", "name": "gate", "input": {"by": 40}}}
    result = {"toolResult": {"toolUseId": "1", "content": [{"text": "open"}, {"json": {"cm": 40}}]}}
    document = {
        "messages": [
            *MESSAGES,
            {"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "Hm"}}}, call]},
            {"role": "user", "content": [result, {"image": {"format": "png", "source": {"bytes": "aGk="}}},
                                         {"document": {"format": "pdf", "name": "n", "source": {"bytes": "aGk="}}},
                                         {"cachePoint": {"type": "default"}}]},
        ],
        "system": [{"text": "Be brief."}],
        "toolConfig": {"tools": [{"toolSpec": {"name": "gate"}}]},
        "inferenceConfig": {"maxTokens": 99},
        "serviceTier": {"type": "priority"},
        "performanceConfig": {"latency": "optimized"},
    }  # fmt: skip
    facts = BEDROCK_CONVERSE_STREAM.facts(document, "us.amazon.nova-lite-v1:0")
    assert (facts.model, facts.streamed, facts.completion_tokens_max) == ("us.amazon.nova-lite-v1:0", True, 99)
    assert facts.served_as == service_of("priority", "optimized")
    prompt = facts.prompt
    assert prompt.chars_latin == sum(map(len, ("How high is the water?", "Hm", "open", "Be brief.")))
    assert (prompt.messages, prompt.images, prompt.attachments) == (3, 1, 1)
    assert prompt.tool_chars == sum(
        len(json.dumps(one, separators=(",", ":"))) for one in (call["toolUse"], {"cm": 40}, document["toolConfig"])
    )
    assert not BEDROCK_CONVERSE.facts(document, "m").streamed


@pytest.mark.parametrize(
    ("document", "most"),
    [
        ({}, None),
        ({"inferenceConfig": {}}, None),
        ({"inferenceConfig": {"maxTokens": 5}}, 5),
        ({"inferenceConfig": {"maxTokens": 5}, "additionalModelRequestFields": {"max_tokens": 70}}, 70),
        ({"additionalModelRequestFields": {"max_tokens": 7}}, None),  # the model may ignore it
        ({"additionalModelRequestFields": [1]}, None),
    ],
)
def test_of_several_limits_the_highest_bounds_the_answer(document: dict[str, Any], most: int | None) -> None:
    assert limit(BEDROCK_CONVERSE, {"messages": MESSAGES, **document}) == most


@pytest.mark.parametrize(
    ("document", "most"),
    [
        ({"anthropic_version": "v", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}, 9),
        ({"prompt": "\n\nHuman: x", "max_tokens_to_sample": 9}, 9),
        ({"messages": MESSAGES, "inferenceConfig": {"maxTokens": 9}}, 9),
        ({"messages": MESSAGES, "inferenceConfig": {"max_new_tokens": 9}, "schemaVersion": "messages-v1"}, 9),
        ({"inputText": "x", "textGenerationConfig": {"maxTokenCount": 9}}, 9),
        ({"inputText": "x"}, None),
        ({"prompt": "x", "max_gen_len": 9}, 9),
        ({"prompt": "x", "max_tokens": 9}, 9),
        ({"prompt": "x", "max_tokens": 9, "num_generations": 3}, 27),
        ({"prompt": "x", "maxTokens": 9, "numResults": 2}, 18),
        ({"message": "x", "max_tokens": 9}, 9),
        ({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 9}, 9),
        ({"texts": ["a", "b"], "input_type": "search_query"}, 0),
        ({"taskType": "SINGLE_EMBEDDING", "singleEmbeddingParams": {"text": {"value": "a"}}}, 0),
        ({"taskType": "TEXT_IMAGE", "textToImageParams": {"text": "a"}}, 0),
        ({"query": "x", "documents": ["a"], "api_version": 2}, 0),
        # What the family of the body does not know limits nothing.
        ({"messages": [{"role": "user", "content": "x"}], "max_gen_len": 1, "inferenceConfig": {"maxTokens": 1}}, None),
        ({"messages": [{"role": "user", "content": "x"}], "max_gen_len": 1, "max_tokens": 9}, 9),
        ({"messages": MESSAGES, "max_tokens": 1}, None),
        ({"prompt": "x", "textGenerationConfig": {"maxTokenCount": 1}, "inferenceConfig": {"maxTokens": 1}}, None),
        ({"inputText": "x", "max_tokens": 1}, None),
        ({"prompt": "x", "input_type": "search_query"}, None),
        ({"message": "x", "input_type": "search_query", "query": "x", "documents": ["a"]}, None),
        ({"messages": MESSAGES, "singleEmbeddingParams": {}, "taskType": "TEXT_IMAGE"}, None),
        ({"messages": 1}, None),
        ({"messages": [1]}, None),
    ],
)  # fmt: skip
def test_the_limit_of_each_family(document: dict[str, Any], most: int | None) -> None:
    for dialect in (BEDROCK_INVOKE, BEDROCK_INVOKE_STREAM):
        assert limit(dialect, document) == most
        assert dialect.facts(document, "m").streamed is (dialect is BEDROCK_INVOKE_STREAM)


def test_an_embedding_model_is_known_by_its_name() -> None:
    assert limit(BEDROCK_INVOKE, {"inputText": "x"}, "amazon.titan-embed-text-v2:0") == 0


def test_a_stream_flag_in_the_body_says_nothing() -> None:
    document = {"anthropic_version": "v", "messages": [{"role": "user", "content": "x"}], "stream": True}
    assert not BEDROCK_INVOKE.facts(document, "m").streamed


@pytest.mark.parametrize(
    ("document", "chars"),
    [
        ({"anthropic_version": "v", "messages": [{"role": "user", "content": "abc"}], "system": "de"}, 5),
        ({"inputText": "abc"}, 3),
        ({"prompt": "abc"}, 3),
        ({"message": "abc", "chat_history": [{"role": "USER", "message": "de"}], "preamble": "f"}, 6),
        ({"messages": MESSAGES, "system": [{"text": "abc"}]}, 25),
        ({"texts": ["abc", "de"], "input_type": "x"}, 5),
        ({"query": "abc", "documents": ["de", {"text": "f"}]}, 6),
        ({"messages": [{"role": "user", "content": "abc"}], "model": "no text"}, 3),
    ],
)
def test_a_prompt_is_found_in_each_family(document: dict[str, Any], chars: int) -> None:
    assert BEDROCK_INVOKE.facts(document, "m").prompt.chars_latin == chars


def test_what_is_billed_by_the_piece_is_reserved() -> None:
    asked = BEDROCK_INVOKE.facts({"taskType": "TEXT_IMAGE", "imageGenerationConfig": {"numberOfImages": 3}}, "m").asked
    assert asked == Usage(images=3)
    assert BEDROCK_INVOKE.facts({"prompt": "a mill", "aspect_ratio": "1:1"}, "m").asked == Usage(images=1)
    assert BEDROCK_INVOKE.facts({"query": "x", "documents": ["a"] * 101}, "m").asked == Usage(searches=2)


def test_a_guardrail_with_a_trace_is_let_through() -> None:
    config = {"guardrailIdentifier": "g", "guardrailVersion": "1", "trace": "enabled"}
    assert BEDROCK_CONVERSE.facts({"messages": MESSAGES, "guardrailConfig": config}, "m").model == "m"


def test_the_document_goes_up_as_it_is_but_for_a_model_in_it() -> None:
    for dialect in DIALECTS:
        sent = dialect.upstream_document({"a": 1}, upstream_model="up", inject_usage=False)
        assert sent == {"a": 1}
        named = dialect.upstream_document({"model": "dear"}, upstream_model="up", inject_usage=False)
        assert named == {"model": "up"}


def test_counting_tokens_is_free() -> None:
    facts = BEDROCK_COUNT_TOKENS.facts({"input": {"converse": {"messages": MESSAGES}}}, "m")
    assert (facts.completion_tokens_max, facts.prompt) == (0, PromptEvidence())
    assert BEDROCK_COUNT_TOKENS.free
    metered = whole(BEDROCK_COUNT_TOKENS, {"inputTokens": 19})
    assert (metered.usage, metered.complete) == (Usage(0, None, 0, None, 0), True)


# -- errors ------------------------------------------------------------------------------------------------------


def test_every_error_is_one_that_the_sdk_knows() -> None:
    from botocore.loaders import Loader

    service = Loader().load_service_model("bedrock-runtime", "service-2")
    known = set(service["shapes"]) | {"UnrecognizedClientException"}
    streams = [set(service["shapes"][name]["members"]) for name in ("ResponseStream", "ConverseStreamOutput")]
    for status in (400, 401, 402, 403, 404, 405, 408, 409, 413, 415, 426, 429, 431, 500, 502, 503, 504, 505):
        ((name, kind),) = BEDROCK_ERRORS.headers(ApiError(status, "no"))
        assert (name, kind in known) == ("x-amzn-ErrorType", True)
        assert BEDROCK_ERRORS.body(ApiError(status, "no")) == {"message": "no"}
        event = BEDROCK_ERRORS.event_names.get(status, BEDROCK_ERRORS.event_name)
        assert all(event in members for members in streams)


@pytest.mark.parametrize(
    ("dialect", "event_of", "name"),
    [
        (BEDROCK_CONVERSE_STREAM, lambda said: event("contentBlockDelta", {"delta": said}), "text"),
        (BEDROCK_INVOKE_STREAM, lambda said: chunk({"contentBlockDelta": {"delta": said}}), "text"),
        (BEDROCK_INVOKE_STREAM, lambda said: chunk({"type": "content_block_delta", "delta": said}), "text"),
        (BEDROCK_INVOKE_STREAM, lambda said: chunk(choices(said)), "content"),
        (BEDROCK_INVOKE_STREAM, lambda said: chunk({"outputs": [said]}), "text"),
    ],
)
def test_generated_text_that_nobody_reads_counts(
    dialect: Dialect, event_of: Callable[[dict[str, Any]], bytes], name: str
) -> None:
    metered = streamed(dialect, [event_of({"thoughts": "Is the sluice open?"}), event_of({name: "Yes."})])
    evidence = metered.evidence
    assert (evidence.chars - evidence.reasoning_chars, evidence.reasoning_chars) == (4, 19)
    assert evidence.text_events == 2
    assert metered.flags == ("unread_text",)
    assert streamed(dialect, [event_of({"signature": "c2lnbmVk" * 20}), event_of({name: "Yes."})]).flags == ()
