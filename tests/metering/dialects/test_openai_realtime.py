"""OpenAI's Realtime: every shape of an event and a client's message, whose each event is, and the rule of its usage."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from msgspec import structs

from proxy.http import errors
from proxy.metering.dialects.openai_realtime.session import AUDIO_ITEMS_MAX, OPENAI_REALTIME, RealtimeWire
from proxy.metering.meter import StreamMeter
from proxy.metering.metered import Metered
from proxy.metering.socket import NO_EXCHANGE, ClientMessage, EventPhase, ExchangeKind, ProviderEvent
from proxy.metering.usage import NO_USAGE, Reading, Usage, UsageSource
from proxy.metering.wire.framing import MessageFramer
from tests.metering.fixtures import fed, read_answer, reading_of, wrong_field

USAGE = {
    "total_tokens": 253, "input_tokens": 132, "output_tokens": 121,
    "input_token_details": {
        "text_tokens": 119, "audio_tokens": 13, "image_tokens": 0, "cached_tokens": 74,
        "cached_tokens_details": {"text_tokens": 64, "audio_tokens": 10, "image_tokens": 0},
    },
    "output_token_details": {"text_tokens": 30, "audio_tokens": 91},
}  # fmt: skip
COUNTED = Usage(
    132, 74, 121, None, 253, audio_prompt_tokens=13, audio_completion_tokens=91, image_prompt_tokens=0,
    cached_audio_tokens=10, cached_image_tokens=0,
)  # fmt: skip
TRANSCRIBED = {
    "type": "tokens", "total_tokens": 48, "input_tokens": 36, "output_tokens": 12,
    "input_token_details": {"audio_tokens": 36, "text_tokens": 0},
}  # fmt: skip
TRANSCRIPT = "conversation.item.input_audio_transcription"


def event(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, "event_id": "event_9", **fields}, ensure_ascii=False).encode()


def of(response_id: str, kind: str, **fields: Any) -> bytes:
    return event(f"response.{kind}", response_id=response_id, item_id="item_1", output_index=0, **fields)


def begun(response_id: str = "resp_1") -> bytes:
    return event("response.created", response={"id": response_id, "status": "in_progress", "output": []})


def done(response_id: str = "resp_1", status: str = "completed", usage: Any = USAGE, **more: Any) -> bytes:
    response = {"id": response_id, "object": "realtime.response", "status": status, "usage": usage, **more}
    return event("response.done", response=response)


def audio(length_ms: int, per_s: int = 48_000) -> str:
    return b64encode(bytes(length_ms * per_s // 1000)).decode()


def metered(*messages: bytes, kind: ExchangeKind = ExchangeKind.ANSWER, wire: RealtimeWire | None = None) -> Metered:
    """As a session meters one exchange."""
    return fed(StreamMeter((wire or RealtimeWire()).tally(kind), MessageFramer()), messages, fold=True)


def read(result: Metered, *, accepted: bool = True, asked: Usage = NO_USAGE, most: int | None = None) -> Reading:
    return reading_of(result, prompt_tokens_estimate=40, completion_tokens_max=most, accepted=accepted, asked=asked)


@pytest.mark.parametrize("names", [
    ("output_text.delta", "output_audio_transcript.delta", "output_audio.delta"),
    ("text.delta", "audio_transcript.delta", "audio.delta"),
], ids=["today", "beta"])  # fmt: skip
def test_a_response_is_billed_as_it_says(names: tuple[str, str, str]) -> None:
    text, transcript, spoken = names
    result = metered(
        begun(), of("resp_1", text, delta="Gut"), of("resp_1", transcript, delta="en Tag"),
        of("resp_1", spoken, delta=audio(1000)), of("resp_1", transcript.replace("delta", "done"), transcript="en Tag"),
        done(),
    )  # fmt: skip
    assert (result.usage, result.complete, result.failed, result.flags) == (COUNTED, True, None, ())
    assert result.evidence.chars == len("Guten Tag")
    assert result.unknown_usage_fields.paths == ()
    assert (result.response_id, result.finish_reason) == ("resp_1", "completed")
    assert read(result).source is UsageSource.REPORTED


@pytest.mark.parametrize(
    ("status", "more", "failed", "reason"),
    [
        ("cancelled", {"status_details": {"type": "cancelled", "reason": "turn_detected"}}, None, "turn_detected"),
        ("incomplete", {"status_details": {"reason": "max_output_tokens"}}, None, "max_output_tokens"),
        ("failed", {"status_details": {"error": {"type": "server_error"}}}, "error_event", "failed"),
        ("failed", {}, "error_event", "failed"),
    ],
)
def test_a_response_that_ended_otherwise_has_its_usage(
    status: str, more: dict[str, Any], failed: str | None, reason: str
) -> None:
    result = metered(begun(), of("resp_1", "output_text.delta", delta="Gut"), done(status=status, **more))
    assert (result.usage, result.failed, result.finish_reason) == (COUNTED, failed, reason)
    assert result.complete


@pytest.mark.parametrize(
    ("messages", "audio_tokens", "text_at_least"),
    [
        ([of("resp_1", "output_audio.delta", delta=audio(1000))], 20, 0),
        ([of("resp_1", "output_audio.delta", delta=audio(20))] * 3, 2, 0),  # 60 ms: begun is counted
        (
            [
                of("resp_1", "output_audio_transcript.delta", delta="Guten Tag, was darf es sein?"),
                of("resp_1", "output_audio.delta", delta=audio(1500)),
            ],
            30,
            3,
        ),
        ([of("resp_1", "function_call_arguments.delta", delta='{"city":"Ulm"}')], None, 2),
        ([of("resp_1", "output_text.delta", delta="Gut")], None, 1),
    ],
)
def test_a_response_that_broke_off_costs_what_was_seen_of_it(
    messages: list[bytes], audio_tokens: int | None, text_at_least: int
) -> None:
    result = metered(begun(), *messages)
    assert result.generated
    found = read(result)
    assert found.source is UsageSource.ESTIMATED
    assert found.usage.audio_completion_tokens == audio_tokens
    completion = found.usage.completion_tokens
    assert completion is not None
    assert completion >= (audio_tokens or 0) + text_at_least > 0
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (40, 40 + completion)


def test_telephones_speak_in_fewer_bytes() -> None:
    wire = RealtimeWire()
    wire.parse(event("session.updated", session={"audio": {"output": {"format": {"type": "audio/pcmu"}}}}))
    result = metered(of("resp_1", "output_audio.delta", delta=audio(1000, 8_000)), wire=wire)
    assert read(result).usage.audio_completion_tokens == 20


def test_what_was_counted_gives_way_to_what_is_reported() -> None:
    """Even if it is less."""
    result = metered(begun(), of("resp_1", "output_audio.delta", delta=audio(60_000)), done())
    assert (result.usage, result.flags) == (COUNTED, ())


def test_a_response_of_which_nothing_came_costs_nothing_of_its_own() -> None:
    result = metered(begun())
    assert not result.generated
    assert read(result, accepted=False) == Reading(NO_USAGE, UsageSource.NONE)


def test_a_finished_item_counts_where_there_were_no_deltas() -> None:
    said = {"type": "message", "content": [{"type": "output_audio", "transcript": "Guten Tag"}]}
    called = {"type": "function_call", "name": "weather", "arguments": '{"city":"Ulm"}'}
    result = metered(
        begun(), event("response.output_item.done", response_id="resp_1", output_index=0, item=said),
        event("response.output_item.done", response_id="resp_1", output_index=1, item=called),
    )  # fmt: skip
    evidence = result.evidence
    assert (evidence.chars - evidence.tool_chars, evidence.tool_calls) == (len("Guten Tag"), 1)
    assert evidence.tool_chars == len('weather{"city":"Ulm"}')


@pytest.mark.parametrize(
    "usage",
    [
        USAGE | {"input_tokens": -1},
        USAGE | {"output_tokens": "12"},
    ],
)
def test_an_invalid_count_is_estimated(usage: dict[str, Any]) -> None:
    result = metered(begun(), of("resp_1", "output_text.delta", delta="Gut"), done(usage=usage))
    assert result.flags == ("usage_invalid",)
    assert read(result).source is UsageSource.ESTIMATED


def test_numbers_that_nobody_reads_are_named() -> None:
    result = metered(begun(), done(usage=USAGE | {"video_tokens": 7}, surcharge={"usd": 2}))
    assert result.unknown_usage_fields.paths == ("surcharge.usd", "usage.video_tokens")


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (TRANSCRIBED, Usage(36, None, 12, None, 48, audio_prompt_tokens=36)),
        ({"type": "duration", "seconds": 2.5}, Usage(audio_ms=2500)),
    ],
    ids=["tokens", "seconds"],
)
def test_a_transcription_is_billed_as_it_says(usage: dict[str, Any], counted: Usage) -> None:
    heard = event(
        f"{TRANSCRIPT}.completed", item_id="item_7", content_index=0, transcript="Was kostet das?", usage=usage
    )
    result = metered(
        event(f"{TRANSCRIPT}.delta", item_id="item_7", content_index=0, delta="Was "),
        heard,
        kind=ExchangeKind.TRANSCRIPT,
    )
    assert (result.usage, result.complete, result.unknown_usage_fields.paths) == (counted, True, ())
    assert result.evidence.chars == len("Was "), "the whole text repeats what came before"
    assert read(result).source is UsageSource.REPORTED
    assert metered(heard, kind=ExchangeKind.TRANSCRIPT).evidence.chars == len("Was kostet das?")


def test_a_transcription_without_a_usage_is_one_of_the_audio_that_was_sent() -> None:
    wire = RealtimeWire()
    wire.parse(event("session.updated", session={"audio": {"input": {"transcription": {"model": "ear-1"}}}}))
    wire.read_message({"type": "input_audio_buffer.append", "audio": audio(3000)})
    wire.parse(event("input_audio_buffer.committed", item_id="item_7"))
    message = event(f"{TRANSCRIPT}.completed", item_id="item_7", content_index=0, transcript="Was kostet das?")
    heard = wire.parse(message)
    facts = wire.facts_of(heard)
    assert (facts.model, facts.asked, facts.context_tokens) == (
        "ear-1", Usage(audio_ms=3000, audio_prompt_tokens=30), 30,
    )  # fmt: skip
    found = read(metered(message, kind=heard.kind), asked=facts.asked)
    assert (found.source, found.usage.audio_ms, found.usage.audio_prompt_tokens) == (UsageSource.ESTIMATED, 3000, 30)
    assert found.usage.completion_tokens


def test_a_usage_can_be_read_again_from_the_ledger() -> None:
    for raw, counted in (
        (USAGE, COUNTED),
        (TRANSCRIBED, Usage(36, None, 12, None, 48, audio_prompt_tokens=36)),
        ({"type": "duration", "seconds": 2.5}, Usage(audio_ms=2500)),
    ):
        assert read_answer(OPENAI_REALTIME, {"usage": raw}).usage == counted


# -- the exchange of an event

A1 = "r:resp_1"
CONTINUES, ENDS = EventPhase.CONTINUES, EventPhase.ENDS
FAILED = ProviderEvent(EventPhase.FAILS, status=400)


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        (begun(), ProviderEvent(EventPhase.BEGINS, A1, answer_id="resp_1")),
        (of("resp_1", "output_text.delta", delta="x"), ProviderEvent(CONTINUES, A1, answer_id="resp_1")),
        (of("resp_1", "mcp_call.in_progress"), ProviderEvent(CONTINUES, A1, answer_id="resp_1", is_billable=False)),
        (of("resp_1", "shimmer.delta", delta="x"), ProviderEvent(CONTINUES, A1, answer_id="resp_1")),
        (done(), ProviderEvent(ENDS, A1, answer_id="resp_1")),
        (event("response.output_text.delta", delta="x"), ProviderEvent(CONTINUES, "")),
        (
            event(f"{TRANSCRIPT}.delta", item_id="i", content_index=1, delta="x"),
            ProviderEvent(CONTINUES, "t:i:1", ExchangeKind.TRANSCRIPT, answer_id="i:1"),
        ),
        (
            event(f"{TRANSCRIPT}.completed", item_id="i", transcript="x"),
            ProviderEvent(ENDS, "t:i:0", ExchangeKind.TRANSCRIPT, answer_id="i:0"),
        ),
        (
            event(f"{TRANSCRIPT}.failed", item_id="i", error={"message": "no"}),
            ProviderEvent(ENDS, "t:i:0", ExchangeKind.TRANSCRIPT, answer_id="i:0", is_billable=False),
        ),
        (event("error", error={"type": "server_error", "event_id": None}), ProviderEvent(EventPhase.FAILS, status=500)),
        (
            event("error", error={"type": "invalid_request_error", "event_id": "mine"}),
            ProviderEvent(EventPhase.FAILS, failed_event_id="mine", status=400),
        ),
        (event("error", error={"param": "response.voice"}), FAILED),
        (event("error", error={"code": "conversation_already_has_active_response"}), FAILED),
        (event("error", error={"code": "response_cancel_not_active"}), NO_EXCHANGE),
        (event("error", error={"code": "input_audio_buffer_commit_empty"}), NO_EXCHANGE),
        (event("error", error={"param": "session.voice"}), NO_EXCHANGE),
        (event("notes.made", usage={"input_tokens": 3}), ProviderEvent(ENDS, "u:notes.made", ExchangeKind.UNKNOWN)),
        (event("notes.made", usage={"input_tokens": 0}), NO_EXCHANGE),
        (event("rate_limits.updated", rate_limits=[{"limit": 5}]), NO_EXCHANGE),
        (event("session.created", session={}), NO_EXCHANGE),
        (b"{", ProviderEvent(CONTINUES, is_billable=False)),
        (b"\xff\xfe", ProviderEvent(CONTINUES, is_billable=False)),
        (b"[1]", ProviderEvent(CONTINUES, is_billable=False)),
        (b'{"type":1,"response":2}', ProviderEvent(CONTINUES, is_billable=False)),
    ],
)  # fmt: skip
def test_whose_an_event_is(message: bytes, heard: ProviderEvent) -> None:
    assert RealtimeWire().parse(message) == heard


def test_an_event_without_an_id_is_of_the_last_response_that_began() -> None:
    wire = RealtimeWire()
    wire.parse(begun("resp_5"))
    assert wire.parse(event("response.text.delta", delta="x")).key == "r:resp_5"


@pytest.mark.parametrize("more", [{"usage": USAGE}, {"response": {"id": "x", "usage": USAGE}}])
def test_an_unknown_event_with_a_usage_is_read_and_said(more: Any) -> None:
    found = event("conversation.distilled", **more)
    assert RealtimeWire().parse(found) == ProviderEvent(ENDS, "u:conversation.distilled", ExchangeKind.UNKNOWN)
    result = metered(found, kind=ExchangeKind.UNKNOWN)
    assert (result.usage, result.flags) == (COUNTED, ("unknown_event",))


def test_an_unknown_event_with_output_is_counted_and_said() -> None:
    found = event("translation.delta", delta="Was kostet das?")
    assert RealtimeWire().parse(found) == ProviderEvent(ENDS, "u:translation.delta", ExchangeKind.UNKNOWN)
    result = metered(found, kind=ExchangeKind.UNKNOWN)
    assert (result.evidence.chars, result.flags) == (15, ("unknown_event",))


def test_what_is_no_event_is_the_audio_of_what_runs() -> None:
    wire = RealtimeWire()
    wire.parse(begun())
    assert wire.parse(bytes(9)) == ProviderEvent(CONTINUES, A1, is_billable=False)
    result = metered(begun(), bytes(48_000))
    assert result.usage is not None
    assert result.usage.audio_completion_tokens == 20


def test_a_finished_text_counts_unless_it_had_deltas() -> None:
    whole = of("resp_1", "output_text.done", text="Was kostet das?")
    assert metered(begun(), whole, whole).evidence.chars == 15
    delta = of("resp_1", "output_text.delta", delta="Was kostet das?")
    assert metered(begun(), delta, whole).evidence.chars == 15
    spoken = of("resp_1", "output_audio_transcript.done", transcript="Drei")
    assert metered(begun(), spoken).evidence.chars == 4


# -- what a client asks for


@pytest.mark.parametrize(
    ("response", "limit"),
    [
        (None, 500), ({}, 500), ({"max_output_tokens": 7}, 7), ({"max_response_output_tokens": 8}, 8),
        ({"max_output_tokens": "inf"}, None), ({"max_output_tokens": None}, 500),
    ],
)  # fmt: skip
def test_the_limit_of_a_response_is_its_own_or_the_session_s(response: Any, limit: int | None) -> None:
    wire = RealtimeWire()
    wire.parse(event("session.updated", session={"max_output_tokens": 500}))
    asked = wire.read_message({"type": "response.create", "event_id": "e", "response": response})
    assert asked.facts is not None
    assert (asked.facts.completion_tokens_max, asked.facts.streamed, asked.event_id) == (limit, True, "e")
    begun_alone = wire.facts_of(ProviderEvent(EventPhase.BEGINS, A1))
    assert begun_alone.completion_tokens_max == 500


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ({}, "type"),
        ({"type": 7}, "type"),
        ({"type": "Response.Create"}, "type"),
        ({"type": " response.create"}, "type"),
        ({"type": "response.create", "response": []}, "response"),
        ({"type": "response.create", "response": {"max_output_tokens": "all"}}, "response.max_output_tokens"),
        ({"type": "response.create", "response": {"max_output_tokens": 0}}, "response.max_output_tokens"),
        ({"type": "response.create", "response": {"model": "dearer"}}, "response.model"),
        ({"type": "response.create", "response": {"input": {}}}, "response.input"),
        ({"type": "response.create", "response": {"input": [1]}}, "response.input[0]"),
        ({"type": "response.create", "event_id": 5}, "event_id"),
        ({"type": "session.update", "session": []}, "session"),
        ({"type": "session.update", "session": {"model": 5}}, "model"),
        ({"type": "session.update", "session": {"max_output_tokens": True}}, "session.max_output_tokens"),
        ({"type": "conversation.item.create", "item": 7}, "item"),
    ],
)
def test_a_bad_message_names_the_field(document: dict[str, Any], param: str) -> None:
    assert wrong_field(RealtimeWire().read_message, document) == param


@pytest.mark.parametrize(
    ("session", "model", "transcriber"),
    [
        ({"audio": {"input": {"transcription": {"model": "ear-1"}}}}, None, "ear-1"),
        ({"input_audio_transcription": {"model": "ear-1"}, "model": "m2"}, "m2", "ear-1"),
        ({"audio": {"input": {"transcription": None}}}, None, None),
        ({"model": None}, None, None),
        ({"audio": [], "instructions": "x"}, None, None),
    ],
)
def test_the_models_of_a_session(session: dict[str, Any], model: str | None, transcriber: str | None) -> None:
    wire = RealtimeWire()
    kinds = ("session.update", "transcription_session.update")
    assert [wire.read_message({"type": kind, "session": session}) for kind in kinds] == [
        ClientMessage(model=model, transcriber=transcriber)
    ] * 2
    wire.parse(event("session.updated", session=session))
    assert (wire.stated_model, wire.transcriber) == (model, transcriber)


def test_a_session_s_model_goes_up_by_the_provider_s_name() -> None:
    update = {"type": "session.update", "session": {"model": "voice", "voice": "alloy"}}
    sent = RealtimeWire().upstream(update, upstream_model="up-1")
    assert sent == {"type": "session.update", "session": {"model": "up-1", "voice": "alloy"}}


def test_a_prompt_is_what_was_said_before_and_what_came_since() -> None:
    wire = RealtimeWire()
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Was kostet das?"}]}
    wire.read_message({"type": "conversation.item.create", "item": item})
    wire.read_message({"type": "input_audio_buffer.append", "audio": audio(5000)})
    wire.parse(event("input_audio_buffer.speech_started", audio_start_ms=1000))
    wire.parse(event("input_audio_buffer.speech_stopped", audio_end_ms=3000))
    first = wire.facts_of(ProviderEvent(EventPhase.BEGINS, A1))
    assert (first.prompt.messages, first.prompt.chars_latin, first.context_tokens) == (1, 15, 0), "not yet committed"
    wire.parse(event("input_audio_buffer.committed", item_id="item_7"))
    second = wire.facts_of(ProviderEvent(EventPhase.BEGINS, A1))
    assert (second.context_tokens, second.asked) == (20, Usage(audio_prompt_tokens=20)), "the two seconds of speech"
    heard = wire.parse(done(conversation_id="conv_1"))
    wire.ended(heard, COUNTED)
    asked = wire.read_message({"type": "response.create"}).facts
    assert asked is not None
    assert (asked.context_tokens, asked.prompt.messages, asked.asked) == (253, 0, NO_USAGE)


def test_a_response_outside_the_conversation_leaves_nothing_in_it() -> None:
    wire = RealtimeWire()
    wire.ended(wire.parse(done(conversation_id="conv_1")), Usage(100, None, 20))
    own = {"conversation": "none", "input": [{"type": "message", "content": [{"type": "input_text", "text": "abc"}]}]}
    asked = wire.read_message({"type": "response.create", "response": own}).facts
    assert asked is not None
    assert (asked.context_tokens, asked.prompt.chars_latin) == (0, 3)
    wire.ended(wire.parse(done("resp_2", conversation_id=None)), Usage(1000, None, 20))
    again = wire.read_message({"type": "response.create"}).facts
    assert again is not None
    assert again.context_tokens == 120


def test_a_reference_to_an_item_is_as_long_as_the_conversation() -> None:
    wire = RealtimeWire()
    wire.ended(wire.parse(done()), Usage(100, None, 20))
    own = {"input": [{"type": "item_reference", "id": "item_1"}]}
    asked = wire.read_message({"type": "response.create", "response": own}).facts
    assert asked is not None
    assert asked.context_tokens == 120


def test_what_is_kept_of_a_conversation_is_bounded() -> None:
    wire = RealtimeWire()
    for number in range(AUDIO_ITEMS_MAX + 50):
        wire.read_message({"type": "input_audio_buffer.append", "audio": audio(100)})
        wire.parse(event("input_audio_buffer.committed", item_id=f"item_{number}"))
    assert len(wire._audio_items_ms) == AUDIO_ITEMS_MAX


def test_an_error_has_the_shape_of_the_provider_s() -> None:
    wire = RealtimeWire()
    refusal = errors.model_not_allowed("m")
    assert wire.error(refusal, ClientMessage(event_id="mine")) == {
        "type": "error", "event_id": "event_proxy_1",
        "error": {
            "type": "permission_error", "code": "model_not_allowed", "message": refusal.message, "param": "model",
            "event_id": "mine",
        },
    }  # fmt: skip
    assert wire.error(refusal, None)["event_id"] == "event_proxy_2"


def test_a_message_that_is_too_long_to_read_counts_by_its_size() -> None:
    meter = StreamMeter(RealtimeWire().tally(ExchangeKind.ANSWER), MessageFramer(1000))
    meter.feed(of("resp_1", "output_text.delta", delta="x" * 5000))
    assert meter.close().evidence.chars >= 5000
    assert structs.asdict(meter.close())["flags"] == ("event_too_long",)
