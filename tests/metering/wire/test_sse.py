"""The framer: the same events for every cut, bounded memory, linear time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.metering.wire.outline import LongText, UnreadText
from proxy.metering.wire.sse import EVENT_BYTES_MAX, Event, EventFramer
from tests.metering.fixtures import cut_at, in_pieces
from tests.support.linear import assert_linear


def ended(event: Event | None) -> Event | None:
    """The event with its outline."""
    return event[0].event() if event is not None and isinstance(event[0], UnreadText) else event


def framed(pieces: list[bytes]) -> list[Event]:
    framer = EventFramer()
    events = [event for piece in pieces for event in framer.feed(piece)]
    last = framer.close()
    return events if last is None else [*events, last]


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [(b"a", b""), (b"b", b"")]),
        (b"data:a\n\n", [(b"a", b"")]),
        (b"data:  a\n\n", [(b" a", b"")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"a", b""), (b"b", b"")]),
        (b"data: a\r\rdata: b\r\r", [(b"a", b""), (b"b", b"")]),
        (b"data: a\r\n\ndata: b\n\r\n", [(b"a", b""), (b"b", b"")]),
        (b"data: a\ndata: b\n\n", [(b"a\nb", b"")]),
        (b"data: a\r\ndata: b\r\n\r\n", [(b"a\nb", b"")]),
        (b"data: a\rdata: b\r\n\r", [(b"a\nb", b"")]),
        (b": hello\n\ndata: a\n\n", [(b"a", b"")]),
        (b": hello\ndata: a\n\n", [(b"a", b"")]),
        (b"event: error\nid: 4\ndata: a\n\n", [(b"a", b"error")]),
        (b"event: ping\n\ndata: a\n\n", [(b"a", b"")]),
        (b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n\n", [(b"a", b""), (b"b", b"")]),
        (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [(b"a", b""), (b"b", b"")]),
        (b"data: a\n\ndata: b", [(b"a", b""), (b"b", b"")]),
        (b"data: a\n\ndata: b\n", [(b"a", b""), (b"b", b"")]),
        (b" data: a\n\ndata: b\n\n", [(b"b", b"")]),
        (b"data\n\n", [(b"", b"")]),
        (
            "data: x\u2028data: [DONE]\u0085\x0b\x0cy\n\n".encode(),
            [("x\u2028data: [DONE]\u0085\x0b\x0cy".encode(), b"")],
        ),
        (b"", []),
        (b"retry: 5\n\n", []),
    ],
)
def test_events_are_the_same_for_every_single_cut(body: bytes, events: list[Event]) -> None:
    assert framed([body]) == events
    assert framed(in_pieces(body, 1)) == events
    for at in range(len(body)):
        assert framed([body[:at], body[at:]]) == events


LINES = st.sampled_from(
    [b"data: {}", b"data:x", b"data", b": c", b"event: e", b"id: 1", b"", b"", b"junk", b"data: \xe2\x80\xa8"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def naive(body: bytes) -> list[Event]:
    """Line by line over the whole body, as the standard tells it."""
    lines = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    events, texts, name = [], [], b""
    for line in [*lines, b""]:
        field, _, value = line.partition(b":")
        if not line:
            events += [(b"\n".join(texts), name)] if texts else []
            texts, name = [], b""
        elif field == b"data":
            texts.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return events


@given(st.lists(st.tuples(LINES, ENDS), max_size=20), st.lists(st.integers(0, 200), max_size=8))
def test_any_lines_in_any_cut_read_as_the_naive_reader_reads_them(
    lines: list[tuple[bytes, bytes]], cut: list[int]
) -> None:
    body = b"".join(line + end for line, end in lines)
    expected = naive(body)
    assert framed(cut_at(body, cut)) == expected
    assert framed([body]) == expected


def test_boundary_is_between_events_only() -> None:
    framer = EventFramer()
    seen = []
    for piece in (b"data: a", b"\n", b"\n", b"\n", b": c", b"\r\n", b"\r", b"\n", b"data: b\n\n"):
        framer.feed(piece)
        seen.append(framer.at_boundary)
    assert seen == [False, False, True, True, False, False, True, True, True]


@pytest.mark.parametrize("size", [1 << 16, EVENT_BYTES_MAX, 1 << 22])
@pytest.mark.parametrize("length", [EVENT_BYTES_MAX, EVENT_BYTES_MAX + 1, 2 * EVENT_BYTES_MAX])
def test_of_a_too_long_event_there_is_the_outline_and_the_next_is_read(size: int, length: int) -> None:
    body = b"data: a\n\n" + b"data: ".ljust(length, b"x") + b"\n\ndata: b\n\n"
    framer = EventFramer()
    events = [event for at in range(0, len(body), size) for event in framer.feed(body[at : at + size])]
    whole = length <= EVENT_BYTES_MAX
    assert [text[:1] for text, _ in events] == [b"a", b"x" if whole else b"", b"b"]
    assert isinstance(events[1][0], LongText) is not whole
    assert framer.too_long == (0 if whole else 1)
    assert framer.at_boundary


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_a_too_long_event_keeps_its_name_before_and_behind_its_data(size: int) -> None:
    data = b"data: ".ljust(200, b"x")
    body = b"event: error\n" + data + b"\n\n" + data + b"\nevent:late\r\n\n"
    framer = EventFramer(bytes_max=100)
    events = [event for at in range(0, len(body), size) for event in framer.feed(body[at : at + size])]
    assert framer.too_long == 2
    assert [name for _, name in events] == [b"error", b"late"]


def test_memory_stays_bounded_inside_a_line_without_end() -> None:
    framer = EventFramer()
    for _ in range(64):
        assert framer.feed(b"x" * (EVENT_BYTES_MAX // 8)) == []
        assert len(framer._held) <= EVENT_BYTES_MAX + EVENT_BYTES_MAX // 8
    assert ended(framer.close()) is None
    assert framer.too_long == 1


def test_one_byte_pieces_take_linear_time() -> None:
    def read(size: int) -> None:
        framer = EventFramer()
        body = b"data: " + b"y" * size + b"\n\n"
        events = [event for at in range(len(body)) for event in framer.feed(body[at : at + 1])]
        assert [len(text) for text, _ in events] == [size]

    assert_linear(read, 10_000)
