"""The dialect of Realtime, `GET /v1/realtime?model=…` as a WebSocket, and one session of it: the response of each
event, the model that transcribes the client's audio, and the next prompt.

Each response is an exchange, requested or begun by the provider, and so is each transcription of the client's audio,
which another model makes. A session itself costs nothing.

Invariants: responses and transcriptions are identified by the provider's ids. Of a conversation only counts are kept,
never texts, for a bounded number of items.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai_realtime.request import (
    PCM_BYTES_PER_S,
    SESSION_UPDATES,
    PendingInput,
    audio_ms,
    bytes_per_s,
    output_limit,
    own_input,
    transcriber_in,
)
from proxy.metering.dialects.openai_realtime.tally import MS_PER_PROMPT_TOKEN, RealtimeTally, TranscriptTally
from proxy.metering.dialects.openai_realtime.wire import Failure, RealtimeEvent, event_of
from proxy.metering.dialects.openai_responses.request import RESPONSE_CREATE, kind_of
from proxy.metering.refusal import Refusal
from proxy.metering.request import InvalidField, RequestFacts, model_of, object_in
from proxy.metering.socket import NO_EXCHANGE, ClientMessage, EventPhase, ExchangeKind, ProviderEvent, Socket, counts
from proxy.metering.tally import Tally
from proxy.metering.usage import NO_USAGE, PromptEvidence, Usage

# Items of audio whose transcription is awaited; a conversation commits one in some seconds.
AUDIO_ITEMS_MAX = 256
EVENT_ID_CHARS_MAX = 512
# In place of the name of a model that transcribes and was never named.
UNNAMED = "transcription"

_TRANSCRIPT = "conversation.item.input_audio_transcription."
_UNDONE = PromptEvidence()


class RealtimeWire:
    """Reads the messages of one session."""

    def __init__(self) -> None:
        self.stated_model: str | None = None
        self.transcriber: str | None = None
        self._limit: int | None = None
        self._bytes_per_s = {"input": PCM_BYTES_PER_S, "output": PCM_BYTES_PER_S}
        self._context = 0  # tokens of the conversation, as last reported
        self._pending = PendingInput()  # since then
        self._audio_ms = 0  # in the buffer, not in the conversation yet
        self._speech_ms = 0  # of it, as the provider has heard speech
        self._speech_from = 0
        self._audio_items_ms: OrderedDict[str, int] = OrderedDict()  # item of the client's audio → its length in ms
        self._last_key = ""
        self._in_conversation = True  # the last response that was done
        self._errors = 0

    # -- the client

    def read_message(self, document: dict[str, Any]) -> ClientMessage:
        kind, event_id = kind_of(document, *SESSION_UPDATES), document.get("event_id")
        if event_id is not None and not (isinstance(event_id, str) and len(event_id) <= EVENT_ID_CHARS_MAX):
            raise InvalidField("event_id", f"must be a string of at most {EVENT_ID_CHARS_MAX} characters")
        if kind == RESPONSE_CREATE:
            return ClientMessage(self._asked(object_in(document, "response")), event_id=event_id)
        if kind in SESSION_UPDATES:
            session = object_in(document, "session")
            output_limit(session, "session")
            model = None if session.get("model") is None else model_of(session)
            return ClientMessage(event_id=event_id, model=model, transcriber=transcriber_in(session)[1])
        if kind == "input_audio_buffer.append":
            self._audio_ms += audio_ms(document.get("audio"), self._bytes_per_s["input"])
        elif kind == "input_audio_buffer.clear":
            self._audio_ms = self._speech_ms = 0
        elif kind == "conversation.item.create":
            self._pending.add_item(object_in(document, "item"), self._bytes_per_s["input"])
        return ClientMessage(event_id=event_id)

    def _asked(self, response: dict[str, Any]) -> RequestFacts:
        if response.get("model") is not None:
            raise InvalidField("response.model", "is not supported: a session has one model")
        is_set, limit = output_limit(response, "response")
        items, pending, context = own_input(response), self._pending, self._context
        if items is not None:
            pending, context = PendingInput(), 0
            for item in items:
                pending.add_item(item, self._bytes_per_s["input"])
        if isinstance(text := response.get("instructions"), str):
            pending.add_text(text)
        pending.add_tools(response.get("tools"))
        return self._facts(limit if is_set else self._limit, pending, context)

    def _facts(self, limit: int | None, pending: PendingInput, context: int) -> RequestFacts:
        heard = pending.audio_tokens
        return RequestFacts(
            model="",
            streamed=True,
            completion_tokens_max=limit,
            prompt=pending.evidence(),
            asked=Usage(audio_prompt_tokens=heard) if heard else NO_USAGE,
            context_tokens=context + heard,
        )

    def upstream(self, document: dict[str, Any], *, upstream_model: str) -> dict[str, Any]:
        """An update of the session with the provider's name of its model."""
        return {**document, "session": {**document["session"], "model": upstream_model}}

    # -- the provider

    def parse(self, message: bytes) -> ProviderEvent:
        event = event_of(message)
        if event is None or event.type is None:
            return ProviderEvent(EventPhase.CONTINUES, self._last_key, is_billable=False)
        kind = event.type
        if kind.startswith("response."):
            return self._parse_response(kind, event)
        if kind.startswith(_TRANSCRIPT):
            return self._parse_transcript(kind, event)
        if kind == "error":
            return _parse_error(event.error or Failure())
        if event.session is not None and kind.rpartition(".")[2] in ("created", "updated"):
            self._parse_session(event.session)
        elif kind.startswith("input_audio_buffer."):
            self._parse_buffer(kind, event)
        elif event.delta or counts(event.usage) or (event.response is not None and counts(event.response.usage)):
            return ProviderEvent(EventPhase.ENDS, f"u:{kind}", ExchangeKind.UNKNOWN)
        return NO_EXCHANGE

    def _parse_response(self, kind: str, event: RealtimeEvent) -> ProviderEvent:
        response = event.response
        answer_id = event.response_id or (None if response is None else response.id)
        key = self._last_key if answer_id is None else f"r:{answer_id}"
        if kind == "response.created":
            self._last_key = key
            return ProviderEvent(EventPhase.BEGINS, key, answer_id=answer_id)
        is_billable = any(
            one is not None for one in (event.delta, event.text, event.transcript, event.item, response, event.usage)
        )
        ends = kind == "response.done"
        if ends and response is not None:
            self._in_conversation = response.conversation_id is not None
        phase = EventPhase.ENDS if ends else EventPhase.CONTINUES
        return ProviderEvent(phase, key, answer_id=answer_id, is_billable=is_billable)

    def _parse_transcript(self, kind: str, event: RealtimeEvent) -> ProviderEvent:
        heard_id = f"{event.item_id}:{event.content_index or 0}"
        what = kind.removeprefix(_TRANSCRIPT)
        phase = EventPhase.ENDS if what in ("completed", "failed") else EventPhase.CONTINUES
        return ProviderEvent(
            phase, f"t:{heard_id}", ExchangeKind.TRANSCRIPT, answer_id=heard_id, is_billable=what != "failed"
        )

    def _parse_session(self, session: dict[str, Any]) -> None:
        """Read the settings of the whole session."""
        model = session.get("model")
        if isinstance(model, str) and model:
            self.stated_model = model
        is_set, transcriber = transcriber_in(session)
        if is_set:
            self.transcriber = transcriber
        for side in self._bytes_per_s:
            self._bytes_per_s[side] = bytes_per_s(session, side) or self._bytes_per_s[side]
        try:
            is_set, limit = output_limit(session, "session")
        except InvalidField:
            is_set, limit = False, None
        if is_set:
            self._limit = limit

    def _parse_buffer(self, kind: str, event: RealtimeEvent) -> None:
        """Count the client's audio that enters the conversation: its speech, if the provider detects speech, else
        all."""
        if kind.endswith("speech_started"):
            self._speech_from = event.audio_start_ms or 0
        elif kind.endswith("speech_stopped"):
            self._speech_ms = max(0, (event.audio_end_ms or 0) - self._speech_from)
        elif kind.endswith("committed"):
            length_ms = self._speech_ms or self._audio_ms
            self._audio_ms = self._speech_ms = 0
            self._pending.audio_ms += length_ms
            if event.item_id is not None:
                self._audio_items_ms[event.item_id] = length_ms
                if len(self._audio_items_ms) > AUDIO_ITEMS_MAX:
                    self._audio_items_ms.popitem(last=False)

    # -- exchanges

    def facts_of(self, event: ProviderEvent) -> RequestFacts:
        """The facts of a response that the provider has begun by itself, or of a transcription."""
        if event.kind is not ExchangeKind.TRANSCRIPT:
            return self._facts(self._limit, self._pending, self._context)
        # At least a moment: a model that is priced by the hour is reserved for.
        length_ms = max(1, self._audio_items_ms.get(_item_of(event), self._audio_ms))
        return RequestFacts(
            model=self.transcriber or UNNAMED,
            streamed=True,
            completion_tokens_max=None,
            prompt=_UNDONE,
            asked=Usage(audio_ms=length_ms, audio_prompt_tokens=-(-length_ms // MS_PER_PROMPT_TOKEN)),
            context_tokens=-(-length_ms // MS_PER_PROMPT_TOKEN),
        )

    def tally(self, kind: ExchangeKind) -> Callable[[bool | None], Tally]:
        if kind is ExchangeKind.TRANSCRIPT:
            return TranscriptTally
        return partial(RealtimeTally, bytes_per_s=self._bytes_per_s["output"], unknown=kind is ExchangeKind.UNKNOWN)

    def ended(self, event: ProviderEvent, usage: Usage) -> None:
        """Count the usage of an ended response towards the next prompt, if it is in the conversation."""
        if event.kind is ExchangeKind.ANSWER and usage.prompt_tokens is not None and self._in_conversation:
            self._context = usage.prompt_tokens + (usage.completion_tokens or 0)
            self._pending = PendingInput()
        if event.kind is ExchangeKind.TRANSCRIPT:
            self._audio_items_ms.pop(_item_of(event), None)

    def error(self, refusal: Refusal, message: ClientMessage | None) -> dict[str, Any]:
        self._errors += 1
        return {
            "type": "error",
            "event_id": f"event_proxy_{self._errors}",
            "error": {
                "type": refusal.kind,
                "code": refusal.code,
                "message": refusal.message,
                "param": refusal.param,
                "event_id": None if message is None else message.event_id,
            },
        }


def _item_of(event: ProviderEvent) -> str:
    return (event.answer_id or "").rpartition(":")[0]


# Parts of the codes of errors that are not about a requested response.
_OF_OTHERS = ("cancel", "buffer", "item", "session")


def _parse_error(error: Failure) -> ProviderEvent:
    """Read an error. An error without a subject counts as the refusal of a request for a response; if a response begins
    nevertheless, the provider has begun it by itself."""
    code, param = error.code or "", error.param or ""
    if error.event_id is None and (
        any(part in code for part in _OF_OTHERS) or (param and not param.startswith("response"))
    ):
        return NO_EXCHANGE
    return ProviderEvent(
        EventPhase.FAILS, failed_event_id=error.event_id, status=500 if error.type == "server_error" else 400
    )


def _no_request(document: object, named: str | None = None) -> RequestFacts:
    raise AssertionError("it has no route for requests")


OPENAI_REALTIME = Dialect(
    name="openai.realtime",
    paths=("/v1/realtime",),
    operation="realtime",
    facts=_no_request,
    tally=RealtimeTally,
    query=("intent",),
    socket=Socket(RealtimeWire, model_query="model"),
    is_posted=False,
)
