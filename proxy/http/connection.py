"""A client's connection: aiohttp's, with immediate notifications for the running exchange.

On a disconnect aiohttp can only cancel the handler, which would also cancel work that must continue (a drain, a
settlement). Here the exchange gets a callback instead, and its task continues.

A malformed request head gets an error response in HTTP/1.1; then the connection is closed. Invariants: aiohttp's
message about the head is neither sent nor logged, since it quotes the client. Nothing of the head is quoted: of the
parser's message, only header names of a closed list are used.
"""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import HttpVersion, HttpVersion11, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import BadHttpMessage, BadStatusLine, InvalidHeader, InvalidURLError, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo
from multidict import CIMultiDictProxy

from proxy.http import errors
from proxy.http.errors import JSON_TYPE, ApiError, bad_request, malformed
from proxy.http.headers import SERVER
from proxy.metering.refusal import OPENAI_ERRORS, ErrorShape

# The path and query of a request: the longest known are Azure's, of some hundred bytes.
TARGET_BYTES_MAX = 8 * 1024
# One header: a token with hundreds of groups, or a browser's cookies for a whole domain.
FIELD_BYTES_MAX = 16 * 1024
FIELDS_MAX = 128
# All headers, as far as they have arrived while the head is incomplete.
HEAD_BYTES_MAX = 64 * 1024

# The parser reports this for a closed list of headers only.
_REPEATED = re.compile(r"Duplicate '([A-Za-z-]{1,20})' header found\.")
_TLS = b"\x16\x03"


class HeadTooLongError(Exception):
    """A head that has not ended within HEAD_BYTES_MAX."""


def refusal_of(error: BaseException | None, *, began: bytes) -> ApiError:
    """The response to a head that begins with `began` and that the parser refused with `error`."""
    if began.startswith(_TLS):
        return bad_request("This port speaks HTTP, and the request is HTTPS.", code="malformed_request")
    if isinstance(error, HeadTooLongError):
        return _too_large(f"The request's headers are together longer than {HEAD_BYTES_MAX} bytes.")
    if isinstance(error, LineTooLong):
        if error.args[1] == TARGET_BYTES_MAX:
            return ApiError(414, f"The URL is longer than {TARGET_BYTES_MAX} bytes.", code="url_too_long")
        return _too_large(f"A header of the request is longer than {FIELD_BYTES_MAX} bytes.")
    if isinstance(error, (BadStatusLine, InvalidURLError)):
        return bad_request("The request line is not well-formed HTTP/1.1.", code="malformed_request")
    if isinstance(error, InvalidHeader):
        return bad_request("A header of the request is not well-formed.", code="malformed_request")
    if isinstance(error, BadHttpMessage):
        return _of_message(error.message)
    return malformed()


def _of_message(message: str) -> ApiError:
    if message == "Too many headers received":
        return _too_large(f"The request has more than {FIELDS_MAX} headers.")
    if message.startswith("Missing 'Host'"):
        return bad_request("The request has no Host header.", param="Host", code="missing_header")
    if repeated := _REPEATED.fullmatch(message):
        name = repeated[1]
        return bad_request(f"The request has more than one {name} header.", param=name, code="duplicate_header")
    return malformed()


def _too_large(message: str) -> ApiError:
    return ApiError(431, message, code="headers_too_large")


# A new connection must send its first request head within this time, so that idle sockets are freed.
FIRST_HEAD_S = 10.0
# How long a client that still sends a refused head may read the response. An unread byte would reset the connection.
LINGER_S = 2.0
# A long read with more lines is parsed in parts: heads and chunks have lines, what is between them is only copied.
# A part of chunks that have a byte each takes 7 ms, with reading them.
LINES_MAX = 1024
PART_BYTES = 8 * 1024
# The beginning of a malformed head that is kept: enough for its path.
BEGINNING_BYTES = 512
# Repeated headers are searched for in this many bytes.
LOOK_BYTES = 4096

_TARGET = re.compile(rb"[\r\n]*[A-Z]{1,16} (/[!-~]{0,255})")
_USER_AGENT = re.compile(rb"\r\nuser-agent:", re.IGNORECASE)
# As long as the original name, so that nothing else of the head moves.
_REPEATED_HEADER = b"\r\nX-Repeated:"

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Receives a connection's events. Calls run on the event loop, are synchronous and must not raise."""

    def client_left(self) -> None: ...
    def client_full(self) -> None: ...
    def client_drained(self) -> None: ...


class LastResponse(web.Response):
    """A response after which a client that is still sending gets the time to read it."""

    async def write_eof(self, data: bytes = b"") -> None:
        """End the body and the connection."""
        request = self._req
        await super().write_eof(data)
        if request is not None and isinstance(request.protocol, ClientConnection):
            await request.protocol.linger()


