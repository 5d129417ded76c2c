"""Events and answers that are too long to keep, or that were cut off: usage and an estimate of what is left of them."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.metering import meter as meter_module
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.gemini.generate import GEMINI_STREAM
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.metered import Metered
from proxy.metering.usage import Usage
from proxy.metering.wire import cut, outline
from proxy.metering.wire import framing as stream_framing
from proxy.metering.wire.cut import completed
from proxy.metering.wire.framing import JSON_ARRAY, LONG_EVENT_BYTES_MAX, SSE, Framing, JsonArrayFramer
from proxy.metering.wire.outline import LongText, Outline
from proxy.metering.wire.sse import EVENT_BYTES_MAX, EventFramer
from tests.metering.fixtures import CHAT_USAGE, fed, in_pieces, read_answer
from tests.metering.said import answers, body_of, lasts, said
from tests.support.examples import examples
from tests.support.linear import assert_linear

MB = 1 << 20
# The limits of these tests are a twentieth of the real ones, so that they take a twentieth of the time.
PART = 20
KEPT_BYTES_MAX = MB // PART
LONG = 2 * KEPT_BYTES_MAX // 5 * 5
FILLER = "\\u6c34 x" * (LONG // 4)


@pytest.fixture(autouse=True)
def limits_are_a_twentieth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_framing, "LINE_BYTES_MAX", KEPT_BYTES_MAX)
    monkeypatch.setattr(outline, "_ROOM", tuple(room // PART for room in outline._ROOM))


def shortened(framing: Framing, bytes_max: int = KEPT_BYTES_MAX) -> Framing:
    """The framing, with another limit of one event; that of a line is patched."""
    if framing.framer is stream_framing.LineFramer:
        return framing
    return replace(framing, framer=partial(JsonArrayFramer if framing is JSON_ARRAY else EventFramer, bytes_max))


def framings(dialect: Dialect) -> list[Framing]:
    return [shortened(framing) for framing in dialect.framings]


def metered(dialect: Dialect, framing: Framing, body: bytes, size: int = 3_000) -> Metered:
    return fed(dialect.stream_meter(framing), in_pieces(body, size))


@pytest.mark.parametrize(
    ("dialect", "last"), lasts(FILLER, FILLER[:KEPT_BYTES_MAX]), ids=lambda v: getattr(v, "name", None)
)
def test_the_usage_of_a_long_last_event_counts(dialect: Dialect, last: dict[str, Any]) -> None:
    for framing in framings(dialect):
        body = body_of(framing, [json.dumps(last).encode()])
        results = [metered(dialect, framing, body, size) for size in (len(body), 3_000, 50_003)]
        assert results[0].usage is not None
        assert (results[0].usage.prompt_tokens, results[0].usage.completion_tokens) == (9, 777)
        assert (results[0].complete, results[0].failed, results[0].flags) == (True, None, ("event_too_long",))
        assert all(result == results[0] for result in results)


def texts(text: str) -> list[tuple[Dialect, dict[str, Any]]]:
    """An event of each dialect with that text, and a call with it."""
    call = {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}]}
    return [(OPENAI_CHAT, call), *((dialect, event) for dialect, event, _ in said(text))]


@pytest.mark.parametrize(("dialect", "event"), texts("tide " * (LONG // 5)), ids=lambda v: getattr(v, "name", None))
def test_the_text_of_a_long_event_counts_by_its_size(dialect: Dialect, event: dict[str, Any]) -> None:
    document = json.dumps(event).encode()
    for framing in framings(dialect):
        body = body_of(framing, [document])
        result = metered(dialect, framing, body)
        assert abs(result.evidence.chars - LONG) < 10
        assert result.flags == ("event_too_long",)
        end = KEPT_BYTES_MAX * 8 // 5
        cut = metered(dialect, framing, body[:end])
        assert abs(cut.evidence.chars - end) < 200
        assert not cut.usage_final


def test_a_long_event_that_repeats_the_answer_adds_nothing() -> None:
    said = {"type": "response.output_text.delta", "output_index": 0, "delta": "tide " * 1000}
    output = [{"type": "message", "content": [{"type": "output_text", "text": "tide " * 1000}]}]
    response = {"status": "completed", "instructions": "x" * LONG, "output": output}
    documents = [json.dumps(said).encode(), json.dumps({"type": "response.completed", "response": response}).encode()]
    assert metered(OPENAI_RESPONSES, SSE, body_of(SSE, documents)).evidence.chars == 5000
    # Cut within its end: the client left.
    assert metered(OPENAI_RESPONSES, SSE, body_of(SSE, documents)[:-20]).evidence.chars == 5000
    alone = metered(OPENAI_RESPONSES, SSE, body_of(SSE, documents[1:])).evidence.chars
    assert 5000 <= alone <= 5001


def test_a_long_first_event_is_no_output() -> None:
    """It repeats the instructions; the client may leave behind it."""
    created = {"type": "response.created", "response": {"instructions": [{"content": [{"text": "x" * LONG}]}]}}
    result = metered(OPENAI_RESPONSES, SSE, body_of(SSE, [json.dumps(created).encode()]))
    assert (result.evidence.empty, result.complete) == (True, False)


@pytest.mark.parametrize(
    ("dialect", "framing", "head", "tail"),
    [  # a framing of None: one JSON answer
        (OLLAMA_CHAT, OLLAMA_CHAT.framings[0], b'{"message":{"content":"', b'"},"done":false}\n'),
        (OPENAI_CHAT, SSE, b'data: {"choices":[{"delta":{"content":"', b'"}}]}\n\n'),
        (OPENAI_CHAT, SSE, b"data: ", b"\n\n"),
        (OLLAMA_CHAT, OLLAMA_CHAT.framings[0], b"", b"\n"),
        (GEMINI_STREAM, JSON_ARRAY, b'[{"candidates":[{"content":{"parts":[{"text":"', b'"}]}}]}]'),
        (GEMINI_STREAM, JSON_ARRAY, b'[{"candidates":[{"content":{"parts":[{"text":"', b""),
        (OPENAI_CHAT, None, b'{"choices":[{"message":{"content":"', b'"}}]}'),
        (OPENAI_CHAT, None, b'{"choices":[{"message":{"content":"', b""),
    ],
)
@pytest.mark.parametrize("part", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_100_mb_take_bounded_memory_and_are_not_free(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect, framing: Framing | None, head: bytes, tail: bytes, part: int
) -> None:
    """In `make test` a twentieth of all sizes, in `make faults` all of them."""
    monkeypatch.setattr(meter_module, "JSON_BYTES_MAX", meter_module.JSON_BYTES_MAX // part)
    monkeypatch.setattr(stream_framing, "LINE_BYTES_MAX", (8 * MB) // part)
    piece, pieces = b"The tide turns at noon. " * (2731 // part), 1600  # 64 KiB
    if framing is None:
        meter = dialect.plain_meter()
    else:
        event_bytes_max = LONG_EVENT_BYTES_MAX if framing is JSON_ARRAY else EVENT_BYTES_MAX
        meter = dialect.stream_meter(shortened(framing, event_bytes_max // part))
    tracemalloc.start()
    meter.feed(head)
    for _ in range(pieces):
        meter.feed(piece)
    meter.feed(tail)
    result = meter.close()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 70 * MB / part  # twice the longest kept text, and its copies
    assert 0.999 < result.evidence.chars / (pieces * len(piece)) < 1.001


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=9)
    | st.sampled_from(['"', "\\", "[{", '\\"]', "ab" * 9]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=2) | st.sampled_from(["text", "usage", "content"]), inner, max_size=4)
    ),
    max_leaves=25,
)
OBJECTS = st.dictionaries(st.sampled_from(["text", "usage", "a", "b"]), VALUES, max_size=4)


def outlined(body: bytes, size: int) -> LongText:
    reader = Outline()
    for at in range(0, len(body), size):
        reader.feed(body[at : at + size])
    return reader.close()


@settings(max_examples=examples(200))
@given(OBJECTS, st.booleans(), st.integers(1, 9), st.integers(4, 40), st.integers(0, 200))
def test_an_outline_is_json_and_the_same_at_every_cut(
    document: dict[str, Any], ascii_only: bool, size: int, room: int, end: int
) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outline, "STRING_BYTES_MAX", 12)
        patch.setattr(outline, "_ROOM", (8 * room, 2 * room, room))
        whole, cut = outlined(body, len(body)), outlined(body, size)
        assert (whole, vars(whole)) == (cut, vars(cut))
        assert len(whole) <= 8 * room + 2
        assert not whole or isinstance(json.loads(whole), dict)
        assert 0 <= whole.dropped <= whole.size == len(body)
        part = body[: len(body) - end]
        if part:
            assert vars(outlined(part, size)) == vars(outlined(part, len(part)))
    assert json.loads(outlined(body, size)) == document


@settings(max_examples=examples(100))
@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from([b"x", b"{", b"}", b'"text":"abc"', b",", b"[", b'"'])).map(b"".join),
    st.integers(1, 9),
)
def test_an_outline_survives_whatever_comes(body: bytes, size: int) -> None:
    whole, cut = outlined(body, max(len(body), 1)), outlined(body, size)
    assert (whole, vars(whole)) == (cut, vars(cut))


def test_an_outline_takes_linear_time() -> None:
    def read(size: int) -> None:
        body = b'{"a":[%b1],"text":"%b","usage":{"n":1}}' % (b'{"a":[]},' * size, b'\\"' * size)
        reader = Outline()
        for at in range(len(body)):
            reader.feed(body[at : at + 1])
        assert json.loads(reader.close())["usage"] == {"n": 1}

    assert_linear(read, 1_000)


LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data",
        b"data:",
        b': "',
        b"event: e",
        b"event",
        b"",
        b"",
        b'data: {"text":"abc"',
        b"junk",
    ]
)


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12), st.integers(1, 9), st.booleans()
)
@example([(b"", b"\n"), (b"data: {}", b"\n"), (b"", b"\n")], 2, True)
def test_long_events_are_the_same_at_every_cut(lines: list[tuple[bytes, bytes]], size: int, marked: bool) -> None:
    body = (b"\xef\xbb\xbf" if marked else b"") + b"".join(line + end for line, end in lines)

    def framed(size: int) -> tuple[list[Any], int]:
        framer = EventFramer(8)
        found = [event for at in range(0, len(body), size) for event in framer.feed(body[at : at + size])]
        last = framer.close()
        found += [] if last is None else [last]
        return [(data, name, getattr(data, "__dict__", None)) for data, name in found], framer.too_long

    expected = framed(max(len(body), 1))
    assert framed(size) == expected
    assert framed(1) == expected


CALLED = [{"message": {"tool_calls": [{"id": "t", "function": {"name": "f", "arguments": '{"a": "b c"}'}}]}}]
# An answer of each dialect, and one with a call.
ANSWERS: list[tuple[Dialect, dict[str, Any]]] = [
    *answers('Wehr 水 \\ "', 91, 777),
    (OPENAI_CHAT, {"id": "c", "choices": CALLED, "usage": CHAT_USAGE}),
]


@pytest.mark.parametrize(("dialect", "answer"), ANSWERS, ids=lambda value: getattr(value, "name", None))
def test_a_cut_answer_has_its_text_and_only_whole_usage(dialect: Dialect, answer: dict[str, Any]) -> None:
    for text in {json.dumps(answer), json.dumps(answer, ensure_ascii=False)}:
        body = text.encode()
        whole = read_answer(dialect, body)
        assert (whole.complete, whole.usage_final) == (True, True)
        chars, reported = 0, False
        for end in range(1, len(body)):
            result = read_answer(dialect, body[:end])
            assert result == read_answer(dialect, body[:end], size=3)
            flags = tuple(flag for flag in result.flags if flag != "audio_unknown")
            assert (result.complete, result.usage_final, flags) == (False, False, ("cut_body",)), body[:end]
            assert chars <= result.evidence.chars <= whole.evidence.chars
            assert result.usage in (None, whole.usage)
            assert reported <= (result.usage is not None)
            chars, reported = result.evidence.chars, result.usage is not None
        assert chars == whole.evidence.chars
        assert reported is ("prompt_eval_count" not in answer)


def test_a_cut_body_of_text_only() -> None:
    body = b'{"choices":[{"message":{"content":"' + b"\\u6c34 water." * 1000
    assert read_answer(OPENAI_CHAT, body).evidence.chars == 8 * 1000
    # It breaks within a stream that turns out to be one document.
    result = fed(OPENAI_CHAT.stream_meter(), [body])
    assert (result.evidence.chars, result.complete, result.flags) == (8000, False, ("cut_body",))


def test_half_of_a_large_event_counts_by_its_text_but_ends_nothing() -> None:
    event = {"choices": [{"delta": {"content": "tide " * 1000}, "finish_reason": "stop"}], "usage": CHAT_USAGE}
    body = body_of(SSE, [json.dumps(event).encode()])
    assert metered(OPENAI_CHAT, SSE, body[:2000]).evidence.empty
    result = metered(OPENAI_CHAT, SSE, body[:4800])
    assert (result.usage, result.complete, result.finish_reason) == (None, False, None)
    assert 4700 < result.evidence.chars < 4800
    result = metered(OPENAI_CHAT, SSE, body[:-6])
    assert (result.usage, result.complete, result.finish_reason, result.evidence.chars) == (None, False, None, 5000)


@pytest.mark.parametrize("end", [None, -1, -20])
def test_a_long_answer_has_its_usage_and_its_text(monkeypatch: pytest.MonkeyPatch, end: int | None) -> None:
    monkeypatch.setattr(meter_module, "JSON_BYTES_MAX", 4000)
    answer = {"id": "c", "usage": CHAT_USAGE, "choices": [{"message": {"content": "tide " * 1000}}]}
    result = read_answer(OPENAI_CHAT, json.dumps(answer).encode()[:end], size=100)
    assert result.usage == Usage(9, None, 777, None, 786)
    flags = ("body_too_long",) if end is None else ("body_too_long", "cut_body")
    assert (result.complete, result.usage_final, result.flags) == (end is None, end is None, flags)
    del answer["usage"]
    result = read_answer(OPENAI_CHAT, json.dumps(answer).encode()[:end], size=100)
    assert (result.usage, result.complete) == (None, end is None)
    assert 4970 < result.evidence.chars <= 5001


def test_a_long_stream_of_events_that_is_labelled_as_json_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "JSON_BYTES_MAX", 4000)
    events = [json.dumps({"choices": [{"delta": {"content": f"tide {n} "}}]}).encode() for n in range(100)]
    body = body_of(SSE, [*events, json.dumps({"choices": [], "usage": CHAT_USAGE}).encode(), b"[DONE]"])
    results = [read_answer(OPENAI_CHAT, body, size=size) for size in (1, 700, len(body))]
    assert (results[0].usage, results[0].complete, results[0].events) == (Usage(9, None, 777, None, 786), True, 102)
    assert all(result == results[0] for result in results)


def documents() -> Iterator[dict[str, Any]]:
    yield {"a": 'x\\"y "z", {[', "b": [1, 2.5, "s", [], {}], "usage": {"n": 1, "d": {"m": 2}}, "t": True, "n": None}
    yield {"choices": [{"message": {"content": '"quoted" \\ and 水🌊é', "x": ["a", "b"]}, "n": 17}], "meta": {"a": [1]}}


@pytest.mark.parametrize("write", [json.dumps, lambda d: json.dumps(d, ensure_ascii=False, indent=1)])
def test_whatever_is_cut_is_completed(write: Callable[[Any], str]) -> None:
    for document in documents():
        body = write(document).encode()
        assert completed(body) is None
        for end in range(1, len(body)):
            found = completed(body[:end])
            assert found is not None
            read = json.loads(found)
            assert all(read[name] == document[name] for name in ("usage", "meta", "t", "n") if name in read)
            assert set(read) <= set(document)


def test_no_object_is_completed_that_was_none() -> None:
    for text in (b"", b"[1", b'"x', b"{}", b'{"a":1}x', b"{}}", b"nothing"):
        assert completed(text) is None


def test_completing_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "MARKS_MAX", 1 << 20)

    def read(size: int) -> None:
        for body in (b'{"content":"' + b'\\"' * size, b'{"a":[' + b'"x",' * size, b'{"a":' * size):
            assert completed(body) is not None

    assert_linear(read, 5_000)
