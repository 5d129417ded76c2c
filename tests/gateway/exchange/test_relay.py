"""The relay without a network: for every piece progress is recorded, then the client is written to; what is written is
what came, and what is metered is what parsing it all says, at every cut, with and without framing of the provider's."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.gateway.exchange import relay as relay_module
from proxy.gateway.exchange.relay import BURST_EVENTS, EVENTS_PER_NOTE, Relay
from proxy.gateway.upstream.connection import UpstreamConnection
from proxy.metering.dialect import Dialect
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.gemini.generate import GEMINI_STREAM
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.strip import UsageStripper
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.metered import BodyMeter, Metered
from proxy.metering.usage import Evidence, Usage
from proxy.metering.wire.framing import SSE, Framing
from tests.gateway.streams import told
from tests.gateway.upstream.connections import FakeTransport
from tests.support import sse
from tests.support.examples import examples, repeats
from tests.support.waiting import until


class NoGaps:
    """A metric that nobody reads."""

    def observe(self, seconds: float) -> None:
        assert seconds >= 0


class DeliveryLog:
    """Slot and client in one: what was recorded when something was written."""

    def __init__(self) -> None:
        self.recorded = (0, 0)
        self.sent = b""
        self.noted = 0
        self.unnoted_max = 0  # events recorded beyond the note, beyond a quarter of all

    def deliver(self, events: int, size: int) -> None:
        assert size > self.recorded[1]
        assert events >= self.recorded[0]
        self.recorded = (events, size)
        if self.noted:
            self.unnoted_max = max(self.unnoted_max, events - self.noted - self.noted // 4)

    def note(self, _evidence: Evidence, _usage: Usage | None, events: int, *_: object, **__: object) -> None:
        assert events >= self.noted
        self.noted = events


class Client(asyncio.WriteTransport):
    """The client's side: takes everything."""

    def __init__(self, recorder: DeliveryLog, *, chunked: bool) -> None:
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


