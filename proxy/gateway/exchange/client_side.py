"""The client's side of an exchange: everything that is written to the client.

Invariant: a provider's error is relayed unchanged, unless it would reveal a secret or an address of the operator.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from msgspec import UNSET

from proxy.gateway.exchange.admitted import AdmittedRequest
from proxy.gateway.exchange.body import Body
from proxy.gateway.exchange.rate_limits import Headers
from proxy.gateway.exchange.rate_limits import headers as limit_headers
from proxy.gateway.exchange.taped_stream import TapedStream
from proxy.gateway.exchange.told_cost import TellsCost, ToldCost
from proxy.gateway.tapes.tapes import Tapes
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.provider import Provider
from proxy.http import errors
from proxy.http.errors import JSON_TYPE, ApiError
from proxy.http.headers import EXCHANGE_HEADER, FALLBACK_HEADER, SERVER, downward
from proxy.http.reply import Reply
from proxy.metering.dialect import Dialect
from proxy.metering.wire.framing import SSE


class ClientSide:
    """One response. `reply`: the response object for aiohttp."""

    __slots__ = (
        "_dialect", "_exchange", "_own_headers", "_request", "_tapes", "reply", "taped", "told_cost", "told_error",
    )  # fmt: skip

    def __init__(self, admitted: AdmittedRequest, tapes: Tapes | None) -> None:
        reservation = admitted.open_exchange.reservation
        self.reply = Reply(admitted.request)
        self._request = admitted.request
        self._dialect = admitted.dialect
        self._exchange = admitted.open_exchange
        self._tapes = tapes
        limits = limit_headers(reservation.reserved.counters, reservation.levels)
        opened = admitted.open_exchange.opened
        fallback = () if opened.fallback is UNSET else ((FALLBACK_HEADER, opened.model),)
        self._own_headers: Headers = (*limits, *fallback, *admitted.connection.headers)
        self.told_cost: ToldCost | None = None
        """None: the client does not get the cost"""
        if admitted.tells_cost is not TellsCost.NO:
            asked = admitted.tells_cost is TellsCost.ASKED
            self.told_cost = ToldCost(admitted.open_exchange, admitted.dialect, n=admitted.facts.n, asked=asked)
        self.taped: TapedStream | None = None
        """None: the stream cannot be resumed"""
        self.told_error = False
        """the client got an event with the reason why its stream ends"""

    def add_headers(self, headers: Headers) -> None:
        """Write these, too, in a head that is not written yet."""
        self._own_headers += headers

    @property
    def has_left(self) -> bool:
        """True if the connection is closed."""
        return self._request.transport is None

    # -- a body

    def begin(self, body: Body) -> None:
        """Write the head of an answer that is relayed piece by piece, and the pieces from now on."""
        transport = self._request.transport
        longer = body.streams or (self.told_cost is not None and self.told_cost.lengthens)
        head = self._headers(body.answer, body.provider, streamed=body.streams)
        length = None if longer else body.answer.head.length
        if not self.reply.begin(body.answer.status, head, length=length) or transport is None:
            return
        client: asyncio.WriteTransport = transport
        if self._tapes is not None and body.streams and not body.answer.coding:
            client = self._with_tape(self._tapes, transport, body)
        body.relay.attach(client, chunked=self.reply.chunked_body)

    def _with_tape(self, tapes: Tapes, client: asyncio.WriteTransport, body: Body) -> asyncio.WriteTransport:
        """The transport that also records a stream of server-sent events on a tape, for resuming clients. For other
        streams `client` itself."""
        if body.framing.content_type != SSE.content_type:
            return client
        self.taped = TapedStream(
            tapes, self._exchange.opened, self._dialect, body.answer, client, self.abort,
            heartbeat_s=body.provider.limits.heartbeat_s, chunked=self.reply.chunked_body,
        )  # fmt: skip
        return self.taped.transport

    def deliver(self, body: Body) -> None:
        """Write the head and the whole collected body."""
        relay = body.relay
        assert relay.kept is not None, "bounded by its content length"
        content = whole = bytes(relay.kept)
        if body.injected:
            content = _without_usage(content, self._dialect)
        if self.told_cost is not None:
            content = self.told_cost.in_body(relay.meter, content)
        if content is not whole:
            relay.kept[:] = content
        relay.deliver(content)
        self._write(body.answer, body.provider, content)
        relay.first_token_at = monotonic()

    def stop_writing(self, body: Body, *, reads_on: bool) -> None:
        """Write nothing more to the client. `reads_on`: the rest of the answer is read, and kept on the tape."""
        if self.taped is not None and reads_on:
            self.taped.leave(body.relay)
        else:
            body.relay.detach()

    def send_error_event(self, body: Body, error: ApiError) -> None:
        """Send an event with the reason why the stream ends, unless the client saw the provider break it off."""
        self.told_error = body.relay.say(error.event(self._dialect.errors, body.framing))

    # -- errors before a body

    def pass_refusal(self, answer: Answer, content: bytes | None, provider: Provider) -> None:
        """Write a provider's error. `content`: its body; None: it could not be read, or is too long."""
        status = answer.status
        readable = None if content is None else answer.readable(content)
        if status == 407 or (self._exchange.opened.byok is UNSET and self._is_about_credentials(answer, readable)):
            self.refuse(errors.upstream_auth())
        elif status < 400 or content is None or readable is None or provider.is_revealed_by(readable):
            self.refuse(errors.upstream_failed())
        else:
            self._write(answer, provider, content)

    def refuse(self, refusal: ApiError) -> None:
        """Write an error of the proxy."""
        told = self._dialect.errors.headers(refusal)
        exchange_id = self._exchange.opened.exchange_id
        fields = [("Content-Type", JSON_TYPE), SERVER, (EXCHANGE_HEADER, exchange_id), *told, *self._own_headers]
        if refusal.retry_after_s is not None:
            fields.append(("Retry-After", str(refusal.retry_after_s)))
        body = refusal.body(self._dialect.errors)
        self.reply.begin(refusal.status, fields, length=len(body), body=body)

    # -- the end

    def close(self) -> None:
        """Close the connection after the last write: the body has no proper end."""
        if (transport := self._request.transport) is not None:
            transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if (transport := self._request.transport) is not None:
            transport.abort()

    # -- within

    def _write(self, answer: Answer, provider: Provider, content: bytes) -> None:
        self.reply.begin(answer.status, self._headers(answer, provider), length=len(content), body=content)

    def _headers(self, answer: Answer, provider: Provider, *, streamed: bool = False) -> list[tuple[str, str]]:
        return downward(
            answer.head,
            self._exchange.opened.exchange_id,
            streamed=streamed,
            more=self._dialect.headers_down,
            rules=provider.header_rules,
            own=self._own_headers,
        )

    def _is_about_credentials(self, answer: Answer, refusal: bytes | None) -> bool:
        """True if a provider's error is about the credentials of its request, by its status, its text or a header that
        would pass. `refusal`: its text, if that can be read."""
        parts = self._dialect.credential_refusals
        if answer.status != 403 or refusal is None or not parts:
            return answer.status == 401
        told = [value.encode("latin-1") for name, value in answer.head.headers if name in self._dialect.headers_down]
        return any(part in text for text in (refusal, *told) for part in parts)


def _without_usage(body: bytes, dialect: Dialect) -> bytes:
    """A collected answer; of a stream that is labelled as JSON, without the usage event, which the proxy requested."""
    if dialect.stripper is None or not body.startswith(b"data:"):
        return body
    stripper = dialect.stripper()
    return stripper.feed(body) + stripper.close()
