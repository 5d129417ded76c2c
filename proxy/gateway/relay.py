"""Moves the bytes of one stream from a provider to a client, and shows them to the meter.

Law: for every piece, in the event-loop turn it arrived in: progress is recorded, then the client is written to. The
meter reads afterwards, several pieces at a time, or before where it must tell whole events from parts of one. Nothing
is re-serialised, nothing waits for the next piece; all that is ever held back is one unfinished event that can still
turn out to be the usage event we asked for and the client did not.
A client that stops reading stops the provider: at most CLIENT_BUFFER_BYTES_MAX and one read are held per stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from time import monotonic
from typing import Protocol

from proxy.metering.meter import Metered
from proxy.metering.strip import UsageStripper, is_quiet
from proxy.metering.usage import Evidence, Usage
from proxy.metrics import Gaps

# The client's own write buffer, above which the provider is no longer read. With one more read of at most
# upstream.RECEIVE_BYTES_MAX on top it stays below the promised 256 KiB per stream.
CLIENT_BUFFER_BYTES_MAX = 64 * 1024
# Reading the meter costs about 2 µs an event; done for this many pieces at once, after they were passed on.
PIECES_PER_FOLD = 32
# At first it is done more often, whenever a quarter of the stream is unread: a crash then extrapolates from little to
# little more, never from one word to a page.
UNREAD_SHARE = 4
# Smaller pieces are one event or two, which are read more cheaply many at a time, later.
MANY_EVENTS_BYTES = 1024

_DONE = b"[DONE]\n\n"


class End(Enum):
    """How the relay of a body ended."""

    COMPLETE = auto()
    BROKEN = auto()
    STALLED = auto()
    CLIENT_LEFT = auto()
    SHUT_DOWN = auto()


class Slot(Protocol):
    """Where the progress of one exchange survives this process. Stores are cheap and never fail."""

    def deliver(self, events: int, size: int) -> None:
        """Record that so many events and bytes are about to have been passed to the client, in all."""

    def note(self, evidence: Evidence, usage: Usage | None, events: int) -> None:
        """Record what the meter has read so far."""


class BodyMeter(Protocol):
    """Who reads a body: a stream's meter, or a plain answer's. Exact after `fold`."""

    @property
    def bytes_seen(self) -> int: ...
    @property
    def events(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def at_boundary(self) -> bool:
        """The bytes so far end between two events."""

    @property
    def evidence(self) -> Evidence: ...
    @property
    def usage(self) -> Usage | None: ...
    def take_run(self, payload: bytes) -> int: ...
    def feed(self, payload: bytes) -> None: ...
    def fold(self) -> None: ...
    def close(self) -> Metered: ...


class Upward(Protocol):
    """The provider's side of a relay, as far as the relay steers it."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Relay:
    """One stream. `piece` is the hot path; all else happens a few times per stream."""

    __slots__ = (
        "_chunked",
        "_fold_after",
        "_gaps",
        "_pieces",
        "_slot",
        "_strip",
        "_transport",
        "_upward",
        "_whole",
        "bytes",
        "done",
        "events",
        "first_token_at",
        "last_at",
        "meter",
        "on_fold",
        "paused_at",
    )  # fmt: skip

    def __init__(
        self,
        *,
        meter: BodyMeter,
        strip: UsageStripper | None,
        slot: Slot,
        loop: asyncio.AbstractEventLoop,
        gaps: Gaps,
        on_fold: Callable[[BodyMeter], None] | None = None,
    ) -> None:
        self.meter = meter
        self.events = 0
        self.bytes = 0
        self.first_token_at: float | None = None
        self.last_at = monotonic()
        self.paused_at: float | None = None
        self.done: asyncio.Future[End] = loop.create_future()
        self.on_fold = on_fold
        self._strip = strip
        self._slot = slot
        self._gaps = gaps
        self._pieces = 0
        self._fold_after = 1
        self._whole = meter.at_boundary
        self._transport: asyncio.WriteTransport | None = None
        self._chunked = True
        self._upward: Upward | None = None

    def attach(self, transport: asyncio.WriteTransport, *, chunked: bool) -> None:
        """From here on pieces go to this client, in chunks if it speaks HTTP/1.1."""
        transport.set_write_buffer_limits(high=CLIENT_BUFFER_BYTES_MAX, low=CLIENT_BUFFER_BYTES_MAX // 4)
        self._transport = transport
        self._chunked = chunked

    def steer(self, upward: Upward) -> None:
        """The provider's side to pause while the client does not read."""
        self._upward = upward

    def piece(self, payload: bytes, framed: bytes | None = None) -> None:
        """Pass on some bytes of the body. `framed`: the same bytes as whole HTTP chunks, if they came so."""
        now = monotonic()
        self._gaps.observe(now - self.last_at)
        self.last_at = now
        if len(payload) >= MANY_EVENTS_BYTES and self._run_on(payload, framed):
            return
        quiet = is_quiet(payload) and not payload.endswith(_DONE)
        meter = self.meter
        if quiet and self._whole:
            self._pieces += 1
            if self._transport is not None:
                out = payload
                self.events += payload.count(b"\n") // 2  # one line each; never too few
                strip = self._strip
                if strip is not None and not strip.idle:
                    out = strip.feed(payload)
                    framed = None
                self._write(out, framed)
            meter.feed(payload)
            if self._pieces >= self._fold_after or self.first_token_at is None:
                self._fold()
        else:
            self._piece_exactly(payload, framed)

    def _run_on(self, payload: bytes, framed: bytes | None) -> bool:
        """A piece of many events: if they are like the one before, the meter reads them in one look."""
        if not self._whole or (self._strip is not None and not self._strip.idle):
            return False
        if self._pieces:
            self._fold()
        events = self.meter.take_run(payload)
        if not events:
            return False
        if self._transport is not None:
            self.events += events
            self._write(payload, framed)
        self._read_more()
        return True

    def _piece_exactly(self, payload: bytes, framed: bytes | None) -> None:
        """A piece that is not just whole plain events: the meter reads it before it is passed on."""
        meter = self.meter
        meter.feed(payload)
        self._fold()
        self._whole = meter.at_boundary
        if self._transport is None:
            return
        strip = self._strip
        out = payload if strip is None else strip.feed(payload)
        self.events = meter.events - (0 if strip is None else strip.stripped)
        # Equal, not just as long: what was held before and what is held now can be the same length.
        self._write(out, framed if out == payload else None)

    def _write(self, out: bytes, framed: bytes | None) -> None:
        if not out:
            return
        self.bytes += len(out)
        self._slot.deliver(self.events, self.bytes)
        transport = self._transport
        assert transport is not None
        if not self._chunked:
            transport.write(out)
        else:
            transport.write(framed if framed is not None else b"%x\r\n%b\r\n" % (len(out), out))

    def _fold(self) -> None:
        self._pieces = 0
        self.meter.fold()
        self._read_more()

    def _read_more(self) -> None:
        """The meter knows more than before."""
        meter = self.meter
        self._fold_after = min(PIECES_PER_FOLD, 1 + meter.events // UNREAD_SHARE)
        if self.first_token_at is None and not meter.evidence.empty:
            self.first_token_at = self.last_at
        self._slot.note(meter.evidence, meter.usage, meter.events)
        if self.on_fold is not None:
            self.on_fold(meter)

    def client_full(self) -> None:
        """The client's write buffer is over its mark: stop reading the provider."""
        if self.paused_at is None and self._upward is not None:
            self.paused_at = monotonic()
            self._upward.pause_reading()

    def client_drained(self) -> None:
        """The client reads again."""
        if self.paused_at is not None:
            self.paused_at = None
            self.last_at = monotonic()
            if self._upward is not None:
                self._upward.resume_reading()

    def heartbeat(self) -> None:
        """A comment to a waiting client, only between two whole events. It is ours: not counted, not metered."""
        if self._transport is not None and self._whole and (self._strip is None or self._strip.idle):
            beat = b": keep-alive\n\n"
            self._transport.write(b"%x\r\n%b\r\n" % (len(beat), beat) if self._chunked else beat)

    def detach(self) -> None:
        """The client is gone: what it got is final; what still comes is only metered."""
        self.settle_counts()
        self._transport = None
        self.client_drained()

    def settle_counts(self) -> None:
        """Make `events` exact: whole events passed on, the stripped one not counted."""
        if self._transport is not None:
            self._fold()
            self.events = self.meter.events - (0 if self._strip is None else self._strip.stripped)

    def flush(self) -> None:
        """The provider's body is over: let go of what was held, unless it is the usage event."""
        if self._strip is not None and self._transport is not None:
            self._write(self._strip.close(), None)

    def say(self, event: bytes) -> bool:
        """Add an event of our own (an error) between two whole events. False if an event is unfinished."""
        if self._transport is None or not self._whole:
            return False
        self.events += 1
        self._write(event, None)
        return True

    def complete(self) -> None:
        """The provider ended the body properly."""
        self.finish(End.COMPLETE)

    def broken(self) -> None:
        """The provider's connection or its framing broke. After [DONE] nothing is missing."""
        self._fold()
        self.finish(End.COMPLETE if self.meter.done else End.BROKEN)

    def finish(self, end: End) -> None:
        """The body ended; the first word counts."""
        if not self.done.done():
            self.done.set_result(end)