class Told:
    """The exchange: what the relay told it."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def body_folded(self, meter: BodyMeter) -> None: ...

    def body_ended(self) -> None:
        self.ends.append("ended")

    def body_broke(self) -> None:
        self.ends.append("broke")

    def body_lost(self) -> None:
        self.ends.append("lost")


class CountingRelay(Relay):
    """Counts the pieces that were passed on as they came, in one look."""

    runs = 0
    told: Told

    def relay_matched(self, wire: bytes) -> bool:
        taken = super().relay_matched(wire)
        self.runs += taken
        return taken


def relay(recorder: DeliveryLog, *, strip: bool, chunked: bool = True, framing: Framing = SSE) -> CountingRelay:
    told = Told()
    made = CountingRelay(
        meter=OPENAI_CHAT.stream_meter(),
        editor=UsageStripper() if strip else None,
        slot=recorder,
        gaps=NoGaps(),  # type: ignore[arg-type]
        listener=told,
        framing=framing,
    )
    made.told = told
    made.attach(Client(recorder, chunked=chunked), chunked=chunked)
    return made


def run(pieces: list[bytes], *, strip: bool, framed: bool, chunked: bool = True) -> tuple[DeliveryLog, CountingRelay]:
    recorder = DeliveryLog()
    made = relay(recorder, strip=strip, chunked=chunked)
    for piece in pieces:
        made.piece(piece, b"%x\r\n%b\r\n" % (len(piece), piece) if framed else None)
    made.flush()
    made.settle_counts()
    return recorder, made


async def test_a_stream_without_comments_gets_none_and_nothing_is_said_where_nothing_fits() -> None:
    recorder = DeliveryLog()
    made = relay(recorder, strip=False, framing=replace(SSE, heartbeat=b""))
    made.heartbeat()
    assert not made.say(b"")
    assert (made.events, recorder.recorded, recorder.sent) == (0, (0, 0), b"")
    assert made.say(b"data: {}\n\n")
    assert (made.events, recorder.sent) == (1, b"data: {}\n\n")


def cut(body: bytes, at: list[int]) -> list[bytes]:
    return [body[a:b] for a, b in pairwise(sorted({0, len(body), *at}))]


@pytest.mark.hypothesis
@pytest.mark.parametrize("language", ["openai", "siliconstorm"])
@pytest.mark.parametrize("strip", [False, True])
async def test_random_cuts_with_and_without_framing(language: str, strip: bool) -> None:
    rng = random.Random(f"{language} {strip}")
    body = b"".join(told(language, 5))
    expected = sse.without_usage_event(body) if strip else body
    for _ in range(repeats(150, gate=40)):
        pieces = cut(body, rng.sample(range(1, len(body)), rng.choice([1, 3, 12, 60])))
        recorder, made = run(pieces, strip=strip, framed=rng.random() < 0.8, chunked=rng.random() < 0.8)
        assert recorder.sent == expected
        assert (made.events, made.bytes) == (len(sse.data_events(expected)), len(expected))


async def arriving(pieces: list[bytes], *, strip: bool, chunked: bool = True) -> tuple[DeliveryLog, CountingRelay]:
    """`pieces` of a chunked body, as they come from the provider; nothing comes after a break."""
    recorder = DeliveryLog()
    made = relay(recorder, strip=strip, chunked=chunked)
    connection = UpstreamConnection(lambda _: None, lambda _: None)
    connection.connection_made(FakeTransport())
    connection.ask(b"")
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.relay_to(made)
    for piece in pieces:
        if not made.told.ends:
            connection.data_received(piece)
    await until(lambda: connection._parts is None)
    made.flush()
    made.settle_counts()
    return recorder, made


def parsed(body: bytes) -> Metered:
    """Every event parsed."""
    meter = OPENAI_CHAT.stream_meter()
    meter.feed(body)
    return meter.close()


def grouped(events: list[bytes], rng: random.Random) -> list[list[bytes]]:
    """The events in groups of random size."""
    at = sorted({0, len(events), *rng.choices(range(len(events)), k=rng.choice([0, 2, 5, len(events)]))})
    return [events[a:b] for a, b in pairwise(at)]


@pytest.mark.hypothesis
@pytest.mark.parametrize("language", ["openai", "electron", "siliconstorm", "tera"])
@pytest.mark.parametrize("strip", [False, True])
async def test_bursts_of_chunks_in_any_grouping_and_cut(
    monkeypatch: pytest.MonkeyPatch, language: str, strip: bool
) -> None:
    """Events in chunks, chunks in writes, writes in pieces: the client gets the same, and the same is metered."""
    monkeypatch.setattr(relay_module, "BURST_EVENTS", 1)
    rng = random.Random(f"{language} {strip}")
    events = told(language, 40, reasoning=8)
    body = b"".join(events)
    expected, metered = sse.without_usage_event(body) if strip else body, parsed(body)
    runs, rounds = 0, repeats(150, gate=30)
    for _ in range(rounds):
        chunks = [b"".join(group) for group in (grouped(events, rng) if rng.random() < 0.3 else [[e] for e in events])]
        wire = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
        pieces = [b"".join(group) for group in grouped(wire, rng)]
        if rng.random() < 0.4:
            pieces = cut(b"".join(pieces), rng.sample(range(1, len(body)), 5))
        recorder, made = await arriving(pieces, strip=strip, chunked=rng.random() < 0.8)
        assert recorder.sent == expected
        assert (made.events, made.bytes) == (len(sse.data_events(expected)), len(expected))
        assert made.meter.bytes_seen == len(body)
        assert made.meter.close() == metered
        runs += made.runs
    assert runs > rounds / 2


@pytest.mark.parametrize(("together", "runs"), [(1, 0), (BURST_EVENTS - 1, 0), (BURST_EVENTS, 7), (20, 7)])
async def test_only_bursts_are_matched_before_they_are_written(together: int, runs: int) -> None:
    events = told("openai", 8 * together)[1:][: 8 * together]
    wire = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    recorder, made = await arriving(
        [b"".join(wire[at : at + together]) for at in range(0, len(wire), together)], strip=True
    )
    assert recorder.sent == b"".join(events)
    assert made.runs == runs


@settings(max_examples=examples(60), deadline=None)
@given(
    upto=st.integers(0, 7),
    garbage=st.sampled_from([b"zz\r\n", b"5\r\nhelloworld\r\n", b"fffffffff\r\n", b"-5\r\n", b"\r\n\r\n"]),
    rng=st.randoms(use_true_random=False),
    strip=st.booleans(),
)
def test_whole_events_before_a_break_are_delivered_and_metered_at_any_cut(
    upto: int, garbage: bytes, rng: random.Random, strip: bool
) -> None:
    events = told("openai", 3)[:upto]
    good = b"hello" if garbage.startswith(b"5\r\n") else b""  # of a chunk that is longer than its size
    wire = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + garbage
    body = b"".join(events)
    expected = (sse.without_usage_event(body) if strip else body) + good

    async def at_some_cuts() -> None:
        for count in (0, 1, 3, 12):
            at = rng.choices(range(len(wire)), k=count)
            recorder, made = await arriving([piece for piece in cut(wire, at) if piece], strip=strip)
            assert recorder.sent == expected
            assert made.meter.bytes_seen == len(body + good)
            assert made.meter.close() == parsed(body + good)
            assert made.told.ends == ["broke"]

    asyncio.run(at_some_cuts())


async def test_what_is_noted_lags_by_a_quarter_at_most_and_never_by_a_page() -> None:
    [*events, _finish, _usage, _done] = told("openai", 100)
    for size in (1, 3, 20):
        for wire in (
            [b"%x\r\n%b\r\n" % (len(e), e) for e in events],
            [b"%x;x\r\n%b\r\n" % (len(e), e) for e in events],
        ):
            recorder, made = await arriving(
                [b"".join(wire[at : at + size]) for at in range(0, len(wire), size)], strip=False
            )
            # One piece can always be under way: it is recorded first.
            assert recorder.unnoted_max <= size
            assert recorder.noted >= len(events) - EVENTS_PER_NOTE - size
            assert made.meter.tally.evidence.text_events > 0


async def test_runs_are_passed_by_when_the_client_has_left_and_metered_all_the_same() -> None:
    events = told("openai", 60)
    recorder = DeliveryLog()
    made = relay(recorder, strip=True)
    for event in events[:30]:
        wire = b"%x\r\n%b\r\n" % (len(event), event)
        if not made.relay_matched(wire):
            made.piece(event, wire)
    made.detach()
    for event in events[30:]:
        wire = b"%x\r\n%b\r\n" % (len(event), event)
        assert not made.relay_matched(wire)
        made.piece(event, wire)
    assert recorder.sent == b"".join(events[:30])
    assert (made.events, made.bytes) == (30, len(recorder.sent))
    assert made.meter.close() == parsed(b"".join(events))


async def test_pieces_as_long_as_what_is_held_are_not_mistaken_for_it() -> None:
    """Each piece lets go as many bytes as it leaves held: the provider's framing of it is not what goes out."""
    event = sse.events(b"".join(told("openai", 4)))[1].wire
    for held in range(1, len(event)):
        body = event * 3
        pieces = cut(body, [held, len(event) + held, 2 * len(event) + held])
        recorder, _ = run(pieces, strip=True, framed=True)
        assert recorder.sent == body, held


