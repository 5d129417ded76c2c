"""OpenAI's responses over a WebSocket: each `response.create` is a request, its events are those of the stream.

Requests of one lane (`stream_id`) are answered one after the other, and lanes beside each other. A message that steers
a running response makes the provider begin another one by itself.
https://developers.openai.com/api/docs/guides/websocket-mode

Invariants: an event is of the response that runs in its lane. A response that a message goes on with, or is about, was
made on this connection, or is to be looked up. What is kept of a lane is bounded, and no text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.dialects.openai_responses.request import continued, facts, prompt_of
from proxy.metering.dialects.openai_responses.wire import LAST
from proxy.metering.held_text import NO_PROMPT_TEXT
from proxy.metering.refusal import Refusal
from proxy.metering.request import InvalidField, RequestFacts, flag, with_model
from proxy.metering.socket import NOTHING_SAID, Ask, ExchangeKind, Heard, Says, counts
from proxy.metering.tally import Tally
from proxy.metering.usage import PromptEvidence, Usage
from proxy.metering.wire.json_reader import reader

RESPONSE_CREATE = "response.create"
# OpenAI's own limit.
LANES_MAX = 32
LANE_CHARS_MAX = 256
# Responses of this connection that requests may go on with.
MADE_MAX = 256
# All but the text, which is of one request.
_COUNTS = tuple(name for name in PromptEvidence.__struct_fields__ if name != "text")


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    usage: dict[str, Any] | None = None


class _Said(msgspec.Struct, gc=False):
    """What is read of an event to know whose it is."""

    type: str | None = None
    stream_id: str | None = None
    status: Any = None
    response: _Response | None = None
    delta: Any = None
    text: str | None = None
    item: Any = None
    usage: dict[str, Any] | None = None
    error: Any = None


_read = reader(_Said)


class _Made(msgspec.Struct, gc=False):
    """A response of this connection."""

    lane: str
    tokens: int = 0
    """of the prompt and the output, once it has ended"""


class ResponsesWire:
    """Reads the messages of one session."""

    stated_model: str | None = None
    transcriber: str | None = None

    def __init__(self, tally: Callable[[bool | None], Tally], unknown: Callable[[bool | None], Tally]) -> None:
        """`tally`: of a response. `unknown`: of an event of an unknown type."""
        self._tally, self._unknown = tally, unknown
        self._facts: OrderedDict[str, RequestFacts] = OrderedDict()
        """of the last request of each lane, without its prompt"""
        self._steered: dict[str, PromptEvidence] = {}
        """lane → what was said there to a response, for the next one"""
        self._made: OrderedDict[str, _Made] = OrderedDict()
        """by id"""
        self._context = 0  # tokens of the response that ended last

    def ask(self, document: dict[str, Any]) -> Ask:
        """A client's message. Raises InvalidField."""
        kind = document.get("type")
        if not isinstance(kind, str):
            raise InvalidField("type", "must be a string")
        if kind != RESPONSE_CREATE:
            if kind.strip().casefold() == RESPONSE_CREATE:
                raise InvalidField("type", f"must be written '{RESPONSE_CREATE}'")
            return self._more(document)
        if "response" in document:  # LiteLLM would read the request in there instead
            raise InvalidField("response", "is not supported: the fields of a request stand beside 'type'")
        lane = self._lane(document.get("stream_id"))
        if flag(document, "background"):
            raise InvalidField("background", "is not supported over a WebSocket")
        asked = facts(document)
        changes: dict[str, Any] = {"streamed": True}
        if _generates_nothing(document):
            changes["completion_tokens_max"] = 0
        if (made := self._made.get(asked.continues or "")) is not None:
            prompt = _sum(asked.prompt, self._steered.pop(lane, None))
            changes |= {"context_tokens": made.tokens, "continues": None, "prompt": prompt}
        asked = structs.replace(asked, **changes)
        self._facts[lane] = structs.replace(asked, prompt=PromptEvidence())
        return Ask(asked, lane=lane)

    def _more(self, document: dict[str, Any]) -> Ask:
        """A message that asks for no response, but may say more to one. Raises InvalidField."""
        response_id, lane = continued(document), document.get("stream_id")
        made = self._made.get(response_id or "")
        if made is not None:
            response_id, lane = None, made.lane
        lane = lane or ""
        known = response_id is None and isinstance(lane, str) and lane in self._facts
        if known and isinstance(document.get("input"), str | list):
            said = structs.replace(prompt_of(document), text=NO_PROMPT_TEXT)
            self._steered[lane] = _sum(said, self._steered.get(lane))
        return Ask(continues=response_id)

    def _lane(self, stream_id: object) -> str:
        if stream_id is None:
            return ""
        if not isinstance(stream_id, str) or not 0 < len(stream_id) <= LANE_CHARS_MAX:
            raise InvalidField("stream_id", f"must be a string of 1 to {LANE_CHARS_MAX} characters")
        if stream_id not in self._facts and len(self._facts) > LANES_MAX:
            raise InvalidField("stream_id", f"is more than the {LANES_MAX} that a connection may have")
        return stream_id

    def upstream(self, document: dict[str, Any], *, upstream_model: str) -> dict[str, Any]:
        """A request, with the provider's name of its model."""
        return with_model(document, upstream_model=upstream_model, inject_usage=False)

    def hear(self, message: bytes) -> Heard:
        """A provider's message."""
        said = _read(message)
        if said is None or said.type is None:
            return Heard(Says.GOES_ON, bears=False)
        kind, lane = said.type, said.stream_id or ""
        answer_id = None if said.response is None else said.response.id
        if answer_id is not None and kind.startswith("response."):
            self._note(answer_id, lane)
        if kind == "error":
            return Heard(Says.FAILS, lane, lane=lane, status=said.status if isinstance(said.status, int) else None)
        if kind == "response.created":
            return Heard(Says.BEGINS, lane, lane=lane, answer_id=answer_id)
        if kind in LAST:
            return Heard(Says.ENDS, lane, lane=lane, answer_id=answer_id)
        if kind.startswith("response.") and not kind.startswith("response.steer."):
            bears = any(one is not None for one in (said.delta, said.text, said.item, said.response, said.usage))
            return Heard(Says.GOES_ON, lane, lane=lane, answer_id=answer_id, bears=bears)
        if kind == "response.steer.failed":
            self._steered.pop(lane, None)
        if said.delta or counts(said.usage) or (said.response is not None and counts(said.response.usage)):
            return Heard(Says.ENDS, f"u:{kind}", ExchangeKind.UNKNOWN, lane=lane)
        return NOTHING_SAID

    def begun(self, heard: Heard) -> RequestFacts:
        """Of a response that the provider has begun by itself: as the last one of its lane."""
        before = self._facts.get(heard.lane)
        if before is None:
            return RequestFacts(
                model="", streamed=True, completion_tokens_max=None, prompt=PromptEvidence(), context_tokens=0
            )
        prompt = self._steered.pop(heard.lane, PromptEvidence())
        return structs.replace(before, prompt=prompt, context_tokens=self._context, continues=None)

    def tally(self, kind: ExchangeKind) -> Callable[[bool | None], Tally]:
        """How an exchange is counted."""
        return self._unknown if kind is ExchangeKind.UNKNOWN else self._tally

    def ended(self, heard: Heard, usage: Usage) -> None:
        """A response has ended with this usage: all of it is in the prompt of those that go on with it."""
        if heard.answer_id is None:
            return
        self._context = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
        self._note(heard.answer_id, heard.lane).tokens = self._context

    def _note(self, response_id: str, lane: str) -> _Made:
        made = self._made.get(response_id)
        if made is None:
            made = self._made[response_id] = _Made(lane)
            if len(self._made) > MADE_MAX:
                self._made.popitem(last=False)
        return made

    def error(self, refusal: Refusal, ask: Ask | None) -> dict[str, Any]:
        """The event that refuses a client's message."""
        fields = {"type": refusal.kind, "code": refusal.code, "message": refusal.message, "param": refusal.param}
        event: dict[str, Any] = {"type": "error", "status": refusal.status, "error": fields}
        if ask is not None and ask.lane:
            event["stream_id"] = ask.lane
        return event


def _sum(prompt: PromptEvidence, other: PromptEvidence | None) -> PromptEvidence:
    """The counts of both, and the text of the first."""
    if other is None:
        return prompt
    return structs.replace(prompt, **{name: getattr(prompt, name) + getattr(other, name) for name in _COUNTS})


def _generates_nothing(document: dict[str, Any]) -> bool:
    """A request that only prepares what later ones need."""
    options = document.get("prompt_cache_options")
    return document.get("generate") is False or (isinstance(options, dict) and options.get("prewarm") is True)
