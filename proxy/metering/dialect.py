"""A wire language as a route sees it. Law: what cannot be metered is not a dialect, and cannot be a route.

To add one: its modules in `dialects/`, with a `Tally` and a `Dialect`, and one line in the list of dialects. Routes,
providers' settings and names of spans are made from that list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from proxy.metering.meter import BodyMeter, JsonMeter, StreamMeter
from proxy.metering.refusal import ErrorShape
from proxy.metering.request import RequestFacts, with_model
from proxy.metering.tally import Tally
from proxy.metering.tokenizer_feed import TokenCounter
from proxy.metering.wire.framing import SSE, Framing

NAME = "{model}"
"""In a path: where the model's name stands."""


class Facts(Protocol):
    """Reads a request."""

    def __call__(self, document: dict[str, Any], named: str | None = None) -> RequestFacts:
        """`named`: the model that the path names. Raises InvalidField."""


class Rewrite(Protocol):
    """Makes the document that goes up from the client's."""

    def __call__(self, document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]: ...


class Stripper(Protocol):
    """Takes the injected usage event out of a stream. Holds no other event back once it is whole."""

    stripped: int
    """events taken out"""

    @property
    def idle(self) -> bool:
        """True between two events: a whole event may go to the client without passing through here."""

    def feed(self, payload: bytes) -> bytes:
        """What of everything so far may go to the client now."""

    def close(self) -> bytes:
        """The stream is over: what was still held, unless it is the usage event."""


class KeyHeader(StrEnum):
    """The header that takes a provider's key."""

    AUTHORIZATION = "authorization"
    """as a bearer's"""
    X_API_KEY = "x-api-key"
    X_GOOG_API_KEY = "x-goog-api-key"
    API_KEY = "api-key"


class RequestBody(StrEnum):
    """How a request's body is written, and so how it becomes a document and goes up again."""

    JSON = "json"
    MULTIPART = "multipart/form-data"
    """fields are strings (lists of them where the name ends with []), files are `Upload`s"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One endpoint's language: where it is asked, what a request says, how answers are metered, how it says no."""

    name: str
    """family and endpoint: `openai.chat`"""
    paths: tuple[str, ...]
    """the client's paths, with NAME where the model stands; the first is the entry's `endpoint`"""
    upstream_path: str
    """what is appended to a provider's base URL, with NAME where the upstream model is to stand"""
    facts: Facts
    tally: Callable[[bool | None], Tally]
    """`cumulative`: whether each text repeats all before it; None: found out, or never"""
    errors: ErrorShape
    operation: str = "chat"
    """`gen_ai.operation.name` of its spans, in OpenTelemetry's words as far as it has one"""
    upstream_document: Rewrite = with_model
    framings: tuple[Framing, ...] = (SSE,)
    """of its streams; an answer's content type says which, the first if it is none of them"""
    stripper: Callable[[], Stripper] | None = None
    """takes out what was asked for in the client's stead; None: usage is never asked for"""
    key_header: KeyHeader = KeyHeader.AUTHORIZATION
    """where providers want their key, unless their settings say otherwise"""
    request_body: RequestBody = RequestBody.JSON
    plain: Callable[[], BodyMeter] | None = None
    """meters answers that are no stream; None: they are JSON, for `tally`"""
    accepts: str = "text/event-stream, application/json"
    """what providers are told that is understood"""
    headers_up: tuple[str, ...] = ()
    """of the client's request, beside those that every language passes on"""
    headers_down: tuple[str, ...] = ()
    """of the provider's answer, likewise"""
    query: tuple[str, ...] = ()
    """names of the query that go up; `name=value`: it goes up with that value only"""
    free: bool = False
    """nobody bills anything for it: its exchanges are in the ledger with a price of zero"""
    free_unpriced: bool = False
    """likewise where no price is known"""

    @property
    def endpoint(self) -> str:
        """Its name in an entry: as many as there are dialects, whatever models are asked for."""
        return self.paths[0]

    def framing(self, content_type: str, *, streamed: bool) -> Framing | None:
        """How an answer of that type (lower case, bare) is to be read as a stream; None: it is none.

        `streamed`: a stream was asked for. Where other answers need not be JSON either, only their type tells.
        """
        for framing in self.framings:
            if content_type == framing.content_type and (streamed or content_type != _JSON_TYPE):
                return framing
        guessed = streamed and self.plain is None and content_type != _JSON_TYPE
        return self.framings[0] if guessed else None

    def stream_meter(
        self, framing: Framing = SSE, cumulative: bool | None = None, counter: TokenCounter | None = None
    ) -> StreamMeter:
        """For one stream. `counter`: counts the tokens of what it says, too."""
        meter = StreamMeter(self.tally, framing.framer(), cumulative)
        if counter is not None:
            meter.tally.count_with(counter)
        return meter

    def plain_meter(self) -> BodyMeter:
        """For one answer that is no stream."""
        return JsonMeter(self.tally) if self.plain is None else self.plain()


_JSON_TYPE = "application/json"
