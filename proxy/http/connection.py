"""A client's connection: aiohttp's, plus what a relay must hear at once.

aiohttp tells a handler that its client left only by cancelling it, which would also cancel what must go on (a drain,
a settlement). So the exchange is told by a call, and its task goes on by itself.
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

# A new connection must bring its first request head within this time: sockets that say nothing cost nothing.
FIRST_HEAD_S = 10.0

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who is told. Calls come from the event loop, are synchronous and must not raise."""

    def client_left(self) -> None: ...
    def client_full(self) -> None: ...
    def client_drained(self) -> None: ...


class ClientConnection(RequestHandler):
    """One client's connection; `listener` is the exchange it is busy with, if any."""

    __slots__ = ("_first_head", "listener")

    def __init__(self, server: web.Server, *, loop: asyncio.AbstractEventLoop, **options: object) -> None:
        super().__init__(server, loop=loop, **options)  # type: ignore[arg-type]
        self.listener: Listener | None = None
        self._first_head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has been accepted."""
        super().connection_made(transport)
        self._first_head = self._loop.call_later(FIRST_HEAD_S, self._first_head_due)

    def _first_head_due(self) -> None:
        if self._request_count == 0:
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone."""
        super().connection_lost(exc)
        if self._first_head is not None:
            self._first_head.cancel()
        if self.listener is not None:
            self.listener.client_left()

    def pause_writing(self) -> None:
        """The client's write buffer passed its mark."""
        super().pause_writing()
        if self.listener is not None:
            self.listener.client_full()

    def resume_writing(self) -> None:
        """The client reads again."""
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
        """Answer what is not HTTP, or what our own bug broke. aiohttp's way would show and log keys and prompts."""
        if status >= 500 and exc is not None:
            self.log_exception(exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        response = refused_response(errors.internal() if status >= 500 else errors.malformed())
        response.force_close()
        return response

    def log_exception(self, *_args: Any, **named: Any) -> None:
        """Our bug: where it is, not what it says, for its words can be the client's."""
        bug = named.get("exc_info")
        if isinstance(bug, BaseException):
            where = "".join(traceback.format_tb(bug.__traceback__))
            _log.error("a request failed: %s\n%s", type(bug).__name__, where)


class ClientServer(web.Server):
    """aiohttp's low-level server, making such connections."""

    def __call__(self) -> RequestHandler:
        """A connection for a client that has just been accepted."""
        return ClientConnection(self, loop=self._loop, **self._kwargs)


def refused_response(refusal: ApiError, shape: ErrorShape = OPENAI_ERRORS) -> web.Response:
    """An ApiError as HTTP."""
    headers = dict((SERVER,))
    headers.update(refusal.headers)
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    return web.Response(status=refusal.status, body=refusal.body(shape), content_type=JSON_TYPE, headers=headers)
