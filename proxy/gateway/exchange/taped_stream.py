"""The tape of one exchange's stream, from the exchange's side: it goes on when the client has left.

Invariant: the entry counts what the first client got, whatever goes onto the tape after it has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from proxy.billing.record import Opened
from proxy.gateway.exchange.relay import Relay
from proxy.gateway.resume.tapes import Tapes
from proxy.gateway.resume.taping import TapedTransport
from proxy.gateway.upstream.client import Answer
from proxy.metering.dialect import Dialect
from proxy.metering.wire.framing import SSE


class TapedStream:
    """`transport` is written to; `leave` when the client has left, `end` when the stream has ended."""

    __slots__ = ("_delivered", "_tape", "_tapes", "transport")

    def __init__(
        self,
        tapes: Tapes,
        opened: Opened,
        dialect: Dialect,
        answer: Answer,
        client: asyncio.WriteTransport,
        on_taken: Callable[[], None],
        *,
        heartbeat_s: float,
        chunked: bool,
    ) -> None:
        """`on_taken`: called when another client goes on with it."""
        self._tapes = tapes
        self._delivered: tuple[int, int] | None = None  # events and bytes, to a client that is gone
        self._tape = tapes.begin(
            opened.exchange_id,
            opened.key_id,
            content_type=answer.head.header("content-type") or SSE.content_type,
            errors=dialect.errors,
            heartbeat_s=heartbeat_s,
        )
        self._tape.on_taken = on_taken
        self.transport = TapedTransport(client, self._tape, chunked=chunked)

    @property
    def readable(self) -> bool:
        """It can be taken up."""
        return self._tape.readable

    @property
    def is_read(self) -> bool:
        """Somebody reads it again."""
        return self._tape.readers > 0

    def leave(self, relay: Relay) -> None:
        """The client has left, and `relay` goes on without it."""
        relay.settle_counts()
        self._delivered = relay.events, relay.bytes
        self.transport.leave()

    def end(self, relay: Relay, details: dict[str, Any], *, whole: bool, told: bool) -> None:
        """Nothing follows: see `Tape.end`. `details`: of the entry."""
        if self._delivered is not None:
            relay.detach()
            relay.events, relay.bytes = self._delivered
        if self._tape.taken_up:
            details["taken_up"] = self._tape.taken_up
        self._tapes.end(self._tape, whole=whole, told=told)
