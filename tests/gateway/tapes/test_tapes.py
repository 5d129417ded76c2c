"""Places in a stream, and tapes: what is read from any place on is what was written from there on."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.tapes.tape import (
    EMPTY_BYTES,
    BeyondError,
    OverwrittenError,
    Tape,
    after_events,
    after_number,
    blocks,
    boundary,
)
from proxy.gateway.tapes.tapes import Tapes
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.wire.sse import EventFramer

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.sampled_from(
    [
        b"data: a",
        b"data:",
        b"data",
        b"event: x",
        b": comment",
        b"id: 7",
        b"datas: no",
        b" data: no",
        b"data: \xe2\x80\xa8",
    ]
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Whole blocks, in every way of writing lines."""
    parts = [draw(st.sampled_from([b"", b"\xef\xbb\xbf", b"\n", b"\r\n\r\n"]))]
    for _ in range(draw(st.integers(0, 6))):
        end = draw(ENDS)
        parts += [line + end for line in draw(st.lists(LINES, min_size=1, max_size=3))]
        parts += [end] * draw(st.integers(1, 2))
    return b"".join(parts)


def dispatched(stream: bytes) -> int:
    framer = EventFramer()
    return len(framer.feed(stream))


@given(streams())
def test_events_are_counted_as_parsers_do(stream: bytes) -> None:
    found = list(blocks(stream))
    assert sum(block.is_event for block in found) == dispatched(stream)
    assert [block.start for block in found] == [0, *(block.end for block in found)][: len(found)]
    assert not found or found[-1].end == len(stream)


@given(streams(), st.integers(0, 8))
def test_after_so_many_events_the_others_follow(stream: bytes, events: int) -> None:
    cut = after_events(stream, events)
    assert cut.events == min(events, dispatched(stream))
    assert dispatched(stream[: cut.place]) == cut.events
    rest = EventFramer()
    rest._started = cut.place > 0  # a byte order mark belongs to the beginning
    assert len(rest.feed(stream[cut.place :])) == dispatched(stream) - cut.events


@given(streams(), st.integers(0, 60))
def test_a_boundary_is_between_events(stream: bytes, place: int) -> None:
    cut = boundary(stream, place)
    ends = [0, *(block.end for block in blocks(stream))]
    assert cut.place == next((end for end in ends if end >= place), ends[-1])
    assert dispatched(stream[: cut.place]) == cut.events


def numbered(*numbers: int | None) -> bytes:
    data = [b"{}" if number is None else b'{"sequence_number":%d}' % number for number in numbers]
    return b"".join(b"event: x\ndata: %b\n\n" % one for one in data)


@pytest.mark.parametrize(
    ("numbers", "before", "after", "left"),
    [
        ((0, 1, 2, 3), 0, -1, 4),
        ((0, 1, 2, 3), 0, 1, 2),
        ((0, 1, 2, 3), 0, 3, 0),
        ((0, 1, 2, 3), 0, 99, 0),
        ((1, 2, 3), 0, 1, 2),
        ((1, 2, 3), 0, -1, 3),
        ((5, 6, 7), 5, 5, 2),
        ((5, 6, 7), 5, 4, 3),
        ((5, 6, 7), 5, 3, None),
        ((5, 6, 7), 5, -1, None),
        ((0, 1, 5, 6), 0, 3, 2),
        ((None, None, None), 0, 0, 2),
        ((None, None, None), 4, 4, 2),
        ((None, None, None), 4, 2, None),
        ((), 0, 7, 0),
    ],
)
def test_after_a_number(numbers: tuple[int | None, ...], before: int, after: int, left: int | None) -> None:
    stream = numbered(*numbers)
    place = after_number(stream, after, before)
    assert (None if place is None else dispatched(stream[place:])) == left


@pytest.mark.parametrize(
    "data", [b'{"sequence_number":"1"}', b"[1]", b"[DONE]", b'{"text":"\\"sequence_number\\":9"}', b"{", b"\xff"]
)
def test_what_has_no_number_is_counted(data: bytes) -> None:
    assert [block.number for block in blocks(b"data: " + data + b"\n\n")] == [None]


def tape(bytes_max: int = 1 << 20) -> Tape:
    return made(Tapes(bytes_max=bytes_max, total_bytes_max=1 << 30, kept_s=60))