async def test_our_own_error_goes_only_between_whole_events() -> None:
    events = told("tera", 3)
    recorder = DeliveryLog()
    made = relay(recorder, strip=False)
    made.piece(events[0] + events[1][:10])
    assert not made.say(b"data: {}\n\n")
    made.piece(events[1][10:])
    assert made.say(b"data: {}\n\n")
    assert recorder.sent == events[0] + events[1] + b"data: {}\n\n"


async def test_the_meter_has_read_all_when_a_break_is_told() -> None:
    events = told("tera", 3)
    for upto in (len(events), len(events) - 1):
        made = relay(DeliveryLog(), strip=False)
        made.piece(b"".join(events[:upto]))
        made.upstream_error()
        assert (made.told.ends, made.meter.done) == (["broke"], upto == len(events))
        made.drop()
        made.complete()
        assert made.told.ends == ["broke"], "what is dropped tells nothing"


async def test_events_that_a_bug_took_from_the_meter_count_as_passed_on() -> None:
    events = told("tera", 3)
    made = relay(DeliveryLog(), strip=False)
    made.piece(b"".join(events))
    made.events += 1  # it was written, and then the meter raised
    made.internal_error()
    made.settle_counts()
    assert (made.told.ends, made.events) == (["lost"], made.meter.tally.events + 1)


