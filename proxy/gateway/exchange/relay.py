"""Relays the bytes of one stream from a provider to a client, and passes them to the meter.

Invariants: each piece is recorded as progress and then written to the client, in the event-loop iteration in which it
arrived. Many events that differ only in their text are matched in one pass; others the meter reads afterwards, several
at a time, or first if event boundaries are unclear. Nothing is re-serialised. Only the editor holds bytes back: an
unfinished event that may be the injected usage event or, where the cost is told, may get it. What begins, pauses and
ends a relay is decided in `lifecycle.py`; the relay only moves and counts bytes, and tells its exchange when the body
ends.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

from proxy.http.framing import EACH_A_CHUNK
from proxy.journal.progress import Slot
from proxy.metering.dialect import AnswerEditor
from proxy.metering.metered import BodyMeter
from proxy.metering.wire.event_template import TemplateMatch, TemplateMatcher
from proxy.metering.wire.framing import SSE, Framing
from proxy.telemetry.metrics import Gaps

# What the meter knows is noted, and what it has not read yet is read, once for this many events.
EVENTS_PER_NOTE = 64
# At first it is done more often, whenever a quarter of the stream is not noted: a crash then extrapolates from little
# to little more, never from one word to a page.
UNNOTED_SHARE = 4
# Events that come so many at once are matched with one another before they are written: that is cheaper than finding
# the end of each. Fewer are cheaper to keep until the meter reads many.
BURST_EVENTS = 4


class BodyListener(Protocol):
    """The exchange of a relay. Calls are synchronous."""

    def body_folded(self, meter: BodyMeter) -> None:
        """The meter has read everything so far."""

    def body_ended(self) -> None:
        """The provider's framing says that the body is complete."""

    def body_broke(self) -> None:
        """The connection or its framing failed before that."""

    def body_lost(self) -> None:
        """A bug of ours while a piece was processed: the client may lack it, even if the meter has read it."""


