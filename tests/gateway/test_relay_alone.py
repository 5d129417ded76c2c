"""The relay without a network: for every piece progress is recorded, then the client is written to, then the meter
reads; what is written is what came, at every cut, with and without framing of the provider's own."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from proxy.gateway.relay import End, Relay
from proxy.metering.meter import StreamMeter
from proxy.metering.strip import UsageStripper
from proxy.metering.usage import Evidence, Usage
from tests.gateway.streams import inside_utf8, told
from tests.support import sse


class NoGaps:
    """A metric that nobody reads."""

    def observe(self, seconds: float) -> None:
        assert seconds >= 0


class Recorder:
    """Slot and client in one: what was recorded when something was written."""

    def __init__(self) -> None:
        self.recorded = (0, 0)
        self.sent = b""
        self.body_bytes = 0

    def deliver(self, events: int, size: int) -> None:
        assert size > self.recorded[1]
        assert events >= self.recorded[0]
        self.recorded = (events, size)

    def note(self, evidence: Evidence, usage: Usage | None, events: int) -> None:
        pass


class Client(asyncio.WriteTransport):
    """The client's side: takes everything."""

    def __init__(self, recorder: Recorder, *, chunked: bool) -> None:
        super().__init__()
        self._recorder = recorder
        self._chunked = chunked
        self._wire = b""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert high <= 256 * 1024

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._wire += data
        body = unchunked(self._wire) if self._chunked else self._wire
        assert self._recorder.recorded[1] >= len(body), "written before it was recorded"
        assert self._recorder.recorded[0] >= len(sse.data_events(body)), "events are recorded before they are written"
        self._recorder.sent = body


def unchunked(wire: bytes) -> bytes:
    body = []
    while wire:
        size, _, wire = wire.partition(b"\r\n")
        length = int(size, 16)
        assert length
        assert wire[length : length + 2] == b"\r\n"
        body.append(wire[:length])
        wire = wire[length + 2 :]
    return b"".join(body)


def relay(recorder: Recorder, *, strip: bool, chunked: bool = True) -> Relay:
    made = Relay(
        meter=StreamMeter(),
        strip=UsageStripper() if strip else None,
        slot=recorder,
        loop=asyncio.get_running_loop(),
        gaps=NoGaps(),  # type: ignore[arg-type]
    )
    made.attach(Client(recorder, chunked=chunked), chunked=chunked)
    return made


def run(pieces: list[bytes], *, strip: bool, framed: bool, chunked: bool = True) -> tuple[Recorder, Relay]:
    recorder = Recorder()
    made = relay(recorder, strip=strip, chunked=chunked)
    for piece in pieces:
        made.piece(piece, b"%x\r\n%b\r\n" % (len(piece), piece) if framed else None)
    made.flush()
    made.settle_counts()
    return recorder, made


def cut(body: bytes, at: list[int]) -> list[bytes]:
    return [body[a:b] for a, b in pairwise(sorted({0, len(body), *at}))]


@pytest.mark.parametrize("language", ["openai", "siliconstorm"])
@pytest.mark.parametrize("strip", [False, True])
async def test_random_cuts_with_and_without_framing(language: str, strip: bool) -> None:
    rng = random.Random(f"{language} {strip}")
    body = b"".join(told(language, 5))
    expected = sse.without_usage_event(body) if strip else body
    for _ in range(150):
        pieces = cut(body, rng.sample(range(1, len(body)), rng.choice([1, 3, 12, 60])))
        recorder, made = run(pieces, strip=strip, framed=rng.random() < 0.8, chunked=rng.random() < 0.8)
        assert recorder.sent == expected
        assert (made.events, made.bytes) == (len(sse.data_events(expected)), len(expected))


async def test_pieces_as_long_as_what_is_held_are_not_mistaken_for_it() -> None:
    """Each piece lets go as many bytes as it leaves held: the provider's framing of it is not what goes out."""
    event = sse.events(b"".join(told("openai", 4)))[1].wire
    for held in range(1, len(event)):
        body = event * 3
        pieces = cut(body, [held, len(event) + held, 2 * len(event) + held])
        recorder, _ = run(pieces, strip=True, framed=True)
        assert recorder.sent == body, held


async def test_cuts_inside_characters_and_bytes() -> None:
    body = b"".join(told("tera", 16))
    inside = list(inside_utf8(body))
    assert len(inside) >= 8
    for pieces in (cut(body, inside), cut(body, list(range(len(body))))):
        recorder, _ = run(pieces, strip=True, framed=False)
        assert recorder.sent == sse.without_usage_event(body)


async def test_what_a_client_got_is_final_when_it_leaves_and_the_meter_reads_on() -> None:
    events = told("tera", 6)
    recorder = Recorder()
    made = relay(recorder, strip=True)
    for event in events[:4]:
        made.piece(event)
    made.detach()
    for event in events[4:]:
        made.piece(event)
    made.settle_counts()
    assert recorder.sent == b"".join(events[:4])
    assert (made.events, made.bytes) == (4, len(recorder.sent))
    metered = made.meter.close()
    assert metered.complete
    assert metered.usage is not None
    assert metered.usage.completion_tokens == 6


async def test_our_own_error_goes_only_between_whole_events() -> None:
    events = told("tera", 3)
    recorder = Recorder()
    made = relay(recorder, strip=False)
    made.piece(events[0] + events[1][:10])
    assert not made.say(b"data: {}\n\n")
    made.piece(events[1][10:])
    assert made.say(b"data: {}\n\n")
    assert recorder.sent == events[0] + events[1] + b"data: {}\n\n"


async def test_a_break_after_done_is_an_end_and_the_first_word_counts() -> None:
    events = told("tera", 3)
    for upto, end in ((len(events), End.COMPLETE), (len(events) - 1, End.BROKEN)):
        made = relay(Recorder(), strip=False)
        made.piece(b"".join(events[:upto]))
        made.broken()
        made.finish(End.STALLED)
        assert await made.done is end
