"""The definition of a dialect: the wire format of one endpoint.

Invariant: every dialect can be metered, and only dialects have routes. To add a dialect, write its modules in
`dialects/` with a `Tally` and a `Dialect`, and add it to the list of dialects. Routes, settings and span names are made
from that list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

from proxy.metering.held_text import AnswerText
from proxy.metering.meter import JsonMeter, StreamMeter
from proxy.metering.metered import BodyMeter
from proxy.metering.refusal import OPENAI_ERRORS, ErrorShape
from proxy.metering.request import RequestFacts, with_model
from proxy.metering.socket import Socket
from proxy.metering.tally import Tally
from proxy.metering.wire.framing import SSE, Framing

NAME = "{model}"
"""placeholder of the model's name in a path"""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Facts(Protocol):
    """Reads a request."""

    def __call__(self, document: dict[str, Any], named: str | None = None) -> RequestFacts:
        """`named`: the model in the path, if any. Raises InvalidField."""


class Rewrite(Protocol):
    """Turns the client's document into the provider's."""

    def __call__(self, document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]: ...


class AnswerEditor(Protocol):
    """Strips the injected usage event from a stream, or writes the cost into its usage. All other bytes are unchanged,
    and no other complete event is held."""

    stripped: int
    """number of stripped events"""
    follows_meter: bool
    """each of `pieces` is metered before it is fed"""

    @property
    def idle(self) -> bool:
        """True between two events: a whole event without usage may bypass the editor."""

    def pieces(self, payload: bytes) -> Sequence[bytes]:
        """`payload`, cut after each event whose cost is requested from the meter."""

    def feed(self, payload: bytes) -> bytes:
        """Returns the bytes that may be sent to the client now."""

    def close(self) -> bytes:
        """The body has ended. Returns the held bytes, unless they are the usage event."""


class KeyHeader(StrEnum):
    """The header of a provider's API key."""

    AUTHORIZATION = "authorization"
    """sent as a bearer token"""
    X_API_KEY = "x-api-key"
    X_GOOG_API_KEY = "x-goog-api-key"
    API_KEY = "api-key"


class RequestBody(StrEnum):
    """The content type of a request body, which determines its codec."""

    JSON = "json"
    MULTIPART = "multipart/form-data"
    """fields are strings (lists of strings if the name ends with []), files are `Upload`s"""
    EITHER = "either"
    """a form if it has a file, else JSON"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One endpoint: its paths, its reader of requests, its meters of answers, and the shape of its errors."""

    name: str
    """family and endpoint: `openai.chat`"""
    paths: tuple[str, ...]
    """paths for clients, with NAME for the model; the first one is the entry's `endpoint`"""
    facts: Facts
    tally: Callable[[bool | None], Tally]
    """called with `cumulative`: whether each text repeats all before it; None: detected"""
    errors: ErrorShape = OPENAI_ERRORS
    upstream_path: str = field(init=False)
    """path to append to a provider's base URL, with NAME for the upstream model"""
    appended: str = ""
    """`upstream_path`; empty: the first path without its first segment, a version that the base URL has"""
    operation: str = "chat"
    """`gen_ai.operation.name` of its spans; OpenTelemetry's name if there is one"""
    measured: Callable[[RequestFacts, dict[str, Any]], RequestFacts] | None = None
    """adds facts that take long, such as the length of a file; not for the event loop. None: there are none"""
    upstream_document: Rewrite = with_model
    framings: tuple[Framing, ...] = (SSE,)
    """framings of the endpoint's streams, selected by the answer's content type; the first one is the default"""
    ends: tuple[bytes, ...] = (b"[DONE]",)
    """parts of last events: a piece with one of them is metered at once, others some pieces later"""
    stripper: Callable[[], AnswerEditor] | None = None
    """strips the injected usage event; None: usage is never injected"""
    cost_path: tuple[str, ...] = ()
    """path of the usage object in an event of a stream, where the cost can be written; the cost of a JSON answer is in
    its `usage`; empty: costs are never written"""
    key_header: KeyHeader = KeyHeader.AUTHORIZATION
    """default header of the provider's API key"""
    request_body: RequestBody = RequestBody.JSON
    plain: Callable[[], BodyMeter] | None = None
    """creates the meter of unstreamed answers; None: they are JSON, for `tally`"""
    accepts: str = "text/event-stream, application/json"
    """the `Accept` header of requests"""
    headers_up: tuple[str, ...] = ()
    """request headers to forward, in addition to those that all dialects forward"""
    headers_down: tuple[str, ...] = ()
    """answer headers to forward, in addition to those that all dialects forward"""
    headers_read: tuple[str, ...] = ()
    """answer headers that its tally reads, in lower case"""
    credential_refusals: tuple[bytes, ...] = ()
    """parts of answers with status 403, in text or `headers_down`, that report a fault of the provider's credentials"""
    name_safe: str = "/:@+"
    """characters of the model's name that are not escaped in `upstream_path`"""
    query: tuple[str, ...] = ()
    """query parameters to forward; `name=value`: only with that value"""
    free: bool = False
    """the endpoint is free: its entries have a price of zero"""
    free_unpriced: bool = False
    """the endpoint is free if it has no price"""

    stores: bool = False
    """providers store answers, which are fetched at the path followed by the answer's id"""

    names_files: bool = False
    """requests can name files that are stored at the provider"""
    is_posted: bool = True
    """the paths take requests by POST"""
    socket: Socket | None = None
    """the WebSocket mode, at the same paths; None: there is none"""

    usage_member: str = "usage"
    """the member of an answer with its usage; empty: the answer itself"""

    def __post_init__(self) -> None:
        derived = self.paths[0].removeprefix("/").partition("/")[2]
        object.__setattr__(self, "upstream_path", self.appended or f"/{derived}")

    @property
    def endpoint(self) -> str:
        """The endpoint's name in an entry, independent of the model."""
        return self.paths[0]

    def framing(self, content_type: str, *, streamed: bool) -> Framing | None:
        """The framing of an answer with that content type (lower case, without parameters); None: the answer is no
        stream. `streamed`: a stream was requested. If unstreamed answers need not be JSON, only the content type
        decides."""
        for framing in self.framings:
            if content_type == framing.content_type and (streamed or content_type != _JSON_TYPE):
                return framing
        guessed = streamed and self.plain is None and content_type != _JSON_TYPE
        return self.framings[0] if guessed else None

    def stream_meter(
        self,
        framing: Framing = SSE,
        cumulative: bool | None = None,
        held: AnswerText | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> StreamMeter:
        """A meter for one stream. `held`: also holds the text. `headers`: those of the answer, by `headers_read`."""
        tally = self._tally_with(headers) if headers else self.tally
        meter = StreamMeter(tally, framing.framer(), cumulative)
        if held is not None:
            meter.tally.hold(held)
        return meter

    def plain_meter(self, headers: Mapping[str, str] = NO_HEADERS, held: AnswerText | None = None) -> BodyMeter:
        """A meter for one unstreamed answer. `held`, `headers`: as for a stream."""
        if self.plain is not None:
            return self.plain()
        meter = JsonMeter(self._tally_with(headers) if headers else self.tally)
        if held is not None:
            meter.hold(held)
        return meter

    def _tally_with(self, headers: Mapping[str, str]) -> Callable[[bool | None], Tally]:
        def tally(cumulative: bool | None) -> Tally:
            created = self.tally(cumulative)
            created.read_headers(headers)
            return created

        return tally


_JSON_TYPE = "application/json"
