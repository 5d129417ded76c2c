"""The tape of one exchange's stream, as the exchange writes it.

Invariants: the client is written to first, then the tape. When the client is gone, the rest is still kept. The entry
has the counts of the first client, without the bytes after the disconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.billing.details import EntryDetails
from proxy.billing.record import Opened
from proxy.gateway.exchange.relay import Relay
from proxy.gateway.tapes.tape import Tape
from proxy.gateway.tapes.tapes import Tapes
from proxy.gateway.upstream.client import Answer
from proxy.http.framing import ChunkReader, whole_chunks
from proxy.metering.dialect import Dialect
from proxy.metering.wire.framing import SSE


class TapedTransport(asyncio.WriteTransport):
    """Writes to a client and to a tape: whole HTTP chunks, or the bytes of a body that is not chunked."""

    __slots__ = ("_chunked", "_client", "_tape")

    def __init__(self, client: asyncio.WriteTransport, tape: Tape, *, chunked: bool) -> None:
        self._client: asyncio.WriteTransport | None = client
        self._tape = tape
        self._chunked = chunked

    def write(self, data: bytes) -> None:  # type: ignore[override]  # nothing else is written here
        """Write to the client, if it is there, and to the tape."""
        if self._client is not None:
            self._client.write(data)
        self._tape.add(_payload(data) if self._chunked else data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits of the client's buffer."""
        if self._client is not None:
            self._client.set_write_buffer_limits(high, low)

    def leave(self) -> None:
        """The client is gone."""
        self._client = None


class TapedStream:
    """Write to `transport`. Call `leave` when the client is gone, `end` when the stream has ended."""

    __slots__ = ("_delivered", "_tape", "_tapes", "transport")

    def __init__(
        self,
        tapes: Tapes,
        opened: Opened,
        dialect: Dialect,
        answer: Answer,
        client: asyncio.WriteTransport,
        on_resumed: Callable[[], None],
        *,
        heartbeat_s: float,
        chunked: bool,
    ) -> None:
        """`on_resumed`: called when another client resumes the stream."""
        self._tapes = tapes
        self._delivered: tuple[int, int] | None = None  # events and bytes, to a client that is gone
        self._tape = tapes.begin(
            opened.exchange_id,
            opened.key_id,
            content_type=answer.head.header("content-type") or SSE.content_type,
            errors=dialect.errors,
            heartbeat_s=heartbeat_s,
        )
        self._tape.on_resumed = on_resumed
        self.transport = TapedTransport(client, self._tape, chunked=chunked)

    @property
    def readable(self) -> bool:
        """True if a client can resume the stream."""
        return self._tape.readable

    @property
    def is_read(self) -> bool:
        """True if a client reads the tape."""
        return self._tape.readers > 0

    def leave(self, relay: Relay) -> None:
        """The client is gone, and `relay` continues without it."""
        relay.settle_counts()
        self._delivered = relay.events, relay.bytes
        self.transport.leave()

    def end(self, relay: Relay, details: EntryDetails, *, whole: bool, error_sent: bool) -> None:
        """The stream has ended: see `Tape.end`. `details`: those of the record."""
        if self._delivered is not None:
            relay.detach()
            relay.events, relay.bytes = self._delivered
        if self._tape.resumed_count:
            details.taken_up = self._tape.resumed_count
        self._tapes.end(self._tape, whole=whole, error_sent=error_sent)


def _payload(chunks: bytes) -> bytes:
    plain = whole_chunks(chunks)
    return ChunkReader().feed(chunks)[0] if plain is None else plain
