"""A client's connection: aiohttp's, with immediate notifications for the running exchange.

On a disconnect aiohttp can only cancel the handler, which would also cancel work that must continue (a drain, a
settlement). Here the exchange gets a callback instead, and its task continues.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any, Protocol

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from proxy.http import errors
from proxy.http.errors import JSON_TYPE, ApiError
from proxy.http.headers import SERVER
from proxy.metering.refusal import OPENAI_ERRORS, ErrorShape

# A new connection must send its first request head within this time, so that idle sockets are freed.
FIRST_HEAD_S = 10.0

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Receives a connection's events. Calls run on the event loop, are synchronous and must not raise."""

    def client_left(self) -> None: ...
    def client_full(self) -> None: ...
    def client_drained(self) -> None: ...


class ClientConnection(RequestHandler):
    """One client's connection; `listener`: its running exchange, if any; `headers`: of all responses to its request."""

    __slots__ = ("_first_head", "headers", "listener")

    def __init__(self, server: web.Server, *, loop: asyncio.AbstractEventLoop, **options: object) -> None:
        super().__init__(server, loop=loop, **options)  # type: ignore[arg-type]
        self.listener: Listener | None = None
        self.headers: tuple[tuple[str, str], ...] = ()
        self._first_head: asyncio.TimerHandle | None = None

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
        if self._first_head is not None:
            self._first_head.cancel()
        if self.listener is not None:
            self.listener.client_left()

    def pause_writing(self) -> None:
        """The write buffer has passed its high-water mark."""
        super().pause_writing()
        if self.listener is not None:
            self.listener.client_full()

    @property
    def blocked(self) -> bool:
        """The client has not taken all that was written to it."""
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
        response = refused_response(errors.internal() if status >= 500 else errors.malformed())
        response.force_close()
        return response

    def log_exception(self, *_args: Any, **named: Any) -> None:
        """Log a bug's traceback without its message, which may quote the client."""
        bug = named.get("exc_info")
        if isinstance(bug, BaseException):
            where = "".join(traceback.format_tb(bug.__traceback__))
            _log.error("a request failed: %s\n%s", type(bug).__name__, where)


class ClientServer(web.Server):
    """aiohttp's low-level server with `ClientConnection`s."""

    def __call__(self) -> RequestHandler:
        """A connection for a newly accepted client."""
        return ClientConnection(self, loop=self._loop, **self._kwargs)


def refused_response(refusal: ApiError, shape: ErrorShape = OPENAI_ERRORS) -> web.Response:
    """The HTTP response for an ApiError."""
    headers = dict((SERVER,))
    headers.update(refusal.headers)
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    return web.Response(status=refusal.status, body=refusal.body(shape), content_type=JSON_TYPE, headers=headers)
