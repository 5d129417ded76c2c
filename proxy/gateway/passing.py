"""Relays one answer that is no exchange to a client.

Invariants: an error that would reveal a secret or an address of the operator is replaced. The provider is read no
faster than the client reads, and for at most `total_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from proxy.gateway.upstream.body_end import BodyEnd
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.connection import CatchUp
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.headers import downward
from proxy.http.reply import Reply

# An error body is read as a whole before it is relayed; a longer one is replaced by an error of the proxy.
ERROR_BYTES_MAX = 256 * 1024


async def passed(
    answer: Answer,
    provider: Provider,
    exchange_id: str,
    request: web.BaseRequest,
    connection: ClientConnection,
    fed: Callable[[bytes], CatchUp | None] | None = None,
) -> web.StreamResponse:
    """Relay the answer. Returns when the client has received it or is gone. `fed`: also gets the body of a success.
    Raises ApiError if nothing was sent."""
    streamed = answer.content_type == "text/event-stream"
    headers = downward(answer.head, exchange_id, streamed=streamed, rules=provider.header_rules, own=connection.headers)
    reply = Reply(request)
    if not 200 <= answer.status < 300:
        body = await refusal_body(answer, provider)
        reply.begin(answer.status, headers, length=len(body), body=body)
        return reply
    transport = request.transport
    if transport is None or not reply.begin(answer.status, headers, length=answer.head.length):
        return reply
    passing = _Passing(answer, transport, fed, chunked=reply.chunked_body)
    connection.listener = passing
    try:
        answer.relay_to(passing)
        async with asyncio.timeout(provider.limits.total_s):
            whole = await passing.ended
    except TimeoutError:
        whole = False
    finally:
        connection.listener = None
    if whole:
        reply.end()
    else:
        transport.close()
    return reply


async def refusal_body(answer: Answer, provider: Provider) -> bytes:
    """The body of an answer that is not 2xx. Raises ApiError if it must not be shown."""
    try:
        async with asyncio.timeout(provider.limits.idle_s):
            body = await answer.read(ERROR_BYTES_MAX)
    except (UpstreamFailedError, TimeoutError):
        body = None
    if answer.status in (401, 407):
        raise errors.upstream_auth()
    readable = None if body is None else answer.readable(body)
    if answer.status < 400 or body is None or readable is None or provider.is_revealed_by(readable):
        raise errors.upstream_failed()
    return body


class _Passing(BodyEnd):
    """Receives the body from the provider, and the events of the client's connection."""

    def __init__(
        self,
        answer: Answer,
        transport: asyncio.WriteTransport,
        fed: Callable[[bytes], CatchUp | None] | None,
        *,
        chunked: bool,
    ) -> None:
        super().__init__()
        self._answer = answer
        self._transport = transport
        self._fed = fed
        self._chunked = chunked

    def piece(self, payload: bytes, framed: bytes | None = None) -> CatchUp | None:
        catch_up = None
        if payload and not self.ended.done():
            if self._fed is not None:
                catch_up = self._fed(payload)
            self._transport.write(b"%x\r\n%b\r\n" % (len(payload), payload) if self._chunked else payload)
        return catch_up

    def client_left(self) -> None:
        self._answer.close()
        self.end(whole=False)

    def client_full(self) -> None:
        self._answer.pause_reading()

    def client_drained(self) -> None:
        self._answer.resume_reading()
