"""The interface between a WebSocket session and a dialect: what a client's message asks for, and whose a provider's
event is.

One connection carries several exchanges: each answer of the provider is one, and so is whatever else it bills. Most
begin with a request of the client; some the provider begins by itself.

Invariants: pure. An event that bears output or usage is of an exchange, known or not: a session that opens the unknown
ones passes on nothing that is not metered, however it was asked for.
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


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What a client's message asks for."""

    facts: RequestFacts | None = None
    """of the answer that it asks for, an empty model: the session's; None: it asks for none"""
    lane: str = ""
    """requests of one lane are answered in their order"""
    event_id: str | None = None
    """by which an error names the message"""
    model: str | None = None
    """the session is to go on with this model"""
    transcriber: str | None = None
    """the client's audio is to be transcribed by this model"""
    continues: str | None = None
    """without `facts`: the id of a response that it is about, if that was not made on this connection"""


class Says(StrEnum):
    """What a provider's event says of an exchange."""

    BEGINS = auto()
    GOES_ON = auto()
    ENDS = auto()
    FAILS = auto()
    """a request was refused, or an answer fails"""
    NOTHING = auto()


class ExchangeKind(StrEnum):
    """What the provider bills."""

    ANSWER = auto()
    TRANSCRIPT = auto()
    """of the client's audio, by another model"""
    UNKNOWN = auto()
    """an event of an unknown type that has output or usage, and is the whole exchange"""


class Heard(msgspec.Struct, frozen=True, gc=False):
    """A provider's event."""

    says: Says
    key: str = ""
    """of the running exchange that it is of"""
    kind: ExchangeKind = ExchangeKind.ANSWER
    lane: str = ""
    """whose oldest request it may be the answer to"""
    answer_id: str | None = None
    bears: bool = True
    """it has output or usage: if its exchange is not known, one is opened"""
    blames: str | None = None
    """FAILS: the id of the client's message that it is about; None: not said"""
    status: int | None = None
    """FAILS: as of HTTP"""


NOTHING_SAID = Heard(Says.NOTHING)


def counts(usage: dict[str, Any] | None) -> bool:
    """Whether a usage of an unknown kind says that something was used."""
    return usage is not None and any(isinstance(count, int | float) and count for count in usage.values())


class SocketWire(Protocol):
    """Reads the messages of one session, in their order."""

    stated_model: str | None
    """the model that serves, as the provider states it"""
    transcriber: str | None
    """the model that transcribes the client's audio"""

    def ask(self, document: dict[str, Any]) -> Ask:
        """A client's message. Raises InvalidField."""

    def upstream(self, document: dict[str, Any], *, upstream_model: str) -> dict[str, Any]:
        """A client's message that names a model, with the provider's name of it."""

    def hear(self, message: bytes) -> Heard:
        """A provider's message. Never raises."""

    def begun(self, heard: Heard) -> RequestFacts:
        """Of an exchange that the provider has begun by itself. An empty model: the session's."""

    def tally(self, kind: ExchangeKind) -> Callable[[bool | None], Tally]:
        """How an exchange is counted."""

    def ended(self, heard: Heard, usage: Usage) -> None:
        """An exchange has ended with this usage: what it left in the conversation is in later prompts."""

    def error(self, refusal: Refusal, ask: Ask | None) -> dict[str, Any]:
        """The event that refuses a client's message; None: it is about the session."""


@dataclass(frozen=True, slots=True)
class Socket:
    """How an endpoint speaks over a WebSocket."""

    wire: Callable[[], SocketWire]
    model_query: str = ""
    """the query parameter with the session's model; empty: each request names its own"""
