"""The interface between a WebSocket session and a dialect: it reads the client's messages and the provider's events.

One connection carries several exchanges: each answer of the provider is one, and so is everything else that it bills.
Most begin with a request of the client; the provider begins some by itself.

Invariants: pure. An event with output or usage belongs to an exchange. The session opens an exchange for one that
belongs to none, so that it passes on nothing unmetered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any, Protocol

import msgspec

from proxy.metering.refusal import Refusal
from proxy.metering.request import RequestFacts
from proxy.metering.tally import Tally
from proxy.metering.usage import Usage


class ClientMessage(msgspec.Struct, frozen=True, gc=False):
    """The parts of a client's message that the session needs."""

    facts: RequestFacts | None = None
    """the facts of the requested answer, with an empty model for the session's; None: no answer is requested"""
    stream_id: str = ""
    """requests with one stream id are answered in their order"""
    event_id: str | None = None
    """the id by which an error event names the message"""
    model: str | None = None
    """the model that the session changes to"""
    transcriber: str | None = None
    """the model that transcribes the client's audio from now on"""
    continues: str | None = None
    """without `facts`: the id of the response that the message belongs to, if it was not made on this connection"""


class EventPhase(StrEnum):
    """The effect of a provider's event on its exchange."""

    BEGINS = auto()
    CONTINUES = auto()
    ENDS = auto()
    FAILS = auto()
    """a request was refused, or an answer fails"""
    NONE = auto()
    """the event belongs to no exchange"""


class ExchangeKind(StrEnum):
    """Kinds of exchanges that a provider bills."""

    ANSWER = auto()
    TRANSCRIPT = auto()
    """a transcription of the client's audio, by another model"""
    UNKNOWN = auto()
    """an event of an unknown type that has output or usage, and is the whole exchange"""


class ProviderEvent(msgspec.Struct, frozen=True, gc=False):
    """The exchange that an event of the provider belongs to, and the effect on it."""

    phase: EventPhase
    key: str = ""
    """identifies the running exchange"""
    kind: ExchangeKind = ExchangeKind.ANSWER
    stream_id: str = ""
    """the event may answer the oldest request with this stream id"""
    answer_id: str | None = None
    is_billable: bool = True
    """the event has output or usage: an exchange is opened for it if none runs"""
    failed_event_id: str | None = None
    """FAILS: the id of the client's message that failed; None: not reported"""
    status: int | None = None
    """FAILS: the HTTP status of such an error"""


NO_EXCHANGE = ProviderEvent(EventPhase.NONE)


def counts(usage: dict[str, Any] | None) -> bool:
    """Whether a usage of an unknown kind has a count other than 0."""
    return usage is not None and any(isinstance(count, int | float) and count for count in usage.values())


class SocketWire(Protocol):
    """Reads the messages of one session, in their order."""

    stated_model: str | None
    """the model that serves, as the provider states it"""
    transcriber: str | None
    """the model that transcribes the client's audio"""

    def read_message(self, document: dict[str, Any]) -> ClientMessage:
        """Read a client's message. Raises InvalidField."""

    def upstream(self, document: dict[str, Any], *, upstream_model: str) -> dict[str, Any]:
        """A client's message that names a model, with the provider's name of the model."""

    def parse(self, message: bytes) -> ProviderEvent:
        """Read a provider's message. Never raises."""

    def facts_of(self, event: ProviderEvent) -> RequestFacts:
        """The facts of an exchange that the provider has begun by itself. An empty model: the session's."""

    def tally(self, kind: ExchangeKind) -> Callable[[bool | None], Tally]:
        """The tally of an exchange of this kind."""

    def ended(self, event: ProviderEvent, usage: Usage) -> None:
        """Count the usage of an ended exchange towards later prompts of the conversation."""

    def error(self, refusal: Refusal, message: ClientMessage | None) -> dict[str, Any]:
        """The event that refuses a client's message; None: the error is about the session."""


@dataclass(frozen=True, slots=True)
class Socket:
    """The WebSocket mode of an endpoint."""

    wire: Callable[[], SocketWire]
    model_query: str = ""
    """the query parameter with the session's model; empty: each request names its own"""
