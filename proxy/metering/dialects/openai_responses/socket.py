"""OpenAI's responses over a WebSocket: each `response.create` is a request, its events are those of the stream.

Requests with one `stream_id` are answered one after the other; other streams run at the same time. A message that
steers a running response makes the provider begin another one by itself.
https://developers.openai.com/api/docs/guides/websocket-mode

Invariants: an event belongs to the response that runs with its stream id. A response that a message continues or
steers was made on this connection, or its owner is looked up. The state of a stream is bounded, and has no text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.dialects.openai_responses.request import RESPONSE_CREATE, continued, facts, kind_of, prompt_of
from proxy.metering.dialects.openai_responses.wire import LAST
from proxy.metering.held_text import NO_PROMPT_TEXT
from proxy.metering.refusal import Refusal
from proxy.metering.request import InvalidField, RequestFacts, flag, with_model
from proxy.metering.socket import NO_EXCHANGE, ClientMessage, EventPhase, ExchangeKind, ProviderEvent, counts
from proxy.metering.tally import Tally
from proxy.metering.usage import PromptEvidence, Usage
from proxy.metering.wire.json_reader import reader

# OpenAI's own limit.
STREAMS_MAX = 32
STREAM_ID_CHARS_MAX = 256
# Types of events that begin or end a response.
_PHASES = {"response.created": EventPhase.BEGINS, **dict.fromkeys(LAST, EventPhase.ENDS)}
# Responses of this connection that requests may continue.
MADE_MAX = 256
# All but the text, which is of one request.
_COUNTS = tuple(name for name in PromptEvidence.__struct_fields__ if name != "text")


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    usage: dict[str, Any] | None = None


class _SocketEvent(msgspec.Struct, gc=False):
    """The members of an event that identify its response."""

    type: str | None = None
    stream_id: str | None = None
    status: Any = None
    response: _Response | None = None
    delta: Any = None
    text: str | None = None
    item: Any = None
    usage: dict[str, Any] | None = None
    error: Any = None


_read = reader(_SocketEvent)


class _MadeResponse(msgspec.Struct, gc=False):
    """A response of this connection."""

    stream_id: str
    tokens: int = 0
    """tokens of prompt and output, after the response has ended"""


class ResponsesWire:
    """Reads the messages of one session."""

    stated_model: str | None = None
    transcriber: str | None = None

    def __init__(self, tally: Callable[[bool | None], Tally], unknown: Callable[[bool | None], Tally]) -> None:
        """`tally`: creates the tally of a response. `unknown`: that of an event of an unknown type."""
        self._tally, self._unknown = tally, unknown
        self._facts: OrderedDict[str, RequestFacts] = OrderedDict()
        """stream id → its last request, without the prompt"""
        self._steered: dict[str, PromptEvidence] = {}
        """stream id → the prompt of steering messages, for the next response"""
        self._responses: OrderedDict[str, _MadeResponse] = OrderedDict()
        """response id → response"""
        self._context = 0  # tokens of the response that ended last

    def read_message(self, document: dict[str, Any]) -> ClientMessage:
        if kind_of(document) != RESPONSE_CREATE:
            return self._more(document)
        if "response" in document:  # LiteLLM would read the request in there instead
            raise InvalidField("response", "is not supported: put the fields of the request next to 'type'")
        stream_id = self._stream_id(document.get("stream_id"))
        if flag(document, "background"):
            raise InvalidField("background", "is not supported over a WebSocket")
        asked = facts(document)
        changes: dict[str, Any] = {"streamed": True}
        if _generates_nothing(document):
            changes["completion_tokens_max"] = 0
        if (response := self._responses.get(asked.continues or "")) is not None:
            prompt = _sum(asked.prompt, self._steered.pop(stream_id, None))
            changes |= {"context_tokens": response.tokens, "continues": None, "prompt": prompt}
        asked = structs.replace(asked, **changes)
        self._facts[stream_id] = structs.replace(asked, prompt=PromptEvidence())
        return ClientMessage(asked, stream_id=stream_id)

    def _more(self, document: dict[str, Any]) -> ClientMessage:
        """Read a message that requests no response, but may steer one. Raises InvalidField."""
        response_id, stream_id = continued(document), document.get("stream_id")
        response = self._responses.get(response_id or "")
        if response is not None:
            response_id, stream_id = None, response.stream_id
        stream_id = stream_id or ""
        known = response_id is None and isinstance(stream_id, str) and stream_id in self._facts
        if known and isinstance(document.get("input"), str | list):
            prompt = structs.replace(prompt_of(document), text=NO_PROMPT_TEXT)
            self._steered[stream_id] = _sum(prompt, self._steered.get(stream_id))
        return ClientMessage(continues=response_id)

    def _stream_id(self, stream_id: object) -> str:
        if stream_id is None:
            return ""
        if not isinstance(stream_id, str) or not 0 < len(stream_id) <= STREAM_ID_CHARS_MAX:
            raise InvalidField("stream_id", f"must be a string of 1 to {STREAM_ID_CHARS_MAX} characters")
        if stream_id not in self._facts and len(self._facts) > STREAMS_MAX:
            raise InvalidField("stream_id", f"is more than the {STREAMS_MAX} that a connection may have")
        return stream_id

    def upstream(self, document: dict[str, Any], *, upstream_model: str) -> dict[str, Any]:
        """A request with the provider's name of its model."""
        return with_model(document, upstream_model=upstream_model, inject_usage=False)

    def parse(self, message: bytes) -> ProviderEvent:
        event = _read(message)
        if event is None or event.type is None:
            return ProviderEvent(EventPhase.CONTINUES, is_billable=False)
        kind, stream_id = event.type, event.stream_id or ""
        answer_id = None if event.response is None else event.response.id
        if answer_id is not None and kind.startswith("response."):
            self._note(answer_id, stream_id)
        if kind == "error":
            status = event.status if isinstance(event.status, int) else None
            return ProviderEvent(EventPhase.FAILS, stream_id, stream_id=stream_id, status=status)
        if kind.startswith("response.") and not kind.startswith("response.steer."):
            phase = _PHASES.get(kind, EventPhase.CONTINUES)
            output = (event.delta, event.text, event.item, event.response, event.usage)
            is_billable = phase is not EventPhase.CONTINUES or any(one is not None for one in output)
            return ProviderEvent(phase, stream_id, stream_id=stream_id, answer_id=answer_id, is_billable=is_billable)
        if kind == "response.steer.failed":
            self._steered.pop(stream_id, None)
        if event.delta or counts(event.usage) or (event.response is not None and counts(event.response.usage)):
            return ProviderEvent(EventPhase.ENDS, f"u:{kind}", ExchangeKind.UNKNOWN, stream_id=stream_id)
        return NO_EXCHANGE

    def facts_of(self, event: ProviderEvent) -> RequestFacts:
        """The facts of a response that the provider has begun by itself: those of the last one with its stream id."""
        before = self._facts.get(event.stream_id)
        if before is None:
            return RequestFacts(
                model="", streamed=True, completion_tokens_max=None, prompt=PromptEvidence(), context_tokens=0
            )
        prompt = self._steered.pop(event.stream_id, PromptEvidence())
        return structs.replace(before, prompt=prompt, context_tokens=self._context, continues=None)

    def tally(self, kind: ExchangeKind) -> Callable[[bool | None], Tally]:
        return self._unknown if kind is ExchangeKind.UNKNOWN else self._tally

    def ended(self, event: ProviderEvent, usage: Usage) -> None:
        """Count the usage of an ended response towards the prompts of responses that continue it."""
        if event.answer_id is None:
            return
        self._context = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
        self._note(event.answer_id, event.stream_id).tokens = self._context

    def _note(self, response_id: str, stream_id: str) -> _MadeResponse:
        response = self._responses.get(response_id)
        if response is None:
            response = self._responses[response_id] = _MadeResponse(stream_id)
            if len(self._responses) > MADE_MAX:
                self._responses.popitem(last=False)
        return response

    def error(self, refusal: Refusal, message: ClientMessage | None) -> dict[str, Any]:
        fields = {"type": refusal.kind, "code": refusal.code, "message": refusal.message, "param": refusal.param}
        event: dict[str, Any] = {"type": "error", "status": refusal.status, "error": fields}
        if message is not None and message.stream_id:
            event["stream_id"] = message.stream_id
        return event


def _sum(prompt: PromptEvidence, other: PromptEvidence | None) -> PromptEvidence:
    """The counts of both, and the text of the first."""
    if other is None:
        return prompt
    return structs.replace(prompt, **{name: getattr(prompt, name) + getattr(other, name) for name in _COUNTS})


def _generates_nothing(document: dict[str, Any]) -> bool:
    """Whether the request only prepares later ones."""
    options = document.get("prompt_cache_options")
    return document.get("generate") is False or (isinstance(options, dict) and options.get("prewarm") is True)