@pytest.mark.parametrize(("keep_max", "kept"), [(0, None), (9, None), (10, b'{"a": "b"}'), (99, b'{"a": "b"}')])
async def test_a_body_is_kept_up_to_its_bound(keep_max: int, kept: bytes | None) -> None:
    made = Relay(
        meter=OPENAI_CHAT.plain_meter(), editor=None, slot=DeliveryLog(), gaps=NoGaps(),  # type: ignore[arg-type]
        listener=None, keep_max=keep_max,
    )  # fmt: skip
    for piece in (b'{"a"', b': "', b'b"}'):
        made.piece(piece)
    assert made.kept == kept


class Noting(Told):
    """Knows whether the meter had read the last event when it last told."""

    done = False

    def body_folded(self, meter: BodyMeter) -> None:
        self.done = meter.done


class Anything(DeliveryLog):
    """Slot and client for streams of any dialect."""

    def deliver(self, events: int, size: int) -> None: ...

    def note(self, *_: object, **__: object) -> None: ...


class Everything(Client):
    def write(self, data: bytes | bytearray | memoryview) -> None: ...


def knows_its_end(dialect: Dialect, framing: Framing, pieces: list[bytes]) -> bool | None:
    """Whether a relay that gets these pieces, each of whole events, has read the last event with the last one; None:
    there is none."""
    listener, recorder, meter = Noting(), Anything(), dialect.stream_meter(framing)
    made = Relay(
        meter=meter,
        editor=None,
        slot=recorder,
        gaps=NoGaps(),  # type: ignore[arg-type]
        listener=listener,
        framing=framing,
        ends=dialect.ends,
    )
    made.attach(Everything(recorder, chunked=True), chunked=True)
    for piece in pieces:
        made.piece(piece)
    meter.fold()
    return listener.done if meter.done else None


TEXT = b'"type":"content_block_delta","delta":{"type":"text_delta","text":"w"}'
LAST_EVENTS = [
    (OPENAI_CHAT, b'data: {"choices":[{"delta":{"content":"w"}}]}\n\n', b"data: [DONE]\n\n"),
    (ANTHROPIC_MESSAGES, b"event: content_block_delta\ndata: {%b}\n\n" % TEXT,
     b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
    (OPENAI_RESPONSES, b'event: x\ndata: {"type":"response.output_text.delta","delta":"w"}\n\n',
     b'event: y\ndata: {"type":"response.completed","response":{"status":"completed"}}\n\n'),
    (GEMINI_STREAM, b'data: {"candidates":[{"content":{"parts":[{"text":"w"}]}}]}\r\n\r\n',
     b'data: {"candidates":[{"content":{"parts":[{"text":""}]},"finishReason":"STOP"}]}\r\n\r\n'),
    (OLLAMA_CHAT, b'{"message":{"content":"w"},"done":false}\n', b'{"message":{"content":""},"done":true}\n'),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "event", "last"), LAST_EVENTS, ids=lambda one: getattr(one, "name", ""))
async def test_the_last_event_is_metered_when_it_comes(dialect: Dialect, event: bytes, last: bytes) -> None:
    """So a provider that then keeps its connection open is waited for only shortly."""
    for events in (1, 2, 20):
        assert knows_its_end(dialect, dialect.framings[0], [*[event] * events, last]) is True


@pytest.mark.real
async def test_every_recorded_last_event_is_metered_when_it_comes(corpus: Path) -> None:
    known = {dialect.name: dialect for dialect in DIALECTS} | {"google.generate": GEMINI_STREAM}
    ended = 0
    for line in (corpus / "open.jsonl").read_bytes().split(b"\n"):
        record = json.loads(line or b"{}")
        dialect = known.get(record.get("dialect"))
        if dialect is None or not record["streamed"] or record["status"] != 200:
            continue
        kind = next((value for name, value in record["response_headers"].items() if name.lower() == "content-type"), "")
        if (framing := dialect.framing(kind.partition(";")[0], streamed=True)) is None:
            continue
        between = rb"(?<=\n)" if framing.content_type.endswith("json") else rb"(?<=\n\n)|(?<=\r\n\r\n)"
        pieces = [piece for piece in re.split(between, record["body"].encode()) if piece]
        known_at_once = knows_its_end(dialect, framing, pieces)
        assert known_at_once is not False, record["id"]
        ended += known_at_once is True
    assert ended > 350