def made(tapes: Tapes, name: str = "x") -> Tape:
    return tapes.begin(name, "key", content_type="text/event-stream", errors=OPENAI_ERRORS, heartbeat_s=0)


EVENTS = [b"data: %d\n\n" % number for number in range(100)]


@given(st.integers(0, 99), st.integers(1, 700), st.lists(st.integers(0, 999), max_size=5))
def test_what_is_read_is_what_was_written(events: int, bytes_max: int, cuts: list[int]) -> None:
    """From any event on that is still there, however it was written."""
    one, stream = tape(bytes_max), b"".join(EVENTS)
    places = [0, *sorted(cut % len(stream) for cut in cuts), len(stream)]
    for start, end in pairwise(places):
        one.add(stream[start:end])
        assert one.size <= bytes_max
    try:
        place = one.after_events(events)
    except OverwrittenError:
        assert len(b"".join(EVENTS[events:])) > bytes_max / 2 - 20 or not one.readable
        return
    assert one.read(place, 1 << 20) == b"".join(EVENTS[events:])


def test_a_place_that_is_not_there() -> None:
    one = tape(100)
    for event in EVENTS:
        one.add(event)
    with pytest.raises(BeyondError) as beyond:
        one.after_events(101)
    assert beyond.value.events == 100
    assert one.read(one.after_events(100), 10) == b""
    with pytest.raises(OverwrittenError):
        one.after_events(3)
    with pytest.raises(OverwrittenError):
        one.after_number(3)
    with pytest.raises(OverwrittenError):
        one.read(0, 10)


def test_an_event_longer_than_the_tape_is_not_held() -> None:
    one = tape(100)
    one.add(b"data: " + b"x" * 200)
    assert (one.readable, one.size) == (False, 0)
    one.add(b"\n\ndata: more\n\n")
    assert one.size == 0
    with pytest.raises(OverwrittenError):
        one.after_events(0)


async def test_of_too_many_bytes_the_oldest_go() -> None:
    tapes = Tapes(bytes_max=100, total_bytes_max=250 + 3 * EMPTY_BYTES, kept_s=60)
    running, ended, later = made(tapes, "running"), made(tapes, "ended"), made(tapes, "later")
    for one in (running, ended, later):
        one.add(b"data: %b\n\n" % (b"x" * 72))
    tapes.end(ended, whole=True, error_sent=False)
    assert tapes.size == 240 + 3 * EMPTY_BYTES
    later.add(b"data: more\n\n")
    assert (tapes.of("ended"), tapes.of("running"), tapes.of("later")) == (None, running, later)
    more = made(tapes, "more")
    more.add(b"data: %b\n\n" % (b"x" * 80))
    assert tapes.of("running") is None
    tapes.end(running, whole=True, error_sent=False)
    assert tapes.of("running") is None
    assert tapes.size == later.size + more.size + 2 * EMPTY_BYTES
    tapes.close()
    assert tapes.size == 0


def test_there_may_be_no_room_at_all() -> None:
    tapes = Tapes(bytes_max=100, total_bytes_max=100, kept_s=60)
    for name in "abc":
        made(tapes, name).add(b"data: x\n\n")
        assert (tapes.of(name), tapes.size) == (None, 0)


async def test_it_is_kept_for_its_time() -> None:
    tapes = Tapes(bytes_max=100, total_bytes_max=1 << 20, kept_s=0.05)
    for name in ("one", "two"):
        made(tapes, name).add(b"data: x\n\n")
        tapes.end(tapes._running[name], whole=True, error_sent=False)
        await asyncio.sleep(0.02)
    assert tapes.of("two") is not None
    async with asyncio.timeout(5):
        while tapes.size:
            await asyncio.sleep(0.01)
    assert tapes.of("one") is tapes.of("two") is None


async def test_who_waits_is_woken() -> None:
    one = tape()
    place = one.after_events(0)

    async def waited(what: Any, *arguments: Any, **named: Any) -> None:
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            group.create_task(one.more(place, None))
            await asyncio.sleep(0)
            what(*arguments, **named)

    await waited(one.wake)
    await waited(one.add, b"data: x\n\n")
    place = 9
    await one.more(place, 0.001)
    await waited(one.end, whole=True, error_sent=False)
    await one.more(place, None)
    one.drop()
    await one.more(place, None)
