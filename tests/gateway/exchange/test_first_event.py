"""Which answers have failed before their first event, in every dialect, however their bytes are cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import cast

import pytest

from proxy.gateway.exchange.first_event import BEGUN, EMPTY, FAILURE_BYTES_MAX, UNKNOWN, FirstLook, first_look
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.metering.dialect import NO_HEADERS, Dialect
from proxy.metering.dialects import DIALECTS
from proxy.metering.metered import BodyMeter
from proxy.metering.tally import Tally
from tests.support.turns import nobody_waits

ERROR = {"type": "error", "error": {"type": "overloaded_error", "code": 529, "message": "overloaded"}}
COHERE_ERROR = {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "overloaded"}}
SSE, NDJSON = "text/event-stream", "application/x-ndjson"


def streams(dialect: Dialect) -> bool:
    """Whether it has event streams."""
    tally = type(dialect.tally(None))
    has_events = tally.read is not Tally.read and tally.outputs is not None
    return has_events and any(one.content_type == SSE for one in dialect.framings)


STREAMED = list(filter(streams, DIALECTS))
# Twice what a turn may take.
TURN_S_MAX = 0.04
NAMES = [one.name for one in STREAMED]
# Endpoints where any bytes are an answer.
NOT_JSON = ("speech", "transcriptions", "translations", "realtime")
CHUNK = {"id": "1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
# What an answer begins with when all is well.
BEGINS: tuple[tuple[str, object], ...] = (
    ("openai.chat", CHUNK),
    ("openai.completions", {"id": "1", "choices": [{"index": 0, "text": ""}]}),
    ("openai.responses", {"type": "response.created", "response": {"id": "1", "status": "in_progress"}}),
    ("anthropic.messages", {"type": "message_start", "message": {"id": "1", "usage": {"input_tokens": 3}}}),
    ("gemini.stream", {"candidates": [{"content": {"parts": [{"text": ""}]}}]}),
    ("cohere.chat", {"type": "message-start", "id": "1"}),
)


class Early:
    """Stands for an answer of which these pieces have come. `ends`: so does its body; else it breaks off."""

    def __init__(self, *pieces: bytes, ends: bool | None = True) -> None:
        self._pieces = pieces
        self._ends = ends

    async def early_payload(self) -> AsyncGenerator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._ends is None:
            await asyncio.Event().wait()
        if not self._ends:
            raise UpstreamFailedError("disconnected")


def meter_of(dialect: Dialect, content_type: str = SSE) -> BodyMeter:
    framing = dialect.framing(content_type, streamed=True)
    if framing is None:
        return dialect.plain_meter(NO_HEADERS, None)
    return dialect.stream_meter(framing, None, None, NO_HEADERS)


async def found(
    meter: BodyMeter, *pieces: bytes, ends: bool | None = True, limit_s: float = 5.0, may_be_empty: bool = False
) -> FirstLook:
    return await first_look(cast("Answer", Early(*pieces, ends=ends)), meter, limit_s, may_be_empty=may_be_empty)


def named(name: str) -> Dialect:
    return next(one for one in DIALECTS if one.name == name)


def sse(data: object, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


def cuts(wire: bytes) -> Iterator[tuple[bytes, ...]]:
    yield (wire,)
    yield tuple(wire[at : at + 1] for at in range(len(wire)))
    yield from ((wire[:at], wire[at:]) for at in range(1, len(wire), 7))


@pytest.mark.parametrize("dialect", STREAMED, ids=NAMES)
async def test_an_error_as_the_first_event_is_a_failure(dialect: Dialect) -> None:
    error = COHERE_ERROR if dialect.name == "cohere.chat" else ERROR
    for wire in (sse(error), sse(error, "error"), b": wait\n\n" + sse(error, "error")):
        for pieces in cuts(wire):
            assert (await found(meter_of(dialect), *pieces, ends=None)).failed is not None, pieces


@pytest.mark.parametrize("dialect", STREAMED, ids=NAMES)
async def test_an_answer_without_an_event_is_a_failure(dialect: Dialect) -> None:
    for wire in (b"", b"\n\n", b": wait\n\n", b"data: [DONE]\n\n", b"data: null\n\n", b"<html>no</html>"):
        for pieces in cuts(wire):
            assert (await found(meter_of(dialect), *pieces)).failed is not None, pieces


@pytest.mark.parametrize(("name", "event"), BEGINS)
async def test_the_first_event_of_an_answer_is_none(name: str, event: object) -> None:
    for pieces in cuts(sse(event)):
        assert await found(meter_of(named(name)), *pieces, ends=None) == BEGUN, "it is not looked at any longer"
    error = COHERE_ERROR if name == "cohere.chat" else ERROR
    for pieces in cuts(sse(event) + sse(error, "error")):
        assert await found(meter_of(named(name)), *pieces, ends=None) == BEGUN, "the error is not the first event"


@pytest.mark.parametrize("empty", [{"choices": []}, {"id": "", "choices": [], "prompt_filter_results": [{}]}])
async def test_an_event_without_choices_leaves_it_to_the_next(empty: object) -> None:
    for pieces in cuts(sse(empty) + sse(ERROR)):
        assert await found(meter_of(named("openai.chat")), *pieces, ends=None) == FirstLook("error_event")
    for pieces in cuts(sse(empty) + sse(CHUNK)):
        assert await found(meter_of(named("openai.chat")), *pieces, ends=None) == BEGUN
    for pieces in cuts(sse(empty) + b"data: [DONE]\n\n"):
        assert await found(meter_of(named("openai.chat")), *pieces) == FirstLook(EMPTY)


async def test_lines_of_json() -> None:
    for name in ("ollama.chat", "ollama.generate"):
        assert (await found(meter_of(named(name), NDJSON), b'{"error":"no memory"}\n', ends=None)).failed is not None
        assert await found(meter_of(named(name), NDJSON), b"") == FirstLook(EMPTY)
        line = b'{"model":"m","response":"","message":{"content":""},"done":false}\n'
        assert await found(meter_of(named(name), NDJSON), line, ends=None) == BEGUN


@pytest.mark.parametrize("dialect", DIALECTS, ids=[one.name for one in DIALECTS])
async def test_a_plain_answer_is_an_error_or_empty(dialect: Dialect) -> None:
    if not any(name in dialect.name for name in NOT_JSON):
        for body in (b"", b"null", json.dumps(ERROR).encode()):
            assert (await found(meter_of(dialect, "application/json"), body)).failed is not None, body


async def test_who_says_nothing_and_who_says_much_are_relayed() -> None:
    meter = meter_of(named("openai.chat"))
    assert await found(meter, ends=None, limit_s=0.01) == UNKNOWN
    assert await found(meter_of(named("openai.chat")), b": wait\n\n", ends=False) == UNKNOWN, "it broke off"
    assert await found(meter_of(named("openai.chat")), b": wait\n\n" * 3_000, ends=True) == UNKNOWN


@pytest.mark.parametrize("part", [b"\n", b": \n", b"data:\n", b"data: {}\n\n", b'data: {"choices":[]}\n\n'])
async def test_whatever_comes_before_the_first_event_stops_nobody(part: bytes) -> None:
    wire = part * (FAILURE_BYTES_MAX // len(part) + 1)

    async def looked_at() -> None:
        assert await found(meter_of(named("openai.chat")), wire, ends=None, limit_s=5.0) in (UNKNOWN, BEGUN)

    await nobody_waits(looked_at, lambda: TURN_S_MAX)


ABOUT_THE_REQUEST: tuple[object, ...] = (
    {"error": {"type": "BadRequestError", "code": 400, "message": "maximum context length"}},
    {"error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "m"}},
    {"type": "error", "error": {"type": "invalid_request_error", "message": "m"}},
    {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "m"}},
    {"error": {"code": "413", "message": "m"}},
)
ABOUT_THE_PROVIDER: tuple[object, ...] = (
    {"error": {"type": "server_error", "code": 500, "message": "m"}},
    {"error": {"type": "invalid_request_error", "code": 429, "message": "m"}},
    {"error": {"code": 404, "status": "NOT_FOUND", "message": "m"}},
    {"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
    {"error": "no memory"},
)


async def test_an_error_about_the_request_is_no_failure_of_the_provider() -> None:
    """Each provider would answer so, and a client could make any of them look broken to all others."""
    for error in ABOUT_THE_REQUEST:
        assert await found(meter_of(named("openai.chat")), sse(error), ends=None) == BEGUN, error
        body = json.dumps(error).encode()
        assert await found(meter_of(named("openai.chat"), "application/json"), body) == BEGUN, error
    for error in ABOUT_THE_PROVIDER:
        assert (await found(meter_of(named("openai.chat")), sse(error), ends=None)).failed is not None, error


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_an_answer_that_is_made_in_the_background_has_no_output_yet(status: str) -> None:
    body = {"id": "resp_1", "object": "response", "status": status, "background": True, "output": [], "usage": None}
    meter = meter_of(named("openai.responses"), "application/json")
    assert await found(meter, json.dumps(body).encode()) == BEGUN


async def test_a_transcription_of_silence_is_an_answer() -> None:
    for body, look in ((b'{"text":""}', UNKNOWN), (b'{"error":{"message":"m"}}', FirstLook("error_body"))):
        meter = meter_of(named("openai.transcriptions"), "application/json")
        assert await found(meter, body, may_be_empty=True) in (look, BEGUN)