Refuse = Callable[[ApiError, str, "ClientConnection", type[web.Response]], web.Response]
"""error, path, connection and class of the response → the response to a request that was not served; it closes the
connection"""


class ClientConnection(RequestHandler):
    """One client's connection. `listener`: its running exchange, if any. `headers`: added to every response to its
    request."""

    __slots__ = (
        "_body", "_first_head", "_head", "_head_size", "_lost", "_parsing", "_refuse", "_unparsed", "headers",
        "listener",
    )  # fmt: skip

    def __init__(
        self, server: web.Server, *, refuse: Refuse, loop: asyncio.AbstractEventLoop, **options: object
    ) -> None:
        limits = {
            "max_line_size": TARGET_BYTES_MAX, "max_field_size": FIELD_BYTES_MAX, "max_headers": FIELDS_MAX
        }  # fmt: skip
        super().__init__(server, loop=loop, **limits, **options)  # type: ignore[arg-type]
        self.listener: Listener | None = None
        self.headers: tuple[tuple[str, str], ...] = ()
        self._refuse = refuse
        self._body: StreamReader | None = None  # of the request whose head was parsed last, until that is served
        self._head = b""  # the beginning of a malformed or incomplete head
        self._head_size = 0  # bytes of an incomplete head
        self._lost: asyncio.Future[None] | None = None  # set while `linger` waits for the client to close
        self._first_head: asyncio.TimerHandle | None = None
        self._unparsed = bytearray()  # of a long read; the transport is paused meanwhile
        self._parsing: asyncio.Handle | None = None  # parses the next of it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(transport)
        self._first_head = self._loop.call_later(FIRST_HEAD_S, self._first_head_due)

    def _first_head_due(self) -> None:
        if self._request_count == 0:
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has disconnected."""
        super().connection_lost(exc)
        self._unparsed.clear()
        if self._first_head is not None:
            self._first_head.cancel()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        if self.listener is not None:
            self.listener.client_left()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head, a body or a WebSocket. Hot path: some checks more than aiohttp's own work."""
        is_long = len(data) > PART_BYTES and data.count(b"\n") > LINES_MAX
        if not is_long and not (self._unparsed and data):
            self._parse(data)
            return
        self._unparsed += data
        self._pause_transport_reading()
        self._parse_soon()

    def _parse_soon(self) -> None:
        if self._parsing is None:
            self._parsing = self._loop.call_soon(self._parse_next)

    def _parse_next(self) -> None:
        """Parse a part of a long read; the others in later turns, as aiohttp takes them."""
        self._parsing = None
        if self.transport is None or self.transport.is_closing():
            self._unparsed.clear()
            return
        if self._unparsed and not (self._reading_paused or self._buffer_paused):
            part = bytes(self._unparsed[:PART_BYTES])
            del self._unparsed[:PART_BYTES]
            self._parse(part)
        if not (self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()

    def _resume_transport_reading(self) -> None:
        """Read on, but not before all that was read is parsed."""
        if self._unparsed:
            self._parse_soon()
        else:
            super()._resume_transport_reading()

    @property
    def is_pipelined(self) -> bool:
        """Whether the next request has come already."""
        return bool(self._messages)

    @property
    def is_broken(self) -> bool:
        """Whether the body of the request that is being served broke off with malformed bytes."""
        return self._body is not None and self._body.exception() is not None

    def served(self, body: StreamReader) -> None:
        """Forget the body of a request that was served: aiohttp discards the rest of it."""
        if self._body is body:
            self._body = None

    def _parse(self, data: bytes) -> None:
        if self._payload_parser is not None:  # also while the server stops, when aiohttp would take no more
            self._payload_parser.feed_data(data)
            return
        messages = self._messages
        if data.count(b"gent:", 0, LOOK_BYTES) > 1 and self._waiter is not None and not messages:
            data = with_one_user_agent(data)
        try:
            RequestHandler.data_received(self, data)
        except Exception as error:  # noqa: BLE001  the event loop would log it with what it quotes
            self._unreadable(error)
        if messages:
            last, body = messages[-1]
            if last.__class__ is not _ErrInfo:
                self._body = body
            elif self._break_body():
                return
            if self._head_size:
                self._head_size = 0
            elif last.__class__ is _ErrInfo:
                self._head = data[:BEGINNING_BYTES]
        elif self._waiter is not None:
            self._wait_for_head(data)

    def _break_body(self) -> bool:
        """Malformed bytes belong to the body that is arriving, if there is one: its reader gets an error, and nothing
        more is read. With aiohttp the reader would wait. Returns whether there was such a body."""
        body = self._body
        if body is None or body.is_eof():
            return False
        self._messages.pop()
        self._close = True
        body.set_exception(RequestPayloadError("the body is not as its framing says"))
        body.feed_eof()
        return True

    def _wait_for_head(self, data: bytes) -> None:
        """Wait for the rest of a head: `data` did not end it, and no request is running."""
        if not self._head_size:
            self._head = data[:BEGINNING_BYTES]
        self._head_size += len(data)
        if self._head_size > HEAD_BYTES_MAX:
            self._unreadable(HeadTooLongError())

    def _unreadable(self, error: Exception) -> None:
        """Queue the error response after those of requests that earlier reads brought, as aiohttp does with its
        parser's errors. Its parser drops whole requests that stand before malformed bytes in the same read: they are
        not served, and the error is the only answer."""
        self._request_count += 1
        self._messages.append((_ErrInfo(status=400, exc=error, message=""), EMPTY_PAYLOAD))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def linger(self) -> None:
        """Send the end of the stream, and discard further bytes of the client until it closes."""
        self._close = True  # nothing more is parsed
        if self.transport is None or self.transport.is_closing():
            return
        self._lost = self._loop.create_future()
        self.transport.write_eof()
        await asyncio.wait([self._lost], timeout=LINGER_S)

    def pause_writing(self) -> None:
        """The write buffer has passed its high-water mark."""
        super().pause_writing()
        if self.listener is not None:
            self.listener.client_full()

    @property
    def blocked(self) -> bool:
        """True while the client reads too slowly: its write buffer is over the high-water mark, and has not drained."""
        return self._paused

    def resume_writing(self) -> None:
        """The write buffer has drained."""
        super().resume_writing()
        if self.listener is not None:
            self.listener.client_drained()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request or a bug. aiohttp's own handler would show and log keys and prompts."""
        if status >= 500 and exc is not None:
            self.log_exception(exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the response has already begun")
        if status >= 500:
            return self._refuse(errors.internal(), request.raw_path, self, web.Response)
        found = _TARGET.match(self._head)
        answer_in_http11(request)
        refusal = refusal_of(exc, began=self._head)
        return self._refuse(refusal, found[1].decode() if found else "/", self, LastResponse)

    def log_exception(self, *_args: Any, **named: Any) -> None:
        """Log a bug's traceback without its message, which may quote the client."""
        bug = named.get("exc_info")
        if isinstance(bug, BaseException):
            where = "".join(traceback.format_tb(bug.__traceback__))
            _log.error("a request failed: %s\n%s", type(bug).__name__, where)


class ClientRequest(web.BaseRequest):
    """A client's request. Values that are read several times are attributes: aiohttp's properties take a call each."""

    __slots__ = ("content", "headers", "method", "protocol", "raw_path", "version", "writer")

    content: StreamReader
    headers: CIMultiDictProxy[str]
    method: str
    protocol: RequestHandler
    raw_path: str
    version: HttpVersion
    writer: AbstractStreamWriter

    def __init__(
        self, message: RawRequestMessage, payload: StreamReader, protocol: RequestHandler, writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> None:  # fmt: skip
        super().__init__(message, payload, protocol, writer, task, asyncio.get_running_loop())
        self.content, self.protocol, self.writer = payload, protocol, writer
        self.headers, self.method, self.raw_path = message.headers, message.method, message.path
        self.version = message.version

    def close_after(self) -> None:
        """State in the response that the connection is closed after it."""
        self._message = self._message._replace(should_close=True)


class ClientServer(web.Server):
    """aiohttp's low-level server with `ClientConnection`s."""

    def __call__(self) -> RequestHandler:
        """A connection for a newly accepted client."""
        return ClientConnection(self, loop=self._loop, **self._kwargs)


def with_one_user_agent(data: bytes) -> bytes:
    """Rename all but the first of several User-Agent headers in `data`, which aiohttp refuses. The length and the lines
    do not change, wherever a head begins and ends in `data`."""
    end = data.find(b"\r\n\r\n")
    head, rest = (data, b"") if end < 0 else (data[:end], data[end:])
    first = _USER_AGENT.search(head)
    if first is None:
        return data
    return head[: first.end()] + _USER_AGENT.sub(_REPEATED_HEADER, head[first.end() :]) + rest


def answer_in_http11(request: web.BaseRequest) -> None:
    """Set the response's version to HTTP/1.1: aiohttp would repeat the client's, or use 1.0 for a malformed head."""
    assert isinstance(request, ClientRequest)
    request.version = HttpVersion11


def refused_response(
    refusal: ApiError, shape: ErrorShape = OPENAI_ERRORS, made: type[web.Response] = web.Response
) -> web.Response:
    """The HTTP response for an ApiError."""
    headers = dict((SERVER,))
    headers.update((*refusal.headers, *shape.headers(refusal)))
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    return made(status=refusal.status, body=refusal.body(shape), content_type=JSON_TYPE, headers=headers)
