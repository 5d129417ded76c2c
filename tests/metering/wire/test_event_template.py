"""A run is read in one look, and says what parsing each of its events says: whatever is in the texts, at every cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.http.framing import EACH_A_CHUNK
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.meter import StreamMeter
from proxy.metering.metered import Metered
from proxy.metering.wire.event_template import BARE, EventTemplate, TemplateMatch, TemplateMatcher, Wrap, template_of
from proxy.metering.wire.sse import EVENT_BYTES_MAX
from tests.metering.fixtures import DONE, USAGE_EVENT, call, chunk, cut_at, fed, say, usage
from tests.support.examples import examples


def compact(*events: dict[str, Any] | str) -> bytes:
    """Events as providers write them: no blanks between the tokens of their JSON."""
    texts = [e if isinstance(e, str) else json.dumps(e, ensure_ascii=False, separators=(",", ":")) for e in events]
    return "".join(f"data: {text}\n\n" for text in texts).encode()


# After two texts that are no repetition, the third begins a run.
BEGUN = compact(*say("Down", " the", " weir"))
THOUGHT = compact(*(chunk({"reasoning_content": text}) for text in ("Hm", " let", " me see")))
BEFORE, AFTER = compact(chunk({"content": "?"})).split(b"?")


def spoken(*insides: bytes) -> bytes:
    """Events of the run that BEGUN begins, their texts as JSON has them, right or wrong."""
    return b"".join(BEFORE + inside + AFTER for inside in insides)


def in_chunks(*events: bytes) -> bytes:
    """Each in an HTTP chunk of its own."""
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)


def parsed(body: bytes) -> Metered:
    """Every event parsed: a run is only looked for after a first fold."""
    return fed(OPENAI_CHAT.stream_meter(), [body])


def folded(pieces: list[bytes]) -> Metered:
    """Each piece read by itself, as a run where it is one."""
    return fed(OPENAI_CHAT.stream_meter(), pieces, fold=True)


def taken(begun: bytes, wire: bytes, wrap: Wrap) -> tuple[TemplateMatch | None, StreamMeter]:
    """What a reader found in `wire`, and the meter that has taken it."""
    meter = OPENAI_CHAT.stream_meter()
    meter.feed(begun)
    meter.fold()
    assert meter.matcher is not None
    found = TemplateMatcher(meter.matcher.template, wrap).read(wire)
    if found is not None:
        meter.take(found)
    return found, meter


@pytest.mark.parametrize(
    "insides",
    [
        (b" now",),
        (b" now", b"", b" and", b" then"),
        (b"\\n", b' \\"so\\"', b"\\\\n", b"\\u00e9\\ud83c\\udf0a", b"\\/"),
        ("水門は".encode(), " über".encode(), "Ω".encode(), "\u2028".encode()),
        (b"",),
        (b"x" * 300, b"y" * 70, b"z"),
        (b"data: ", b'\\"},\\"usage\\":{}', b"0\\r\\n\\r\\n", b"\x7f"),
    ],
)
def test_texts_of_every_kind_are_read_in_one_look(insides: tuple[bytes, ...]) -> None:
    expected = parsed(BEGUN + spoken(*insides))
    for wrap, wire in ((BARE, spoken(*insides)), (EACH_A_CHUNK, in_chunks(*map(spoken, insides)))):
        found, meter = taken(BEGUN, wire, wrap)
        assert found is not None
        assert (found.events, found.size) == (len(insides), len(spoken(*insides)))
        assert meter.bytes_seen == len(BEGUN) + found.size
        assert meter.close() == expected


def test_reasoning_is_read_as_reasoning() -> None:
    more = compact(chunk({"reasoning_content": " again 水"}))
    for wrap, wire in ((BARE, more), (EACH_A_CHUNK, in_chunks(more))):
        found, meter = taken(THOUGHT, wire, wrap)
        assert found is not None
        assert found.reasoning
        assert meter.close() == parsed(THOUGHT + more)


@pytest.mark.parametrize(
    "inside",
    [b"\t", b"\n", b"\r", b"\n\n", b"\x00", b"\x1f", b'"', b'a"b', b"\\", b"a\\\\\\", b"\\x", b"\\u12", b"\xff",
     b"\xc3", b"\\ud83d", b"\\ude00", b"\xed\xa0\x80", b'","content":"', AFTER + BEFORE[:-1], b"n" * EVENT_BYTES_MAX],
)  # fmt: skip
def test_what_is_no_text_is_left_to_the_parser(inside: bytes) -> None:
    """Also where two halves would make a whole: each event must be good by itself."""
    among = (b" a", inside, b"b "), (inside, b"\xa9"), (inside, b"\\ude00"), (inside, b"41")
    for insides in ((inside,), *(among if len(inside) < EVENT_BYTES_MAX else ())):
        body = spoken(*insides)
        for wrap, wire in ((BARE, body), (EACH_A_CHUNK, in_chunks(*map(spoken, insides)))):
            assert taken(BEGUN, wire, wrap)[0] is None
        assert folded([BEGUN, body]) == parsed(BEGUN + body)
        assert folded([BEGUN, *map(spoken, insides)]) == parsed(BEGUN + body)


@pytest.mark.parametrize(
    "wire",
    [b"", spoken(b" a"), in_chunks(spoken(b" a"))[:-1], in_chunks(spoken(b" a")) + b"0\r\n\r\n", in_chunks(b"")[:2],
     in_chunks(spoken(b" a", b" b")), in_chunks(spoken(b" a")[:9], spoken(b" a")[9:]), b"0" + in_chunks(spoken(b" a")),
     in_chunks(spoken(b" a")).replace(b"\r\n", b";x\r\n", 1), in_chunks(spoken(b" a")).upper(),
     in_chunks(spoken(b" a")).replace(b" a", b" aa"), b"\n" + in_chunks(spoken(b" a"))],
)  # fmt: skip
def test_framing_that_is_not_a_plain_chunk_for_each_event_is_left_to_others(wire: bytes) -> None:
    assert taken(BEGUN, wire, EACH_A_CHUNK)[0] is None


@pytest.mark.parametrize(
    "event",
    [
        chunk({"content": "a", "role": "assistant", "x": {"content": "b"}}),
        chunk({"content": "a", "reasoning": "b"}),
        chunk({"content": "a"}, finish="stop"),
        chunk({"content": "a"}, usage=usage()),
        chunk({"content": "a"}, note="\\"),
        chunk({"content": "a"}, note="n" * 5000),
        chunk({"content": "a"}, err_msg="no"),
        chunk({"content": "a"}, index=1),
        chunk(call(0, "{}", name="f", id="1")),
        chunk({"content": ""}),
        chunk(),
        DONE,
    ],
)
def test_what_begins_no_run(event: dict[str, Any] | str) -> None:
    meter = OPENAI_CHAT.stream_meter()
    meter.feed(BEGUN + compact(event))
    meter.fold()
    assert meter.matcher is None


def test_no_run_begins_with_data_of_several_lines() -> None:
    assert template_of(b'{"content":"a",\n"b":1}', b"content", "a", reasoning=False) is None
    assert template_of(b'{"content":"a","b":1}', b"content", "a", reasoning=False) == EventTemplate(
        b'data: {"content":"', b'","b":1}\n\n', False
    )


def test_no_run_goes_on_within_an_event_or_past_what_is_not_read() -> None:
    meter = OPENAI_CHAT.stream_meter()
    meter.feed(BEGUN)
    assert meter.matcher is None
    meter.fold()
    assert meter.matcher is not None
    meter.feed(spoken(b" a")[:20])
    assert meter.matcher is None
    meter.fold()
    assert meter.matcher is None
    meter.feed(spoken(b" a")[20:])
    meter.fold()
    assert meter.matcher is not None


PARTS = st.one_of(
    st.lists(
        st.one_of(
            st.sampled_from([b" a", b"", b"\\n", b'\\"', b"\\", b"\n", b"\r", b"\t", b"\xc3", b"\xa9"]),
            st.sampled_from([b"\\ud83d", b"\\ude00", b"\\u00", b"41"]),
            st.text(max_size=6).map(lambda text: json.dumps(text)[1:-1].encode()),
            st.binary(max_size=4),
        ),
        min_size=1,
        max_size=6,
    ).map(lambda insides: spoken(*insides)),
    st.sampled_from(
        [
            *map(compact, [USAGE_EVENT, DONE, chunk(finish="stop"), chunk(call(0, "{", name="f", id="1"))]),
            compact(*say("z", usage=None)),
            compact(*say("z", usage=usage())),
            compact(chunk({"content": "w"}, index=1)),
            THOUGHT,
            b": c\n\n",
            b"\n",
            b"\r\n",
            b"id: 7\n",
            b"event: error\n",
        ]
    ),
)  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(PARTS, max_size=8), st.lists(st.integers(0, 3000), max_size=8))
def test_any_stream_read_piece_by_piece_is_what_parsing_it_says(parts: list[bytes], cut: list[int]) -> None:
    body = b"".join([BEGUN, *parts])
    expected = parsed(body)
    assert folded([BEGUN, *parts]) == expected
    assert folded(cut_at(body, cut)) == expected


def test_what_is_kept_of_a_run_is_bounded() -> None:
    run = EventTemplate(BEFORE, AFTER, False)
    reader = TemplateMatcher(run, EACH_A_CHUNK)
    for length in range(500):
        assert reader.read(in_chunks(spoken(b"x" * length))) is not None
    assert len(reader._heads) <= 64


def test_bytes_made_to_be_looked_at_again_and_again_are_looked_at_once() -> None:
    # A reader that tried again from every byte would look at 10^11 of them here and run into any test timeout.
    run = EventTemplate(b'data: {"c":"', b'"}\n\n', False)
    for wire in (b"data: " * 100_000, b'data: {"c":"' * 50_000, b"1\r\n" * 200_000, b'\\"' * 300_000, b"x" * 600_000):
        assert TemplateMatcher(run).read(wire) is None
        assert TemplateMatcher(run, EACH_A_CHUNK).read(wire) is None
