"""OpenAI's responses over a WebSocket: what a client asks for, and whose each event is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.http import errors
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.dialects.openai_responses.socket import MADE_MAX, STREAMS_MAX
from proxy.metering.meter import StreamMeter
from proxy.metering.request import InvalidField
from proxy.metering.socket import NO_EXCHANGE, ClientMessage, EventPhase, ExchangeKind, ProviderEvent, SocketWire
from proxy.metering.usage import PromptEvidence, Usage
from proxy.metering.wire.framing import MessageFramer
from tests.metering.fixtures import fed, wrong_field

USAGE = {"input_tokens": 30, "output_tokens": 20, "total_tokens": 50}
CREATE = {"type": "response.create", "model": "m", "input": "Was kostet das?"}


def new_wire() -> SocketWire:
    assert OPENAI_RESPONSES.socket is not None
    return OPENAI_RESPONSES.socket.wire()


def event(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, "sequence_number": 1, **fields}).encode()


def about(kind: str, response_id: str = "resp_1", **fields: Any) -> bytes:
    return event(kind, response={"id": response_id, "status": "in_progress"}, **fields)


L = {"stream_id": "left"}


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        (about("response.created"), ProviderEvent(EventPhase.BEGINS, answer_id="resp_1")),
        (
            about("response.created", **L),
            ProviderEvent(EventPhase.BEGINS, "left", stream_id="left", answer_id="resp_1"),
        ),
        (about("response.queued"), ProviderEvent(EventPhase.CONTINUES, answer_id="resp_1")),
        (about("response.in_progress"), ProviderEvent(EventPhase.CONTINUES, answer_id="resp_1")),
        (event("response.output_text.delta", delta="x"), ProviderEvent(EventPhase.CONTINUES)),
        (
            event("response.output_text.delta", delta="x", **L),
            ProviderEvent(EventPhase.CONTINUES, "left", stream_id="left"),
        ),
        (event("response.output_item.done", item={}), ProviderEvent(EventPhase.CONTINUES)),
        (event("response.web_search_call.searching"), ProviderEvent(EventPhase.CONTINUES, is_billable=False)),
        (about("response.completed"), ProviderEvent(EventPhase.ENDS, answer_id="resp_1")),
        (about("response.incomplete"), ProviderEvent(EventPhase.ENDS, answer_id="resp_1")),
        (about("response.failed"), ProviderEvent(EventPhase.ENDS, answer_id="resp_1")),
        (
            event("error", status=429, error={"code": "x"}, **L),
            ProviderEvent(EventPhase.FAILS, "left", stream_id="left", status=429),
        ),
        (event("error", status="x"), ProviderEvent(EventPhase.FAILS)),
        (event("response.steer.accepted", steer={"id": "s"}), NO_EXCHANGE),
        (event("codex.rate_limits", plan="x"), NO_EXCHANGE),
        (
            event("compaction.done", usage={"input_tokens": 5}),
            ProviderEvent(EventPhase.ENDS, "u:compaction.done", ExchangeKind.UNKNOWN),
        ),
        (b"{", ProviderEvent(EventPhase.CONTINUES, is_billable=False)),
        (b"7", ProviderEvent(EventPhase.CONTINUES, is_billable=False)),
    ],
)
def test_whose_an_event_is(message: bytes, heard: ProviderEvent) -> None:
    assert new_wire().parse(message) == heard


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ({}, "type"),
        ({"type": ["response.create"]}, "type"),
        ({"type": "RESPONSE.CREATE", "model": "m"}, "type"),
        ({"type": "response.create"}, "model"),
        (CREATE | {"background": True}, "background"),
        ({"type": "response.create", "response": {"model": "m"}}, "response"),
        (CREATE | {"response": {"model": "n"}}, "response"),
        (CREATE | {"response": []}, "response"),
        ({"type": "response.steer", "previous_response_id": 5}, "previous_response_id"),
        (CREATE | {"stream_id": ""}, "stream_id"),
        (CREATE | {"stream_id": "x" * 257}, "stream_id"),
        (CREATE | {"stream_id": 5}, "stream_id"),
        (CREATE | {"max_output_tokens": 0}, "max_output_tokens"),
        (CREATE | {"input": 5}, "input"),
    ],
)
def test_a_bad_message_names_the_field(document: dict[str, Any], param: str) -> None:
    assert wrong_field(new_wire().read_message, document) == param


@pytest.mark.parametrize(
    ("more", "most"),
    [
        ({}, None),
        ({"max_output_tokens": 9}, 9),
        ({"generate": False}, 0),
        ({"generate": True, "max_output_tokens": 9}, 9),
        ({"prompt_cache_options": {"prewarm": True}, "generate": True}, 0),
    ],
)
def test_a_warm_up_is_reserved_without_an_output(more: dict[str, Any], most: int | None) -> None:
    asked = new_wire().read_message(CREATE | more)
    assert asked.facts is not None
    assert (asked.facts.model, asked.facts.completion_tokens_max, asked.facts.streamed) == ("m", most, True)
    assert asked.facts.prompt.chars_latin == 15


def test_whose_response_a_message_is_about_must_be_looked_up_unless_it_is_of_this_connection() -> None:
    wire = new_wire()
    steer = {"type": "response.steer", "previous_response_id": "resp_1", "input": "x"}
    assert wire.read_message({"type": "session.ping"}) == ClientMessage()
    assert wire.read_message(steer) == ClientMessage(continues="resp_1")
    wire.parse(about("response.created"))
    assert wire.read_message(steer) == ClientMessage()
    asked = wire.read_message(CREATE | {"previous_response_id": "resp_1"}).facts
    assert asked is not None
    assert (asked.context_tokens, asked.continues) == (0, None), "it runs still"


def test_what_steers_is_in_the_prompt_of_what_the_provider_goes_on_with() -> None:
    wire = new_wire()
    for lane in ({}, L):
        wire.read_message(CREATE | lane)
        wire.parse(about("response.created", f"of{len(lane)}", **lane))
    wire.read_message({"type": "response.steer", "previous_response_id": "another's", "input": "länger"})
    for text in ("kürzer!", "bitte"):
        wire.read_message({"type": "response.steer", "previous_response_id": "of1", "input": text})
    created = wire.parse(about("response.created", "next", **L))
    assert wire.facts_of(wire.parse(about("response.created", "other"))).prompt == PromptEvidence(), "of another lane"
    prompt = wire.facts_of(created).prompt
    assert (prompt.messages, prompt.chars_latin) == (2, 12)
    assert wire.facts_of(created).prompt == PromptEvidence(), "once"


def test_what_could_not_steer_is_in_no_prompt() -> None:
    wire = new_wire()
    wire.read_message(CREATE)
    wire.parse(about("response.created"))
    wire.read_message({"type": "response.steer", "previous_response_id": "resp_1", "input": "kürzer"})
    wire.parse(event("response.steer.failed", steer={"previous_response_id": "resp_1"}))
    assert wire.facts_of(wire.parse(about("response.created", "next"))).prompt == PromptEvidence()


def test_what_steers_after_the_end_is_in_the_prompt_of_the_request_that_goes_on() -> None:
    wire = new_wire()
    wire.read_message(CREATE)
    wire.ended(wire.parse(about("response.completed")), Usage(30, None, 20))
    wire.read_message({"type": "response.steer", "previous_response_id": "resp_1", "input": "kürzer"})
    wire.parse(event("response.steer.pending", steer={"previous_response_id": "resp_1"}))
    asked = wire.read_message(CREATE | {"previous_response_id": "resp_1"}).facts
    assert asked is not None
    assert (asked.prompt.messages, asked.prompt.chars_latin, asked.context_tokens) == (2, 21, 50)
    assert wire.facts_of(wire.parse(about("response.created", "next"))).prompt == PromptEvidence()


def test_a_request_goes_up_with_the_provider_s_model_and_all_else() -> None:
    document = CREATE | {"stream_id": "left", "generate": False}
    assert new_wire().upstream(document, upstream_model="up") == document | {"model": "up"}


def test_a_lane_has_its_own_requests() -> None:
    wire = new_wire()
    wire.read_message(CREATE | {"max_output_tokens": 5})
    wire.read_message(CREATE | {"stream_id": "left", "max_output_tokens": 7, "model": "n"})
    steered = wire.facts_of(wire.parse(about("response.created", **L)))
    assert (steered.model, steered.completion_tokens_max, steered.prompt) == ("n", 7, PromptEvidence())
    assert wire.facts_of(wire.parse(about("response.created"))).model == "m"
    assert wire.facts_of(wire.parse(about("response.created", stream_id="right"))).model == "", "nobody asked there"


def test_lanes_are_bounded() -> None:
    wire = new_wire()
    for number in range(STREAMS_MAX):
        wire.read_message(CREATE | {"stream_id": f"lane-{number}"})
    wire.read_message(CREATE)
    wire.read_message(CREATE | {"stream_id": "lane-3"})
    with pytest.raises(InvalidField, match="stream_id"):
        wire.read_message(CREATE | {"stream_id": "one more"})


def test_a_prompt_has_what_the_response_before_it_had() -> None:
    wire = new_wire()
    wire.ended(wire.parse(about("response.completed")), Usage(30, None, 20))
    asked = wire.read_message(CREATE | {"previous_response_id": "resp_1"}).facts
    assert asked is not None
    assert (asked.context_tokens, asked.continues) == (50, None), "made on this connection"
    asked = wire.read_message(CREATE | {"previous_response_id": "resp_0"}).facts
    assert asked is not None
    assert (asked.context_tokens, asked.continues) == (None, "resp_0"), "whose it is must be looked up"
    for number in range(2 * MADE_MAX):
        wire.ended(ProviderEvent(EventPhase.ENDS, answer_id=f"resp-{number}"), Usage(1))
    assert len(wire._responses) == MADE_MAX  # type: ignore[attr-defined]


def test_an_error_has_the_shape_of_the_provider_s() -> None:
    refusal = errors.unknown_model("m")
    fields = {"type": "invalid_request_error", "code": "model_not_found", "message": refusal.message, "param": "model"}
    assert new_wire().error(refusal, ClientMessage(stream_id="left")) == {
        "type": "error", "status": 404, "error": fields, "stream_id": "left",
    }  # fmt: skip
    assert new_wire().error(refusal, None) == {"type": "error", "status": 404, "error": fields}


def test_each_message_is_an_event_of_the_stream() -> None:
    response = {"id": "resp_1", "status": "completed", "usage": USAGE, "output": []}
    messages = (
        about("response.created"), event("response.output_text.delta", output_index=0, delta="Drei"),
        event("response.completed", response=response),
    )  # fmt: skip
    metered = fed(StreamMeter(new_wire().tally(ExchangeKind.ANSWER), MessageFramer()), messages, fold=True)
    assert (metered.usage, metered.events, metered.evidence.chars) == (Usage(30, None, 20, None, 50), 3, 4)
    assert metered.complete
