"""Places in a stream, and tapes: what is read from any place on is what was written from there on."""

from __future__ import annotations

import asyncio
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.foundation.slices import Slice
from proxy.gateway.tapes.blocks import EDGE_BYTES, WINDOW_BYTES, Block, blocks, number_of
from proxy.gateway.tapes.tape import EMPTY_BYTES, BeyondError, OverwrittenError, Tape
from proxy.gateway.tapes.tapes import Tapes
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.wire.sse import EventFramer
from tests.support.turns import each_step_is_a_turn, measured_turns

__all__ = ["each_step_is_a_turn"]

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


def found_in(stream: bytes, window_bytes: int = WINDOW_BYTES) -> list[Block]:
    def read(place: int, size: int) -> bytes:
        return stream[place : place + size]

    return list(chain.from_iterable(blocks(read, 0, window_bytes)))


@given(streams(), st.integers(EDGE_BYTES + 1, 60))
@example(b": a" + b"a" * 30 + b"\n" * 40 + b"data\r\n" * 9 + b"\r\n", 12)
def test_events_are_counted_as_parsers_do(stream: bytes, window_bytes: int) -> None:
    """Wherever they are cut into windows."""
    found = found_in(stream)
    assert sum(is_event for _, _, is_event in found) == dispatched(stream)
    assert [start for start, _, _ in found] == [0, *(end for _, end, _ in found)][: len(found)]
    assert not found or found[-1][1] == len(stream)
    again = found_in(stream, window_bytes)
    assert sum(is_event for _, _, is_event in again) == dispatched(stream)
    if b"\n" * (window_bytes - EDGE_BYTES) not in stream:  # blank lines that fill a window are a block of their own
        assert again == found


@given(streams(), st.integers(0, 8))
async def test_after_so_many_events_the_others_follow(stream: bytes, events: int) -> None:
    one = tape()
    one.add(stream)
    if events > dispatched(stream):
        with pytest.raises(BeyondError) as beyond:
            await one.after_events(events)
        assert beyond.value.events == dispatched(stream)
        return
    place = await one.after_events(events)
    assert dispatched(stream[:place]) == events
    rest = EventFramer()
    rest._started = place > 0  # a byte order mark belongs to the beginning
    assert len(rest.feed(one.read(place, 1 << 20))) == dispatched(stream) - events


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
async def test_after_a_number(numbers: tuple[int | None, ...], before: int, after: int, left: int | None) -> None:
    one, stream = tape(), numbered(*numbers)
    one.add(stream)
    one._before, one._events_before = 1_000 * before, before
    if left is None:
        with pytest.raises(OverwrittenError):
            await one.after_number(after)
    else:
        assert dispatched(one.read(await one.after_number(after), 1 << 20)) == left


@pytest.mark.parametrize(
    "data", [b'{"sequence_number":"1"}', b"[1]", b"[DONE]", b'{"text":"\\"sequence_number\\":9"}', b"{", b"\xff"]
)
def test_what_has_no_number_is_counted(data: bytes) -> None:
    assert number_of(b"data: " + data + b"\n\n") is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_number_is_read_in_every_way_of_writing_lines(end: bytes) -> None:
    assert number_of(b"event: x" + end + b'data: {"sequence_number":7}' + end * 2) == 7
    assert number_of(b": x" + end + (b"data: " + end) * 2_000 + b'data: {"sequence_number":7}' + end * 2) is None


@pytest.mark.usefixtures("each_step_is_a_turn")
@pytest.mark.parametrize("block", [b"data:\n\n", b":\n" * 40_000 + b"data:\n\n"])
async def test_a_place_is_looked_for_without_delaying_others(block: bytes) -> None:
    """However many blocks or lines are before it."""
    one = tape()
    one.add(block * (200_000 // len(block)))
    one.end(whole=True, error_sent=False)
    events = 200_000 // len(block)
    for searched in (one.after_events(events), one.after_number(events)):
        async with measured_turns() as turns:
            await searched
        assert turns.count >= 200_000 // WINDOW_BYTES


async def test_a_place_is_found_while_older_events_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    one = tape(1_000)

    async def write(_: Slice) -> None:
        one.add(b"data: more\n\n" * 50)

    one.add(b"".join(EVENTS[:50]))
    monkeypatch.setattr(Slice, "give_way", write)
    assert one.read(await one.after_events(49), 1 << 20).startswith(EVENTS[49])
    with pytest.raises(OverwrittenError):
        await one.after_events(10)


def tape(bytes_max: int = 1 << 20) -> Tape:
    return made(Tapes(bytes_max=bytes_max, total_bytes_max=1 << 30, kept_s=60))


def made(tapes: Tapes, name: str = "x") -> Tape:
    return tapes.begin(name, "key", content_type="text/event-stream", errors=OPENAI_ERRORS, heartbeat_s=0)


EVENTS = [b"data: %d\n\n" % number for number in range(100)]


@given(st.integers(0, 99), st.integers(1, 700), st.lists(st.integers(0, 999), max_size=5))
async def test_what_is_read_is_what_was_written(events: int, bytes_max: int, cuts: list[int]) -> None:
    """From any event on that is still there, however it was written."""
    one, stream = tape(bytes_max), b"".join(EVENTS)
    places = [0, *sorted(cut % len(stream) for cut in cuts), len(stream)]
    for start, end in pairwise(places):
        one.add(stream[start:end])
        assert one.size <= bytes_max
    try:
        place = await one.after_events(events)
    except OverwrittenError:
        assert len(b"".join(EVENTS[events:])) > bytes_max / 2 - 20 or not one.readable
        return
    assert one.read(place, 1 << 20) == b"".join(EVENTS[events:])


async def test_a_place_that_is_not_there() -> None:
    one = tape(100)
    for event in EVENTS:
        one.add(event)
    with pytest.raises(BeyondError) as beyond:
        await one.after_events(101)
    assert beyond.value.events == 100
    assert one.read(await one.after_events(100), 10) == b""
    with pytest.raises(OverwrittenError):
        await one.after_events(3)
    with pytest.raises(OverwrittenError):
        await one.after_number(3)
    with pytest.raises(OverwrittenError):
        one.read(0, 10)


async def test_an_event_longer_than_the_tape_is_not_held() -> None:
    one = tape(100)
    one.add(b"data: " + b"x" * 200)
    assert (one.readable, one.size) == (False, 0)
    one.add(b"\n\ndata: more\n\n")
    assert one.size == 0
    with pytest.raises(OverwrittenError):
        await one.after_events(0)


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
    tapes = Tapes(bytes_max=100, total_bytes_max=1 << 20, kept_s=0.3)
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
    place = await one.after_events(0)

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