class Relay:
    """One body. The hot path is `run_on`, then `piece`; all else runs a few times per body.

    It writes to the client from `attach` to `detach`; before and after, pieces are only metered. `kept`: the body so
    far, as long as it is not longer than `keep_max` bytes; else None.
    """

    __slots__ = (
        "_beat",
        "_between",
        "_burst",
        "_chunked",
        "_editor",
        "_ends",
        "_gaps",
        "_keep_max",
        "_listener",
        "_note_after",
        "_quiet",
        "_run",
        "_run_in_chunks",
        "_slot",
        "_transport",
        "_unnoted",
        "_whole",
        "bytes",
        "events",
        "first_token_at",
        "kept",
        "last_at",
        "meter",
        "sound",
    )  # fmt: skip

    def __init__(
        self,
        *,
        meter: BodyMeter,
        editor: AnswerEditor | None,
        slot: Slot,
        gaps: Gaps,
        listener: BodyListener | None,
        framing: Framing = SSE,
        ends: tuple[bytes, ...] = (b"[DONE]",),
        keep_max: int = 0,
    ) -> None:
        self.meter = meter
        self.events = 0
        self.bytes = 0
        self.first_token_at: float | None = None
        self.last_at = monotonic()
        self._burst = 0  # events of the last piece
        self.sound = True
        """no piece was lost by a bug of ours"""
        self.kept: bytearray | None = bytearray() if keep_max else None
        self._keep_max = keep_max
        self._listener = listener
        self._beat = framing.heartbeat
        self._quiet = framing.quiet
        self._ends = ends
        self._editor = editor
        self._between = True  # it is between two events: a plain one may bypass it
        self._slot = slot
        self._gaps = gaps
        self._unnoted = 0  # events that came since the last note; never too few
        self._note_after = 1  # as many of them
        self._run: TemplateMatcher | None = None  # the next events may be more of this
        self._run_in_chunks: TemplateMatcher | None = None  # the same, as they come from the provider
        self._whole = meter.at_boundary
        self._transport: asyncio.WriteTransport | None = None
        self._chunked = True

    def attach(self, transport: asyncio.WriteTransport, *, chunked: bool) -> None:
        """Write to this client from now on, in chunks if it supports HTTP/1.1."""
        transport.set_write_buffer_limits(high=0, low=0)  # the kernel's buffer is the one there is; written to at once
        self._transport = transport
        self._chunked = chunked

    def run_on(self, wire: bytes) -> bool:
        """Relay raw bytes if they are one chunk per event and match the previous event. Returns False otherwise."""
        reader = self._run_in_chunks
        if reader is None:
            return False
        found = reader.read(wire)
        if found is None:
            self._run_in_chunks = None
            return False
        self._pass_run(found, wire)
        return True

    def piece(self, payload: bytes, framed: bytes | None = None) -> None:
        """Relay a piece of the body. `framed`: the same bytes as whole HTTP chunks, if they arrived so."""
        found = None if self._run is None else self._run.read(payload)
        if found is not None:
            self._pass_run(found, self._on_wire(payload, framed))
            return
        self._run = self._run_in_chunks = None  # looked for again when the meter reads
        self._arrived()
        events = self._burst = self._quiet(payload) if self._whole else 0
        if events:
            for part in self._ends:
                if part in payload:
                    break
            else:
                self._pass_quiet(payload, events, framed)
                return
        self._pass_exactly(payload, framed)

    def _pass_run(self, found: TemplateMatch, wire: bytes) -> None:
        """Events that are read already."""
        self._burst = found.events
        if self._transport is not None:
            self.events += found.events
            self._write(wire, found.size)
        self._arrived()
        self.meter.take(found)
        self._unnoted += found.events
        if self._unnoted >= self._note_after:
            self._note()

    def _pass_quiet(self, payload: bytes, events: int, framed: bytes | None) -> None:
        """Whole plain events, and not the last one: the meter reads them later."""
        self._unnoted += events
        transport = self._transport
        if transport is not None:
            self.events += events
            if self._between:
                self.bytes += len(payload)
                self._slot.deliver(self.events, self.bytes)
                transport.write(framed if framed is not None and self._chunked else self._on_wire(payload))
            else:
                assert self._editor is not None
                self._write_payload(self._editor.feed(payload))
                self._between = self._editor.idle
        self.meter.feed(payload)
        if self._unnoted >= self._note_after or self.first_token_at is None:
            self._fold()

    def _pass_exactly(self, payload: bytes, framed: bytes | None) -> None:
        """A piece that is not just whole plain events: the meter reads it before it is passed on."""
        meter, editor = self.meter, self._editor
        if self.kept is not None:
            self._keep(payload)
        if editor is not None and editor.follows_meter and self._transport is not None:
            out = self._told(payload, editor)
        else:
            meter.feed(payload)
            if self._transport is None and self.kept is not None:
                return  # a plain answer is read at its end, and nothing goes out before
            if editor is None or self._transport is None:
                out = payload
            else:
                out = editor.feed(payload)
                self._between = editor.idle
        self._fold()
        self._whole = meter.at_boundary
        if self._transport is None:
            return
        self.events = self._exact_events()
        # Equal, not just as long: what was held before and what is held now can be the same length.
        if framed is not None and out == payload:
            self._write(self._on_wire(payload, framed), len(payload))
        else:
            self._write_payload(out)

    def _told(self, payload: bytes, editor: AnswerEditor) -> bytes:
        """Each event is metered before the editor asks what it comes to."""
        out: list[bytes] = []
        for piece in editor.pieces(payload):
            self.meter.feed(piece)
            out.append(editor.feed(piece))
        self._between = editor.idle
        return b"".join(out)

    def _keep(self, payload: bytes) -> None:
        assert self.kept is not None
        if len(self.kept) + len(payload) > self._keep_max:
            self.kept = None
        else:
            self.kept += payload

    def _arrived(self) -> None:
        now = monotonic()
        self._gaps.observe(now - self.last_at)
        self.last_at = now

    def _on_wire(self, payload: bytes, framed: bytes | None = None) -> bytes:
        """`payload` as the client wants it."""
        if not self._chunked:
            return payload
        return framed if framed is not None else b"%x\r\n%b\r\n" % (len(payload), payload)

    def _write_payload(self, payload: bytes) -> None:
        if payload:
            self._write(self._on_wire(payload), len(payload))

    def _write(self, wire: bytes, size: int) -> None:
        """Progress is recorded, then the client is written to. `size`: of the body's bytes in `wire`."""
        self.bytes += size
        self._slot.deliver(self.events, self.bytes)
        transport = self._transport
        assert transport is not None
        transport.write(wire)

    def _fold(self) -> None:
        self.meter.fold()
        self._note()

    def _note(self) -> None:
        """Record the new counts of the meter."""
        meter = self.meter
        tally = meter.tally
        self._unnoted = 0
        self._note_after = min(EVENTS_PER_NOTE, 1 + tally.events // UNNOTED_SHARE)
        if self.first_token_at is None and not tally.evidence.empty:
            self.first_token_at = self.last_at
        usage, events = tally.usage, self._exact_events()
        if self.events > events and self.sound:  # comments are no events
            self.events = events
            self._slot.deliver(events, self.bytes)
        if usage is None:
            self._slot.note(tally.evidence, None, tally.events)
        else:
            self._slot.note(tally.evidence, usage, tally.events, tally.running)
        matcher = meter.matcher if self._burst >= BURST_EVENTS and self._between else None
        if matcher is not self._run:
            self._run = matcher
            self._run_in_chunks = None
            if matcher is not None and self._chunked and self._transport is not None:
                self._run_in_chunks = TemplateMatcher(matcher.template, EACH_A_CHUNK)
        if self._listener is not None:
            self._listener.body_folded(meter)

    @property
    def whole(self) -> bool:
        """True if the client has received whole events only: an own event may follow."""
        return self._whole

    def heartbeat(self) -> None:
        """Send a comment to a waiting client, only between two whole events. It is neither counted nor metered."""
        beat = self._beat
        if beat and self._transport is not None and self._whole and self._between:
            self._transport.write(b"%x\r\n%b\r\n" % (len(beat), beat) if self._chunked else beat)

    def detach(self) -> None:
        """The client has disconnected: its delivery is final; further bytes are only metered."""
        self.settle_counts()
        self._transport = self._run_in_chunks = None

    def settle_counts(self) -> None:
        """Make `events` exact: whole events relayed, without the stripped one."""
        if self._transport is not None:
            if self._unnoted:
                self._fold()
            exact = self._exact_events()
            self.events = exact if self.sound else max(self.events, exact)  # the meter may lack what was passed on

    def _exact_events(self) -> int:
        """Those that the meter has read and that the client gets."""
        return self.meter.tally.events - (0 if self._editor is None else self._editor.stripped)

    def flush(self) -> None:
        """The body has ended: write what is held, unless it is the usage event."""
        if self._editor is not None and self._transport is not None:
            rest = self._editor.close()
            if rest and self.kept is not None:  # of a plain answer, all of it
                self.kept[:] = rest
            self._write_payload(rest)

    def say(self, event: bytes) -> bool:
        """Add an own event (an error) between two whole events. Returns False within an event."""
        if self._transport is None or not self._whole or not event:
            return False
        self.events += 1
        self._write_payload(event)
        return True

    def deliver(self, body: bytes) -> None:
        """Record the whole collected body as about to be written; the caller writes it."""
        self._slot.note(self.meter.tally.evidence, self.meter.tally.usage, 0)
        self.bytes = len(body)
        self._slot.deliver(0, self.bytes)

    def drop(self) -> None:
        """Tell the exchange nothing more: a reference cycle would live until a garbage collection."""
        self._listener = None

    # -- called by the upstream connection

    def complete(self) -> None:
        """The body is complete."""
        if self._listener is not None:
            self._listener.body_ended()

    def upstream_error(self) -> None:
        """The upstream connection or its framing failed."""
        self._fold()
        if self._listener is not None:
            self._listener.body_broke()

    def internal_error(self) -> None:
        """A bug of ours while a piece was processed."""
        self.sound = False
        if self._listener is not None:
            self._listener.body_lost()
