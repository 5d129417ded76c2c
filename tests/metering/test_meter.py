"""The meter: never raises, the same for every cut, exact after a fold, bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.metering import meter as meter_module
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.meter import FOLD_PIECES
from proxy.metering.metered import Metered, OpaqueMeter
from proxy.metering.usage import Evidence, Usage
from proxy.metering.wire.sse import EVENT_BYTES_MAX
from tests.metering.fixtures import (
    DONE,
    USAGE_EVENT,
    call,
    chunk,
    cut_at,
    cuts,
    fed,
    in_pieces,
    read_answer,
    say,
    sse,
    usage,
)
from tests.support.examples import examples


def metered(pieces: list[bytes]) -> Metered:
    return fed(OPENAI_CHAT.stream_meter(), pieces)


def test_everything_is_exact_after_a_fold() -> None:
    meter = OPENAI_CHAT.stream_meter()
    meter.feed(sse(*say("one", " two")))
    meter.feed(b"data: {")
    meter.fold()
    tally = meter.tally
    assert (tally.events, meter.at_boundary, tally.evidence.chars, tally.usage, meter.done) == (
        2,
        False,
        7,
        None,
        False,
    )
    meter.feed(sse(USAGE_EVENT, DONE)[len(b"data: {") :])
    assert meter.bytes_seen == len(sse(*say("one", " two"), USAGE_EVENT, DONE))
    meter.fold()
    tally = meter.tally
    assert (tally.events, meter.at_boundary, tally.usage, meter.done) == (4, True, Usage(9, None, 3, None, 12), True)
    assert (tally.response_id, tally.finish_reason, tally.failed, meter.flags) == ("chatcmpl-7", None, None, set())


def test_folds_by_itself() -> None:
    meter = OPENAI_CHAT.stream_meter()
    event = sse(chunk({"content": "ab"}))
    for _ in range(FOLD_PIECES):
        meter.feed(event)
    assert meter.tally.events == FOLD_PIECES
    meter.feed(sse(chunk({"content": "y" * meter_module.FOLD_BYTES})))
    assert meter.tally.events == FOLD_PIECES + 1


GROWN = [*say("1", "11", "111", "1111", "x", "水"), chunk(call(0, "{}", name="f", id="1"))]


@given(
    st.lists(
        st.text("a\n", max_size=3).map(lambda text: chunk({"content": text}))
        | st.text("a ", max_size=3).map(lambda text: chunk({"reasoning": text}))
        | st.sampled_from(["a" * size for size in range(1, 6)]).map(lambda text: chunk({"content": text}, index=1))
        | st.sampled_from([chunk({"role": "assistant"}), chunk(full_text="aaa"), *GROWN]),
        max_size=12,
    )
)
def test_evidence_is_at_any_moment_that_of_a_stream_that_ends_there(events: list[dict[str, Any]]) -> None:
    """Progress is noted from it: what a crash leaves, and what a cut one has, is the same."""
    meter = OPENAI_CHAT.stream_meter()
    for index, event in enumerate(events, 1):
        meter.feed(sse(event))
        meter.fold()
        assert meter.tally.evidence == metered([sse(*events[:index])]).evidence
        assert all(getattr(meter.tally.evidence, name) >= 0 for name in meter.tally.evidence.__slots__)


def test_close_is_idempotent() -> None:
    meter = OPENAI_CHAT.stream_meter()
    meter.feed(sse(*GROWN))
    result = meter.close()
    assert result is meter.close()
    assert result.evidence is meter.tally.evidence
    assert meter.tally.evidence.chars == 15


def test_an_unterminated_last_event_counts_but_half_of_one_is_no_fault() -> None:
    body = sse(*say("a"), USAGE_EVENT)
    for pieces in cuts(body.rstrip(b"\n")):
        result = metered(pieces)
        assert (result.usage, result.events, result.flags) == (Usage(9, None, 3, None, 12), 1, ())
    half = metered([body[:-20]])
    assert (half.usage, half.events, half.flags, half.complete) == (None, 1, (), False)
    assert metered([sse(*say("a")) + b"data: [DONE]"]).complete


def test_one_json_document_instead_of_a_stream() -> None:
    answer = {"id": "j", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": usage()}
    for text in (
        json.dumps(answer),
        json.dumps(answer, indent=2),
        "\n \n" + json.dumps(answer, indent=1).replace("\n", "\r\n\r\n"),
    ):
        for pieces in cuts(text.encode()):
            result = metered(pieces)
            assert result.usage == Usage(9, None, 3, None, 12)
            assert (result.complete, result.evidence.chars, result.events) == (True, 2, 0)
    assert metered([b'{"error":{"message":"no"}}']).failed == "error_body"
    assert metered([b'{"error":{"mess']).flags == ("cut_body",)
    assert metered([b"<html>busy</html>"]).flags == ()


def test_a_stream_that_begins_like_json_is_not_kept() -> None:
    meter = OPENAI_CHAT.stream_meter()
    meter.feed(b"{}\n\n")
    meter.fold()
    assert meter._json is not None
    meter.feed(sse(*say("a")))
    meter.fold()
    assert meter._json is None
    assert meter.close().evidence.chars == 1


@pytest.mark.parametrize("body", [b"", b"   \n", b"<html>busy</html>", b"null", b"[1]", b"\xff\xfe"])
def test_json_meter_takes_anything(body: bytes) -> None:
    result = read_answer(OPENAI_CHAT, body)
    assert (result.usage, result.complete, result.evidence.empty) == (None, False, True)
    assert result.flags == (("unparsable_body",) if body.strip() else ())


def test_json_as_deep_as_a_parser_goes_is_cut_or_unreadable() -> None:
    result = read_answer(OPENAI_CHAT, b'{"a":' * 1_010)
    assert (result.usage, result.complete, result.evidence.empty) == (None, False, True)
    assert result.flags in (("unparsable_body",), ("cut_body",)), "versions of Python differ in how deep they go"


def test_a_stream_that_calls_itself_json_is_read_as_what_it_is() -> None:
    events = [
        b': hello\n\ndata: {"id":"w1","choices":[{"delta":{"content":"Wehr"}}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\n\ndata: [DONE]\n\n',
    ]
    body = b"".join(events)
    streamed = metered([body])
    for cut in (1, 7, len(body)):
        meter = OPENAI_CHAT.plain_meter()
        for at in range(0, len(body), cut):
            meter.feed(body[at : at + cut])
        whole = meter.close()
        assert whole == replace(streamed, flags=("stream_as_json",))
        assert (meter.tally.usage, meter.tally.evidence) == (streamed.usage, streamed.evidence)
    meter = OPENAI_CHAT.plain_meter()
    meter.feed(events[0] + b"data: {")  # it broke off
    assert (meter.close().usage, meter.close().evidence.chars_latin, meter.close().complete) == (None, 4, False)


def test_json_meter_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "JSON_BYTES_MAX", 1000)
    meter = OPENAI_CHAT.plain_meter()
    event = json.dumps(USAGE_EVENT).encode()
    meter.feed(event[:1])
    for _ in range(20):
        meter.feed(b" " * 100)
        assert len(meter._kept.raw) <= 1000
    meter.feed(event[1:])
    assert (meter.close().usage, meter.close().flags) == (Usage(9, None, 3, None, 12), ("body_too_long",))


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices":[{"delta":{"content":"\\ud800"}}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}',
        b'{"choices":[{"delta":{"content":"\xff\xfe"}}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}',
        b'{"choices":[{"delta":7,"index":"0"}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12},"x":1e400}',
        b'{"id":7,"choices":7,"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12},"x":NaN}',
        b'{"created":'
        + b"1" * 5000
        + b',"id":null,"choices":[null],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}',
    ],
)
def test_odd_json_around_a_good_usage(event: bytes) -> None:
    for pieces in cuts(b"data: " + event + b"\n\n"):
        assert metered(pieces).usage == Usage(9, None, 3, None, 12)


@pytest.mark.parametrize("event", [b"{", b"nothing", b"[1,2]", b'"x"', b"[" * 100_000, b'{"a":' * 20_000])
def test_events_that_cannot_be_read_are_flagged(event: bytes) -> None:
    """And what would take too long to read counts by its size."""
    result = metered([b"data: " + event + b"\n\n" + sse(*say("ok"))])
    counted = len(event) if len(event) > 10_000 and event.startswith(b"{") else 0
    assert (result.flags, result.evidence.chars, result.events) == (("unparsable_event",), 2 + counted, 2)


def test_a_too_long_event_that_cannot_be_read_counts_by_its_size() -> None:
    body = sse(*say("a")) + b"data: " + b"x" * EVENT_BYTES_MAX + b"\n\n" + sse(*say("b"))
    for size in (len(body), 50_000):
        result = metered(in_pieces(body, size))
        assert (result.flags, result.events, result.evidence.chars) == (("event_too_long",), 3, 2 + EVENT_BYTES_MAX)


def test_a_usage_that_no_ledger_could_hold_is_used_but_not_kept() -> None:
    for odd in ({"note": "\ud800"}, {"note": "n" * (1 << 15)}):
        event = sse({"choices": [], "usage": usage()})
        result = metered([event.replace(b'"total', json.dumps(odd)[1:-1].encode() + b',"total')])
        assert (result.usage, result.usage_raw) == (Usage(9, None, 3, None, 12), None)
        assert result.flags == ("usage_raw_dropped",)


def test_result_is_plain_json() -> None:
    result = metered(
        [b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"cost":NaN,"x":{"y":[1.5,null]}}}\n\n']
    )
    assert json.loads(json.dumps(result.usage_raw, allow_nan=False)) == result.usage_raw


EVENTS = st.sampled_from(
    [
        *(sse(event) for event in say("a", "aa", "aaa", "aaaa", "b", "水🌊", "\u2028")),
        sse(chunk({"reasoning_content": "r"})),
        sse(chunk(call(0, "{", name="f", id="1"))),
        sse(chunk(call(0, "}"))),
        sse(USAGE_EVENT),
        sse(chunk(usage=usage(True))),
        sse(chunk(finish="stop", usage=usage(1, 1, 2))),
        sse(DONE),
        sse(chunk({"content": [{"type": "text", "text": "p"}]})),
        sse({"error": {"message": "e"}}),
        b"event: error\ndata: x\n\n",
        b": c\n\n",
        b"\n",
        b"\r\n",
        b"\r",
        b"data: {\n\n",
        b'{"choices":[]}',
        b"data: [DONE]",
        b"\xef\xbb\xbf",
        b"\xff",
        b"data:\n",
    ]
)


@settings(max_examples=examples(250))
@given(st.lists(st.one_of(EVENTS, st.binary(max_size=12)), max_size=14), st.lists(st.integers(0, 1500), max_size=12))
def test_any_bytes_read_the_same_in_any_cut(parts: list[bytes], cut: list[int]) -> None:
    body = b"".join(parts)
    expected = metered([body])
    assert metered(cut_at(body, cut)) == expected
    assert metered(in_pieces(body, 1)) == expected
    assert metered(parts) == expected


KEYS = st.sampled_from([
    "choices", "usage", "delta", "message", "content", "index", "tool_calls", "function", "arguments", "name", "id",
    "error", "text", "prompt_tokens", "type", "tokens", "completion_tokens_details", "reasoning_tokens",
    "reasoning_details", "x_groq", "finish_reason", "audio", "err_msg", "done", "eval_count", "thinking",
    "candidates", "parts", "functionCall", "args", "usageMetadata", "promptTokenCount", "finishReason",
    "inlineData", "promptFeedback",
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=25,
)


@given(JSON)
def test_any_json_is_survived_in_every_dialect(document: object) -> None:
    for dialect in DIALECTS:
        read_answer(dialect, document)
        for framing in dialect.framings:
            fed(dialect.stream_meter(framing), [framing.event(json.dumps(document).encode(), "")])


@settings(max_examples=examples(250))
@given(st.dictionaries(KEYS, JSON, max_size=6))
def test_any_json_is_survived_streamed_and_whole(document: dict[str, object]) -> None:
    text = json.dumps(document).encode()
    streamed = metered([b"data: " + text + b"\n\n"])
    assert streamed.events == 1
    assert read_answer(OPENAI_CHAT, text).usage == streamed.usage


def test_electron_usage_and_done_without_a_blank_line_between_are_both_read() -> None:
    """As its page shows them. One event for a client, but nothing of the bill is lost."""
    body = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\ndata: [DONE]\n\n'
    for cut in (1, 40, len(body)):
        result = metered(in_pieces(body, cut))
        assert (result.usage, result.events, result.complete) == (Usage(9, None, 3, None, 12), 1, True)


@pytest.mark.parametrize("size", [0, 1, 440])
def test_a_body_that_cannot_be_read_counts_as_one_text_of_its_size(size: int) -> None:
    """An event for each byte would be taken for a token each."""
    meter = OpaqueMeter()
    meter.feed(b"\x1f" * size)
    assert meter.close().evidence == Evidence(text_events=min(1, size), chars_latin=size)
