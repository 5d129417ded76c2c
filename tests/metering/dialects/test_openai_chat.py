"""The dialect, one small stream for each fact about a provider's wire."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.metered import Metered
from proxy.metering.usage import TOKENS_MAX, Usage
from tests.metering.fixtures import DONE, USAGE_EVENT, call, chunk, read_answer, read_stream, say, sse, usage

metered = partial(read_stream, OPENAI_CHAT)


def answered(**top: Any) -> Metered:
    return read_answer(OPENAI_CHAT, {"id": "chatcmpl-8", "object": "chat.completion", **top})


def test_ordinary_stream_with_the_usage_event() -> None:
    role = chunk({"role": "assistant", "content": ""}, usage=None)
    body = sse(role, *say("Hello", " there", usage=None), chunk(finish="stop", usage=None), USAGE_EVENT, DONE)
    result = metered(body)
    assert result.usage == Usage(9, None, 3, None, 12)
    assert result.usage_raw == usage()
    assert (result.finish_reason, result.response_id, result.complete, result.failed) == (
        "stop",
        "chatcmpl-7",
        True,
        None,
    )
    assert (result.events, result.flags, result.timings) == (6, (), {})
    assert (result.evidence.text_events, result.evidence.chars_latin, result.evidence.chars) == (2, 11, 11)


def test_tera_reasoning_content_is_generated_text() -> None:
    evidence = metered(
        sse(chunk({"reasoning_content": "hmm, "}), chunk({"reasoning_content": "so"}), *say("Yes"))
    ).evidence
    assert (evidence.text_events, evidence.chars_latin, evidence.reasoning_chars) == (3, 10, 7)


def test_tensorloop_chunks_without_created_and_model() -> None:
    bare = {"id": "c-1", "choices": [{"delta": {"content": "ok"}}]}
    result = metered(sse(bare, {"choices": [{"index": 0, "delta": {}, "finish_reason": "content_filter"}]}))
    assert (result.evidence.chars, result.finish_reason, result.complete) == (2, "content_filter", True)


def test_tensorloop_tool_call_fragments() -> None:
    fragments = [call(0, "", name="find", id="call_1"), call(0, '{"a":'), call(0, "1}")]
    result = metered(sse(*[chunk(fragment) for fragment in fragments], chunk(finish="tool_calls")))
    evidence = result.evidence
    assert (evidence.tool_calls, evidence.tool_events, evidence.tool_chars) == (1, 3, 4 + 7)
    assert (evidence.text_events, evidence.chars_latin, result.finish_reason) == (0, 0, "tool_calls")


def test_siliconstorm_usage_on_the_last_content_chunk_before_choices() -> None:
    last = {"id": "s", "usage": usage(), **chunk({"role": "assistant", "content": "."}, finish="stop")}
    result = metered(sse(*say("\t", ""), last, DONE))
    assert (result.usage, result.evidence.chars) == (Usage(9, None, 3, None, 12), 2)


@pytest.mark.parametrize("known", [None, True])
def test_siliconstorm_cumulative_text_counts_its_longest(known: bool | None) -> None:
    texts = ["Rain", "Rain falls", "Rain falls on", "Rain falls on 水", "Rain falls on 水"]
    result = metered(sse(*say("", *texts, finish=None)), cumulative=known)
    assert (result.evidence.chars_latin, result.evidence.chars_wide) == (14, 1)
    assert result.flags == ("cumulative",)


def test_siliconstorm_cumulative_text_takes_back_half_a_character() -> None:
    result = metered(sse(*say("a", "ab", "ab\ufffd", "ab水", "ab水c")))
    assert (result.evidence.chars, result.flags) == (4, ("cumulative",))


def test_siliconstorm_full_text_tells_a_short_cumulative_stream() -> None:
    result = metered(sse(*say("Rain"), chunk({"content": "Rain falls"}, finish="stop", full_text="Rain falls")))
    assert (result.evidence.chars, result.flags) == (10, ("cumulative",))


def test_fragments_that_grow_by_chance_are_all_counted() -> None:
    assert metered(sse(*say("1", "10", "100", " and", " on"))).evidence.chars == 13
    assert (
        metered(sse(*say("1", "11", "111", "1111", " and on"))).evidence.chars == 17
    )  # taken for cumulative, then not
    assert metered(sse(*say("1", "10", "100"))).evidence.chars == 6  # too few to be sure
    assert metered(sse(*say("ha", "ha", "ha"))).evidence.chars == 6
    assert metered(sse(*say("1", "10", "100", "1000")), cumulative=False).evidence.chars == 10


def test_siliconstorm_err_msg_with_no_content_is_a_failure() -> None:
    result = metered(sse(chunk({"content": ""}, finish="stop", err_msg="the input is not valid"), DONE))
    assert (result.failed, result.evidence.empty, result.finish_reason) == ("err_msg", True, "stop")
    assert metered(sse(chunk({"content": "fine"}, err_msg="late warning"))).failed is None
    choice = {"index": 0, "message": {"content": ""}, "finish_reason": "stop"}
    assert answered(choices=[choice], err_msg="the input is not valid").failed == "err_msg"
    assert answered(choices=[{**choice, "err_msg": "the input is not valid"}]).failed == "err_msg"


def test_siliconstorm_times_are_summarised_not_kept() -> None:
    raw = usage(prefill_time=41.5, decode_time_arr=[10, 20.5, "x", 12])
    result = metered(sse(chunk({"content": "a"}, usage=raw)))
    assert result.timings == {
        "prefill_time": 41.5,
        "decode_time_count": 3,
        "decode_time_mean": 42.5 / 3,
        "decode_time_max": 20.5,
    }
    assert result.usage_raw == usage(prefill_time=41.5)


def test_siliconstorm_one_token_more_than_allowed_is_recorded() -> None:
    assert metered(sse(chunk({"content": "a"}, finish="length", usage=usage(completion=5, total=14)))).usage == Usage(
        9, None, 5, None, 14
    )


@pytest.mark.parametrize(
    "bad", ["true", '"5"', "-1", "9.5", "NaN", "1e400", "[]", "{}", str(TOKENS_MAX + 1), "9" * 30, "9" * 5000]
)
def test_an_invalid_count_spoils_itself_only(bad: str) -> None:
    good = sse({"choices": [], "usage": usage()})
    event = f'data: {{"choices":[],"usage":{{"prompt_tokens":7,"completion_tokens":{bad}}}}}\n\n'.encode()
    result = metered(good + event)
    assert (result.usage, result.flags) == (Usage(9, None, 3, None, 12), ("usage_decreased", "usage_invalid"))
    assert metered(event).usage == Usage(7)


def test_of_several_usages_the_last_wins_never_a_lower_one_and_none_is_added() -> None:
    rising = [chunk({"content": "x"}, usage=usage(9, count, 9 + count)) for count in (1, 2, 3)]
    result = metered(sse(*rising))
    assert (result.usage, result.flags) == (Usage(9, None, 3, None, 12), ())
    falling = metered(sse(*rising, {"choices": [], "usage": usage(9, 2, 11)}, chunk(usage=None), chunk(usage={})))
    assert (falling.usage, falling.flags) == (Usage(9, None, 3, None, 12), ("usage_decreased",))


def test_usage_before_the_finish_and_events_after_it() -> None:
    result = metered(
        sse(chunk({"content": "a"}, usage=usage()), chunk(finish="stop"), {"moderation": {}, "usage": None})
    )
    assert (result.usage, result.finish_reason, result.events) == (Usage(9, None, 3, None, 12), "stop", 3)


def test_groq_usage_and_error_event() -> None:
    last = chunk(finish="stop", x_groq={"id": "r", "usage": usage()})
    assert metered(sse(chunk({"content": "a"}, x_groq={"id": "r"}), last, DONE)).usage == Usage(9, None, 3, None, 12)
    error = b'event: error\ndata: {"error":{"message":"the model wrote no valid call"}}\n\n'
    result = metered(sse(*say("so far")) + error)
    assert (result.failed, result.evidence.chars) == ("error_event", 6)
    assert metered(b"event: error\ndata: overloaded\n\n").failed == "error_event"


def test_error_inside_a_chunk_with_usage_and_choices() -> None:
    error = chunk({"content": "upstream says no"}, finish="error", error={"code": 502, "message": "no"}, usage=usage())
    result = metered(sse(*say("part"), error))
    assert (result.failed, result.usage, result.evidence.chars) == ("error_event", Usage(9, None, 3, None, 12), 4)
    choice = {"index": 0, "delta": {"content": "no"}, "error": {"code": 502}, "finish_reason": "error"}
    assert metered(sse({"choices": [choice]})).failed == "error_event"
    assert metered(sse(chunk({"content": "fine"}, error=None))).failed is None


def test_comments_no_space_crlf_and_no_done() -> None:
    body = b": OPENROUTER\r\n\r\ndata:" + sse(*say("hi"), end="\r\n")[6:] + sse(chunk(finish="stop"), end="\r\n")
    result = metered(body)
    assert (result.events, result.evidence.chars, result.complete, result.flags) == (2, 2, True, ())


@pytest.mark.parametrize("choices", [None, [], "missing", [None], [7], {}, "x"])
def test_choices_that_are_none(choices: Any) -> None:
    event = {"id": "azure"} if choices == "missing" else {"id": "azure", "choices": choices}
    result = metered(sse(event, *say("hi")))
    assert (result.response_id, result.events, result.evidence.chars, result.usage) == ("azure", 2, 2, None)


def test_several_choices_are_all_counted() -> None:
    body = sse(*[chunk({"content": text}, index=index) for text in ("aa", "bbb") for index in range(3)])
    assert metered(body).evidence.chars == 15


def test_tool_calls_parallel_without_index_and_legacy() -> None:
    parallel = [call(0, "{}", name="a", id="1"), call(1, "{}", name="b", id="2"), call(1, " ")]
    assert metered(sse(*map(chunk, parallel))).evidence.tool_calls == 2
    nameless = [call(None, "{}", name="a", id="1"), call(None, "{}", name="b", id="2")]
    assert metered(sse(*map(chunk, nameless))).evidence.tool_calls == 2
    same_place = [call(0, "{}", name="a", id="1"), call(0, "{}", name="b", id="2"), call(0, "x")]
    assert metered(sse(*map(chunk, same_place))).evidence.tool_calls == 2
    assert metered(sse(chunk(call(None, "{")), chunk(call(None, "}")))).evidence.tool_calls == 1
    legacy = metered(
        sse(chunk({"function_call": {"name": "f", "arguments": ""}}), chunk({"function_call": {"arguments": "{}"}}))
    )
    assert (legacy.evidence.tool_calls, legacy.evidence.tool_chars, legacy.evidence.tool_events) == (1, 3, 2)
    custom = {"tool_calls": [{"index": 0, "id": "1", "type": "custom", "custom": {"name": "sql", "input": "select"}}]}
    assert metered(sse(chunk(custom))).evidence.tool_chars == 9
    objects = {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}]}
    assert metered(sse(chunk(objects))).evidence.tool_chars == 8


def test_the_same_reasoning_in_two_spellings_counts_once() -> None:
    delta = {"content": "", "reasoning": "think", "reasoning_details": [{"type": "reasoning.text", "text": "think"}]}
    assert metered(sse(chunk(delta))).evidence.chars == 5
    details = {
        "reasoning_details": [
            {"type": "reasoning.summary", "summary": "sum"},
            {"type": "reasoning.encrypted", "data": "x" * 99},
        ]
    }
    assert metered(sse(chunk(details))).evidence.reasoning_chars == 3


def test_other_generated_text_counts_too() -> None:
    assert metered(sse(chunk({"content": None, "refusal": "I must not"}))).evidence.chars == 10
    assert metered(sse(chunk({"audio": {"data": "AAAA" * 99, "transcript": "spoken"}}))).evidence.chars == 6
    parts = [{"type": "text", "text": "see"}, {"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}]
    evidence = metered(sse(chunk({"content": parts}))).evidence
    assert (evidence.chars, evidence.reasoning_chars) == (6, 3)
    assert metered(sse(chunk({"content": {"title": "T"}}))).evidence.chars == 13
    assert metered(sse({"choices": [{"index": 0, "text": "old style"}]})).evidence.chars == 9


def test_message_beside_delta_is_the_same_text_again() -> None:
    both = [
        {"choices": [{"index": 0, "delta": {"content": text}, "message": {"content": whole}}]}
        for text, whole in (("a", "a"), ("b", "ab"))
    ]
    assert metered(sse(*both)).evidence.chars == 2
    assert metered(sse(*say("a", "b"), {"choices": [{"index": 0, "message": {"content": "ab"}}]})).evidence.chars == 2
    assert metered(sse({"choices": [{"index": 0, "message": {"content": "ab"}}]})).evidence.chars == 2


def test_characters_by_class() -> None:
    evidence = metered(sse(*say("naïve ", "水は流れる", "한국 🌊", " вода ", "\u2028"))).evidence
    assert (evidence.chars_latin, evidence.chars_wide, evidence.chars_other) == (9, 8, 5)


def test_usage_in_text_is_text() -> None:
    forged = (
        '{"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: {"usage":{"prompt_tokens":1}}\n\ndata: [DONE]'
    )
    result = metered(sse(*say(forged, "\u2028data: [DONE]\u2028"), {"choices": [{"usage": usage()}]}))
    assert (result.usage, result.complete, result.events) == (None, False, 3)


def test_provider_text_never_becomes_a_word_of_ours() -> None:
    result = metered(sse(chunk(finish="<script>"), {"id": "x" * 300}, {"id": "new\nline"}))
    assert (result.finish_reason, result.response_id) == ("other", "chatcmpl-7")
    assert metered(sse({"id": "x" * 300, "choices": []}, {"id": "a\nb"})).response_id is None


def test_whole_answer() -> None:
    message = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm", "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    result = answered(choices=[choice], usage=usage())
    assert (result.usage, result.complete, result.failed, result.events) == (Usage(9, None, 3, None, 12), True, None, 0)
    assert (result.evidence.chars, result.evidence.reasoning_chars, result.finish_reason) == (6, 2, "stop")
    failed = answered(error={"message": "this is a long explanation"})
    assert (failed.failed, failed.evidence.empty, failed.complete) == ("error_body", True, False)


def test_how_an_answer_says_it_was_served() -> None:
    """What was asked comes first in some streams, what was done last."""
    said = [{**chunk({"content": "x"}), "service_tier": word} for word in ("auto", "priority", "Flex")]
    assert metered(sse(*said)).served_as.service_tier == "flex"
    assert metered(sse(said[0])).served_as.service_tier is None
    assert metered(sse({**chunk({"content": "x"}), "service_tier": 7})).served_as.service_tier is None
    assert answered(choices=[], service_tier="priority", usage=usage()).served_as.service_tier == "priority"
