"""generateContent: what each shape on the wire is read as, and what a request says. Texts are our own."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.errors import ApiError
from proxy.metering.dialects.gemini.generate import GEMINI_ERRORS, GEMINI_GENERATE, GEMINI_STREAM
from proxy.metering.metered import Metered
from proxy.metering.usage import PromptEvidence, Usage
from proxy.metering.wire.framing import JSON_ARRAY, LONG_SSE
from tests.metering.dialects.gemini import ASKED, ERROR, STORY, counts, said, sse, text
from tests.metering.fixtures import fed, in_pieces, read_answer

FINAL = Usage(9, None, 45, 40, 54)


def array(*events: Any) -> bytes:
    return b"[" + b"\n,\r\n".join(json.dumps(event, indent=2).encode() for event in events) + b"\n]"


def metered(body: bytes, *, framing: Any = None, size: int | None = None) -> Metered:
    meter = GEMINI_STREAM.stream_meter(framing or (JSON_ARRAY if body.startswith(b"[") else LONG_SSE))
    return fed(meter, in_pieces(body, size or 1 << 30))


answered = partial(read_answer, GEMINI_GENERATE)


@pytest.mark.parametrize("written", [sse, array])
def test_a_stream(written: Any) -> None:
    results = [metered(written(*STORY), size=size) for size in (None, 1, 7, 100)]
    first = results[0]
    assert all(result == first for result in results)
    assert (first.usage, first.usage_raw) == (FINAL, counts(9, 5, 40))
    assert (first.finish_reason, first.response_id, first.complete) == ("STOP", "resp-1", True)
    assert (first.events, first.flags, first.failed) == (3, (), None)
    evidence = first.evidence
    assert (evidence.text_events, evidence.chars_latin, evidence.reasoning_chars) == (3, 12 + 9 + 7, 12)


def test_an_answer() -> None:
    result = answered(text("The water rises.", used=counts(9, 5, 40), finish="STOP"))
    assert (result.usage, result.complete, result.events) == (FINAL, True, 0)
    assert (result.evidence.text_events, result.evidence.chars_latin) == (1, 16)


@given(st.integers(0, 2), st.sampled_from([sse, array]))
def test_what_a_cut_leaves_of_what_was_generated_is_not_final(kept: int, written: Any) -> None:
    whole = written(*STORY[:kept])
    result = metered(whole[:-2] if written is array else whole)
    assert result.usage == (Usage(prompt_tokens=9) if kept else None)
    assert (result.usage_raw, result.complete) == (STORY[kept - 1]["usageMetadata"] if kept else None, False)
    assert result.completion_so_far == [None, 40, 42][kept]


def searched(*queries: Any, model: str, used: Any, finish: Any = "STOP") -> dict[str, Any]:
    """An event with an answer that was looked up."""
    event = text("Found.", used=used, finish=finish) | {"modelVersion": model}
    event["candidates"][0]["groundingMetadata"] = {"webSearchQueries": list(queries)}
    return event


@pytest.mark.parametrize(
    ("model", "searches"), [("gemini-3-pro", 2), ("gemini-2.5-flash", 1), ("models/gemini-2.0-flash-001", 1), ("", 2)]
)
def test_searches_are_counted_as_google_bills_them(model: str, searches: int) -> None:
    """Each query once, wherever it is told again; up to Gemini 2, each answer that made any."""
    one = searched("flood today", model=model, used=counts(9, 2), finish=None)
    last = searched("flood today", "gauge level", "", 7, model=model, used=counts(9, 5))
    want = Usage(9, None, 5, None, 14, searches=searches)
    for written in (sse, array):
        assert metered(written(one, last)).usage == want
    assert answered(last).usage == want
    cut = metered(sse(one, searched("gauge level", model=model, used=counts(9, 4), finish=None)))
    assert cut.usage == Usage(9, None, None, None, None, searches=searches), "what was looked up is billed, too"
    assert metered(sse(searched(model=model, used=counts(9, 5)))).usage == Usage(9, None, 5, None, 14)
    assert metered(sse(searched("x", model=model, used=None))).usage == Usage(searches=1), "without a usage, too"


def test_running_counts_may_fall_and_final_ones_may_not() -> None:
    earlier = text("a", used=counts(145, 30, 60))
    assert metered(sse(earlier, text("b", used=counts(85, 14), finish="STOP"))).usage == Usage(85, None, 14, None, 99)
    told_twice = [text("b", used=counts(9, 14), finish="STOP"), {"usageMetadata": counts(9, 12)}]
    result = metered(sse(*told_twice))
    assert (result.usage, result.flags) == (Usage(9, None, 14, None, 23), ("usage_decreased",))


def test_an_answer_that_goes_on_after_its_finish_reason_was_not_finished() -> None:
    code = said({"executableCode": {"code": "print(6)", "language": "PYTHON"}}, used=counts(9, 4), finish="STOP")
    ran = said({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "6" * 99}}, used=counts(9, 4))
    end = text("Six.", used=counts(9, 6, toolUsePromptTokenCount=20), finish="STOP")
    meter = GEMINI_STREAM.stream_meter()
    told = []
    for event in (code, ran, end):
        meter.feed(sse(event))
        meter.fold()
        told.append((meter.done, meter.tally.finish_reason, meter.tally.usage))
    final = Usage(29, None, 6, None, 35)
    assert told == [
        (False, "STOP", Usage(9, None, 4, None, 13)), (False, None, Usage(prompt_tokens=9)), (False, "STOP", final)
    ]  # fmt: skip
    result = meter.close()
    assert (result.flags, result.evidence.chars_latin) == (("tool_prompt",), 8 + 4)


@pytest.mark.parametrize("written", [sse, array])
def test_an_image_in_one_event_does_not_hide_its_usage(written: Any) -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "QUJD" * 700_000}}
    result = metered(written(said(image, used=counts(9, 1290), finish="STOP")), size=65_536)
    assert (result.usage, result.flags) == (Usage(9, None, 1290, None, 1299), ())
    assert not result.evidence.empty


def test_it_is_done_when_every_candidate_is() -> None:
    meter = GEMINI_STREAM.stream_meter()
    done = []
    for event in (
        text("a", index=0), text("b", index=1), text("c", index=0, finish="STOP"), text("d", index=1, finish="STOP")
    ):  # fmt: skip
        meter.feed(sse(event))
        meter.fold()
        done.append(meter.done)
    assert done == [False, False, False, True]


@pytest.mark.parametrize(
    ("used", "usage", "flags"),
    [
        (
            counts(9, 5)
            | {"promptTokensDetails": [{"modality": 1, "tokenCount": 2}, {"modality": 4, "tokenCount": 7}]},
            Usage(9, None, 5, None, 14, audio_prompt_tokens=7),
            (),
        ),
        (counts(9), Usage(9, None, None, None, 9), ()),
        (counts(9, 5, toolUsePromptTokenCount=100), Usage(109, None, 5, None, 114), ("tool_prompt",)),
        (counts(9, 5) | {"totalTokenCount": 99}, Usage(9, None, 90, 85, 99), ("reasoning_added",)),
        (counts(9, 5) | {"promptTokenCount": "9"}, Usage(None, None, 5, None, 14), ("usage_invalid",)),
        ({"trafficType": "ON_DEMAND"}, None, ()),
        ([], None, ()),
    ],
)
def test_the_rule_of_usage(used: Any, usage: Usage | None, flags: tuple[str, ...]) -> None:
    event = text("x", used=used, finish="STOP")
    for result in (metered(sse(event)), metered(array(event)), answered(event)):
        assert (result.usage, result.flags) == (usage, flags)


@pytest.mark.parametrize(
    ("told", "tier"),
    [
        ({"serviceTier": "priority"}, "priority"),
        ({"serviceTier": "standard", "trafficType": "ON_DEMAND_FLEX"}, "standard"),
        ({"trafficType": "ON_DEMAND"}, "standard"),
        ({"trafficType": "ON_DEMAND_PRIORITY"}, "priority"),
        ({"trafficType": "ON_DEMAND_FLEX"}, "flex"),
        ({"trafficType": "PROVISIONED_THROUGHPUT"}, "provisioned_throughput"),
        ({"trafficType": 1}, None),
        ({"serviceTier": 1}, "other"),
        ({}, None),
    ],
)
def test_the_service_tier_is_the_one_that_served(told: dict[str, Any], tier: str | None) -> None:
    event = text("x", used=counts(9, 5) | told, finish="STOP")
    for result in (metered(sse(event)), answered(event)):
        assert (result.served_as.service_tier, result.unknown_usage_fields.paths) == (tier, ())


def test_images_are_counted_as_such() -> None:
    made = [{"modality": "IMAGE", "tokenCount": 1120}, {"modality": "TEXT", "tokenCount": 5}]
    shown = [
        {"modality": [2], "tokenCount": 9},
        {"modality": 2, "tokenCount": 4},
        {"modality": "VIDEO", "tokenCount": 3},
    ]
    event = text(
        "x", used=counts(9, 1125) | {"candidatesTokensDetails": made, "promptTokensDetails": shown}, finish="STOP"
    )
    usage = Usage(9, None, 1125, None, 1134, image_prompt_tokens=4, image_completion_tokens=1120)
    for result in (metered(sse(event)), answered(event)):
        assert result.usage == usage
        assert result.unknown_usage_fields.paths == ("usageMetadata.promptTokensDetails.other.tokenCount",)


@pytest.mark.parametrize(
    ("parts", "text_events", "chars", "tool_events", "tool_calls", "tool_chars"),
    [
        ([{"text": "水 is"}], 1, 4, 0, 0, 0),
        ([{"text": ""}], 0, 0, 0, 0, 0),
        ([{"text": "", "thoughtSignature": "c2ln" * 99}], 0, 0, 0, 0, 0),
        ([{"functionCall": {"name": "gauge", "args": {"at": "höhe"}}}], 0, 0, 1, 1, 5 + 13),
        ([{"functionCall": {"name": "a"}}, {"functionCall": {"name": "a", "args": {}}}], 0, 0, 1, 2, 4),
        ([{"toolCall": {"toolType": "SEARCH", "args": {"q": 1}}}], 0, 0, 1, 1, 7),
        ([{"executableCode": {"code": "1+1"}}], 1, 3, 0, 0, 0),
        ([{"codeExecutionResult": {"output": "2"}}, {"toolResponse": {"x": 1}}], 0, 0, 0, 0, 0),
        ([{"inlineData": {"mimeType": "image/png", "data": "QUJD" * 999}}], 1, 1, 0, 0, 0),
        ([{"text": 5}, {"text": "a", "functionCall": 7}], 1, 1, 0, 0, 0),
    ],
)
def test_what_was_generated_is_evidence(
    parts: list[dict[str, Any]], text_events: int, chars: int, tool_events: int, tool_calls: int, tool_chars: int
) -> None:
    evidence = metered(sse(said(*parts))).evidence
    found = (evidence.text_events, evidence.chars - evidence.tool_chars)
    assert found == (text_events, chars)
    assert (evidence.tool_events, evidence.tool_calls, evidence.tool_chars) == (tool_events, tool_calls, tool_chars)


def test_fragments_of_a_call_are_one_call() -> None:
    begun = said({"functionCall": {"name": "gauge", "willContinue": True}})
    piece = said({"functionCall": {"partialArgs": [{"jsonPath": "$.at", "stringValue": "we"}], "willContinue": True}})
    evidence = metered(sse(begun, piece, piece)).evidence
    assert (evidence.tool_calls, evidence.tool_events) == (1, 3)
    assert evidence.tool_chars > 5


@pytest.mark.parametrize(
    ("finish", "word"),
    [("MAX_TOKENS", "MAX_TOKENS"), (1, "STOP"), (2, "MAX_TOKENS"), (99, "other"), ("a b;c", "other")],
)
def test_finish_reasons_are_words(finish: Any, word: str) -> None:
    assert metered(sse(text("x", finish=finish))).finish_reason == word


def test_a_prompt_that_was_blocked_is_over() -> None:
    document = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": counts(9)}
    for result in (metered(sse(document)), metered(array(document)), answered(document)):
        assert (result.finish_reason, result.complete, result.usage) == ("SAFETY", True, Usage(9, None, None, None, 9))
        assert result.evidence.empty


def test_an_error_is_no_output_wherever_it_stands() -> None:
    for result in (metered(sse(*STORY[:2], ERROR)), metered(array(*STORY[:2], ERROR))):
        assert (result.failed, result.complete, result.usage) == ("error_event", False, Usage(prompt_tokens=9))
        assert result.evidence.chars == 12 + 9
    for alone in (answered(ERROR), metered(json.dumps(ERROR).encode(), framing=JSON_ARRAY)):
        assert (alone.failed, alone.complete, alone.evidence.empty) == ("error_body", False, True)


def test_what_is_no_event_is_flagged_and_nothing_raises() -> None:
    result = metered(sse(text("a")) + b"data: {nonsense\n\n" + sse(7, text("b", finish="STOP")))
    assert (result.flags, result.complete, result.evidence.chars) == (("unparsable_event",), True, 2)


shapes = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["candidates", "content", "parts", "text", "functionCall", "args", "usageMetadata", "index",
                         "promptTokenCount", "finishReason", "inlineData", "promptFeedback", "error"]),
        inner, max_size=4),
)  # fmt: skip


@given(st.lists(shapes, max_size=4))
def test_nothing_a_provider_sends_raises(events: list[Any]) -> None:
    for written in (sse, array):
        assert metered(written(*events)) == metered(written(*events), size=1)
    for event in events:
        answered(event)


def test_facts_of_a_request() -> None:
    document = ASKED | {
        "systemInstruction": {"parts": [{"text": "Kurz, 水"}]},
        "tools": [{"functionDeclarations": [{"name": "gauge"}]}],
        "generationConfig": {"maxOutputTokens": 50, "candidateCount": 3},
    }
    facts = GEMINI_STREAM.facts(document, "weir")
    assert (facts.model, facts.streamed) == ("weir", True)
    assert (facts.completion_tokens_max, facts.n) == (150, 3)
    tool_chars = len('[{"functionDeclarations":[{"name":"gauge"}]}]')
    assert facts.prompt == PromptEvidence(
        messages=2, chars_latin=15, chars_wide=1, tool_chars=tool_chars, blanks=2, marks=2
    )
    assert GEMINI_GENERATE.facts(ASKED, "weir").completion_tokens_max is None
    assert not GEMINI_GENERATE.facts(ASKED, "weir").streamed


def test_a_request_in_the_other_spelling_says_the_same() -> None:
    camel = ASKED | {
        "systemInstruction": {"parts": [{"text": "x"}]},
        "generationConfig": {"maxOutputTokens": 5, "candidateCount": 2, "responseSchema": {"type": "OBJECT"}},
    }
    snake = ASKED | {
        "system_instruction": {"parts": [{"text": "x"}]},
        "generation_config": {"max_output_tokens": 5, "candidate_count": 2, "response_schema": {"type": "OBJECT"}},
    }
    assert GEMINI_STREAM.facts(snake, "m") == GEMINI_STREAM.facts(camel, "m")


def test_what_is_not_text_is_told_apart() -> None:
    parts = [
        {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}, {"file_data": {"mime_type": "image/jpeg"}},
        {"inlineData": {"mimeType": "audio/wav", "data": "QUJD"}}, {"fileData": {"fileUri": "x"}},
        {"functionResponse": {"name": "gauge", "response": {}}}, {"text": 5}, "odd",
    ]  # fmt: skip
    prompt = GEMINI_STREAM.facts({"contents": [{"parts": parts}, {"parts": "odd"}]}, "m").prompt
    assert (prompt.images, prompt.attachments, prompt.tool_chars) == (2, 2, len('{"name":"gauge","response":{}}'))


def test_the_model_is_the_paths() -> None:
    sent = GEMINI_STREAM.upstream_document(ASKED | {"model": "models/other"}, upstream_model="up", inject_usage=True)
    assert sent == ASKED


def test_errors_are_googles() -> None:
    no = ApiError(400, "must be an integer", param="generationConfig.maxOutputTokens", code="invalid_value")
    error = GEMINI_ERRORS.body(no)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["message"] == no.message
    reason, violation = error["details"]
    assert (reason["reason"], violation["fieldViolations"][0]["field"]) == ("INVALID_VALUE", no.param)
    assert GEMINI_ERRORS.event_body(ApiError(504, "late"))["error"]["status"] == "DEADLINE_EXCEEDED"
    assert GEMINI_ERRORS.body(ApiError(418, "must be an integer"))["error"] == {
        "code": 418, "message": "must be an integer", "status": "UNKNOWN", "details": []
    }  # fmt: skip


def test_an_error_of_ours_closes_the_array() -> None:
    begun = array(*STORY[:2])[:-2]
    document = json.dumps(GEMINI_ERRORS.event_body(ApiError(504, "late"))).encode()
    elements = json.loads(begun + JSON_ARRAY.event(document, GEMINI_ERRORS.event_name))
    assert [*elements[:2], elements[2]["error"]["code"]] == [*STORY[:2], 504]
