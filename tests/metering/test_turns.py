"""Reading what a provider sends takes the event loop some milliseconds at a time, whatever it is."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from functools import partial
from time import thread_time
from typing import Any, TypeVar

import pytest

from proxy.metering.dialect import Dialect
from proxy.metering.dialects import DIALECTS
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_MESSAGES
from proxy.metering.dialects.gemini.generate import GEMINI_STREAM
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.metered import BodyMeter, Metered
from proxy.metering.wire import outline
from proxy.metering.wire import sse as sse_framing
from proxy.metering.wire.framing import JSON_ARRAY
from proxy.metering.wire.parts import Parts
from tests.metering.fixtures import GEMINI_USAGE, fed, in_pieces
from tests.metering.hostile import DOCUMENTS, streams
from tests.metering.said import body_of, lasts
from tests.support.examples import each

T = TypeVar("T")

# Twice what a turn may take: the machine may be slower than any in production.
STEP_S_MAX = 0.04
TRIES = 3


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Their time depends on all other tests."""
    gc.disable()
    yield
    gc.enable()


class Steps:
    """What is done in one turn of the event loop each."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    def read(self, meter: BodyMeter, body: bytes) -> Metered:
        """Read the body as a relay does."""
        parts = Parts(body)
        while parts:
            self._step(lambda: (meter.feed(parts.take()), meter.fold()))
            self._catch_up(meter)
        self._step(meter.end)
        self._catch_up(meter)
        return self._step(meter.close)

    def _catch_up(self, meter: BodyMeter) -> None:
        while meter.behind:
            self._step(meter.catch_up)

    def _step(self, step: Callable[[], T]) -> T:
        began = thread_time()
        done = step()
        self.longest_s = max(self.longest_s, thread_time() - began)
        return done


def check(meter: Callable[[], BodyMeter], body: bytes) -> None:
    """Measured again only after a failure."""
    for _ in range(TRIES):
        steps = Steps()
        steps.read(meter(), body)
        if steps.longest_s < STEP_S_MAX:
            return
    raise AssertionError(f"{steps.longest_s * 1000:.1f} ms")


# One dialect for each reader of answers: others differ in paths and names only.
READERS = list({dialect.tally: dialect for dialect in reversed(DIALECTS)}.values())
OF_EACH_SHAPE = [OPENAI_CHAT, ANTHROPIC_MESSAGES, GEMINI_STREAM]
DIALECTS_AND_SIZES = pytest.mark.parametrize(
    ("dialect", "size"),
    [
        (OPENAI_CHAT, 12_000),
        *(pytest.param(dialect, 60_000, marks=pytest.mark.slow) for dialect in READERS),
        *(pytest.param(dialect, 3 << 20, marks=pytest.mark.slow) for dialect in OF_EACH_SHAPE),
    ],
    ids=lambda value: getattr(value, "name", None),
)


@DIALECTS_AND_SIZES
@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_answer_is_read_in_steps(dialect: Dialect, size: int, name: str) -> None:
    check(dialect.plain_meter, DOCUMENTS[name](size))


@DIALECTS_AND_SIZES
def test_a_stream_is_read_in_steps(dialect: Dialect, size: int) -> None:
    for _, framing, body in streams(dialect, size):
        check(partial(dialect.stream_meter, framing), body)


def crowded(marks: int) -> dict[str, Any]:
    return {"odd": [[1, {"a": "b"}]] * (marks // 10)}


@pytest.mark.parametrize(("dialect", "last"), each(3, lasts("x", "x")), ids=lambda value: getattr(value, "name", None))
@pytest.mark.parametrize("catches_up", [False, True])
def test_a_crowded_event_is_read_however_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect, last: dict[str, Any], catches_up: bool
) -> None:
    for module in (outline, sse_framing):
        monkeypatch.setattr(module, "TEXT_MARKS_MAX", 3_000)
    document = json.dumps(crowded(20_000) | last).encode()
    for framing in dialect.framings:
        body = body_of(framing, [document, b"{}"])
        results = []
        for size in (700, 5_000, len(body)):
            meter = dialect.stream_meter(framing)
            for piece in in_pieces(body, size):
                meter.feed(piece)
                meter.fold()
                assert size < len(body) or meter.behind
                while catches_up and meter.behind:
                    meter.catch_up()
            results.append(meter.close())
        assert results[0].usage is not None
        assert (results[0].usage.prompt_tokens, results[0].usage.completion_tokens, results[0].events) == (9, 777, 2)
        assert all(result == results[0] for result in results)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_given_up_counts_by_its_size(streamed: bool) -> None:
    body = b'{"choices":[' + b'{"message":{}},' * 50_000 + b"{}]}"
    meter = OPENAI_CHAT.stream_meter() if streamed else OPENAI_CHAT.plain_meter()
    meter.feed(b"data: " + body + b"\n\n" if streamed else body)
    meter.fold()
    assert meter.behind
    meter.give_up()
    assert not meter.behind
    assert abs(meter.close().evidence.chars - len(body)) < 10


def test_an_image_in_an_answer_makes_no_flag() -> None:
    """However long it is: its outline has all that is read."""
    parts = [{"inlineData": {"mimeType": "image/png", "data": "A" * (3 << 20)}}, {"text": "Here it is."}]
    answer = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}], "usageMetadata": GEMINI_USAGE}
    short = {"candidates": [{"content": {"parts": [{"inlineData": {"data": "A"}}, parts[1]]}, "finishReason": "STOP"}]}
    results = [
        fed(GEMINI_STREAM.plain_meter(), [json.dumps(one).encode()])
        for one in (answer, short | {"usageMetadata": GEMINI_USAGE})
    ]
    assert results[0] == results[1]
    events = [b"[" + json.dumps(one).encode() + b"]" for one in (answer, short | {"usageMetadata": GEMINI_USAGE})]
    streamed = [fed(GEMINI_STREAM.stream_meter(JSON_ARRAY), [event]) for event in events]
    assert streamed[0] == streamed[1]
    assert streamed[0].flags == ()
