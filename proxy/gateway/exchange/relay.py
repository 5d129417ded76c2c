"""Relays the bytes of one stream from a provider to a client, and passes them to the meter.

Invariants: each piece is recorded as progress and then written to the client, in the event-loop iteration in which it
arrived. Many events that differ only in their text are matched in one pass. The meter reads others afterwards, several
at a time, or before the write if event boundaries are unclear. Nothing is re-serialised. Only the editor holds bytes
back: an unfinished event that may be the injected usage event, or the event that the cost is added to. `lifecycle.py`
decides when a relay begins, pauses and ends; the relay only moves and counts bytes, and reports the end of the body to
its exchange.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from proxy.foundation.slices import in_slice
from proxy.gateway.upstream.connection import CatchUp
from proxy.http.framing import EACH_A_CHUNK
from proxy.journal.progress import Slot
from proxy.metering.dialect import AnswerEditor
from proxy.metering.metered import BodyMeter
from proxy.metering.usage import NOT_RUNNING
from proxy.metering.wire.event_template import TemplateMatch, TemplateMatcher
from proxy.metering.wire.framing import SSE, Framing
from proxy.telemetry.metrics import Gaps

# Once for this many events, the meter reads what it has not read yet, and its counts are noted.
EVENTS_PER_NOTE = 64
# At first more often, whenever a quarter of the stream is not noted: an estimate after a crash extrapolates by a third
# at most, never from one word to a page.
UNNOTED_SHARE = 4
# At least this many events in one piece are matched with one another before they are written: that is cheaper than
# finding the end of each. Fewer are kept until the meter reads many, which is cheaper.
BURST_EVENTS = 4


class BodyListener(Protocol):
    """The exchange of a relay. Calls are synchronous."""

    def body_folded(self, meter: BodyMeter) -> None:
        """The meter has read everything so far."""

    def body_ended(self) -> None:
        """The body is complete by the provider's framing."""

    def body_broke(self) -> None:
        """The connection or its framing failed before the end of the body."""

    def body_lost(self) -> None:
        """A bug of ours while a piece was processed: the client may lack it, even if the meter has read it."""


class Relay:
    """One body. The hot path is `relay_matched`, then `piece`; all else runs a few times per body.

    Pieces are written to the client from `attach` to `detach`; before and after, they are only metered. `kept`: the
    body so far; None if it is longer than `keep_max` bytes.
    """

    __slots__ = (
        "_at_event_boundary",
        "_beat",
        "_chunked",
        "_editor",
        "_ends",
        "_events_in_last_piece",
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
        meter.is_awaited = True
        self.events = 0
        self.bytes = 0
        self.first_token_at: float | None = None
        self.last_at = monotonic()
        self._events_in_last_piece = 0  # events of the last piece
        self.sound = True
        """no piece was lost by a bug of ours"""
        self.kept: bytearray | None = bytearray() if keep_max else None
        self._keep_max = keep_max
        self._listener = listener
        self._beat = framing.heartbeat
        self._quiet = framing.quiet
        self._ends = ends
        self._editor = editor
        self._at_event_boundary = True  # of the editor: it holds nothing, and plain events may bypass it
        self._slot = slot
        self._gaps = gaps
        self._unnoted = 0  # events since the last note, or more
        self._note_after = 1  # unnoted events until the next note
        self._run: TemplateMatcher | None = None  # matches the next events, if they differ in their text only
        self._run_in_chunks: TemplateMatcher | None = None  # matches them in the provider's chunks
        self._whole = meter.at_boundary
        self._transport: asyncio.WriteTransport | None = None
        self._chunked = True

    def attach(self, transport: asyncio.WriteTransport, *, chunked: bool) -> None:
        """Write to this client from now on, in chunks if it supports HTTP/1.1."""
        transport.set_write_buffer_limits(high=0, low=0)  # no buffer but the kernel's, which is written to at once
        self._transport = transport
        self._chunked = chunked

    def relay_matched(self, wire: bytes) -> bool:
        """Relay raw bytes if they are one chunk per event and match the previous event. Returns False otherwise."""
        reader = self._run_in_chunks
        if reader is None:
            return False
        found = reader.read(wire)
        if found is None:
            self._run_in_chunks = None
            return False
        self._relay_matched(found, wire)
        return True

    def piece(self, payload: bytes, framed: bytes | None = None) -> CatchUp | None:
        """Relay a piece of the body. `framed`: the same bytes as whole HTTP chunks, if they arrived so."""
        found = None if self._run is None else self._run.read(payload)
        if found is not None:
            self._relay_matched(found, self._on_wire(payload, framed))
            return None
        self._run = self._run_in_chunks = None  # set again when the meter has read
        self._arrived()
        events = self._events_in_last_piece = self._quiet(payload) if self._whole else 0
        if events:
            for part in self._ends:
                if part in payload:
                    break
            else:
                self._relay_unparsed(payload, events, framed)
                return None
        self._relay_parsed(payload, framed)
        return self._catch_up if self.meter.behind else None

    def _catch_up(self) -> bool:
        """The meter reads more of the pieces that were relayed. Returns whether it has read them."""
        if not self.meter.catch_up():
            return False
        self._fold()
        self._whole = self.meter.at_boundary
        return not self.meter.behind

    def _relay_matched(self, found: TemplateMatch, wire: bytes) -> None:
        """Events that the matcher has read."""
        self._events_in_last_piece = found.events
        if self._transport is not None:
            self.events += found.events
            self._write(wire, found.size)
        self._arrived()
        self.meter.take(found)
        self._unnoted += found.events
        if self._unnoted >= self._note_after:
            self._note()

    def _relay_unparsed(self, payload: bytes, events: int, framed: bytes | None) -> None:
        """Whole plain events, none of them the last: the meter reads them later."""
        self._unnoted += events
        transport = self._transport
        if transport is not None:
            self.events += events
            if self._at_event_boundary:
                self.bytes += len(payload)
                self._slot.deliver(self.events, self.bytes)
                transport.write(framed if framed is not None and self._chunked else self._on_wire(payload))
            else:
                assert self._editor is not None
                self._write_payload(self._editor.feed(payload))
                self._at_event_boundary = self._editor.idle
        self.meter.feed(payload)
        if self._unnoted >= self._note_after or self.first_token_at is None:
            self._fold()

    def _relay_parsed(self, payload: bytes, framed: bytes | None) -> None:
        """Any other piece: the meter reads it before it is relayed."""
        meter, editor = self.meter, self._editor
        if self.kept is not None:
            self._keep(payload)
        if editor is not None and editor.follows_meter and self._transport is not None:
            out = self._relay_edited(payload, editor)
        else:
            meter.feed(payload)
            if self._transport is None and self.kept is not None:
                return  # a plain answer is metered at its end, and nothing is written before
            if editor is None or self._transport is None:
                out = payload
            else:
                out = editor.feed(payload)
                self._at_event_boundary = editor.idle
        self._fold()
        self._whole = meter.at_boundary
        if self._transport is None:
            return
        self.events = self._exact_events()
        # Compare bytes, not lengths: bytes held before and bytes held now can be of one length.
        if framed is not None and out == payload:
            self._write(self._on_wire(payload, framed), len(payload))
        else:
            self._write_payload(out)

    def _relay_edited(self, payload: bytes, editor: AnswerEditor) -> bytes:
        """Meter each event before the editor adds the cost so far."""
        out: list[bytes] = []
        for piece in editor.pieces(payload):
            self.meter.feed(piece)
            out.append(editor.feed(piece))
        self._at_event_boundary = editor.idle
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
        """`payload` in the client's framing."""
        if not self._chunked:
            return payload
        return framed if framed is not None else b"%x\r\n%b\r\n" % (len(payload), payload)

    def _write_payload(self, payload: bytes) -> None:
        if payload:
            self._write(self._on_wire(payload), len(payload))

    def _write(self, wire: bytes, size: int) -> None:
        """Record the progress, then write to the client. `size`: bytes of the body in `wire`."""
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
        running = NOT_RUNNING if usage is None else tally.running
        self._slot.note(tally.evidence, usage, tally.events, running, tally.seen)
        matcher = meter.matcher if self._events_in_last_piece >= BURST_EVENTS and self._at_event_boundary else None
        if matcher is not self._run:
            self._run = matcher
            self._run_in_chunks = None
            if matcher is not None and self._chunked and self._transport is not None:
                self._run_in_chunks = TemplateMatcher(matcher.template, EACH_A_CHUNK)
        if self._listener is not None:
            self._listener.body_folded(meter)

    @property
    def whole(self) -> bool:
        """True if the client has received whole events only: an event of the proxy may follow."""
        return self._whole

    def heartbeat(self) -> None:
        """Send a comment to a waiting client, only between two whole events. It is neither counted nor metered."""
        beat = self._beat
        if beat and self._transport is not None and self._whole and self._at_event_boundary:
            self._transport.write(b"%x\r\n%b\r\n" % (len(beat), beat) if self._chunked else beat)

    def detach(self) -> None:
        """The client has disconnected: the counts of delivered bytes are final; further bytes are only metered."""
        self.settle_counts()
        self._transport = self._run_in_chunks = None

    def settle_counts(self) -> None:
        """Make `events` exact: whole events relayed, without the stripped one."""
        if self._transport is not None:
            if self._unnoted:
                self._fold()
            exact = self._exact_events()
            self.events = exact if self.sound else max(self.events, exact)  # the meter may lack relayed events

    def _exact_events(self) -> int:
        """Events that the meter has read, without the stripped one. The events of a stream that is labelled as JSON are
        read at its end."""
        return max(0, self.meter.tally.events - (0 if self._editor is None else self._editor.stripped))

    def flush(self) -> None:
        """The body has ended: write the bytes that the editor holds, unless they are the usage event."""
        if self._editor is not None and self._transport is not None:
            rest = self._editor.close()
            if rest and self.kept is not None and self._editor.follows_meter:  # a plain answer is held as a whole
                self.kept[:] = rest
            self._write_payload(rest)

    def say(self, event: bytes) -> bool:
        """Write an event of the proxy (an error) between two whole events. Returns False within an event."""
        if self._transport is None or not self._whole or not event:
            return False
        self.events += 1
        self._write_payload(event)
        return True

    def deliver(self, body: bytes) -> None:
        """Record the whole collected body as about to be written; the caller writes it."""
        tally = self.meter.tally
        self._slot.note(tally.evidence, tally.usage, 0, seen=tally.seen)
        self.bytes = len(body)
        self._slot.deliver(0, self.bytes)

    def drop(self) -> None:
        """Report nothing more to the exchange, and drop the reference: a cycle would live until a garbage
        collection."""
        self._listener = None

    # -- called by the upstream connection

    def complete(self) -> None:
        """The body is complete."""
        if self.meter.bytes_seen > self.meter.sure_bytes and not self._is_read_before(self.complete):
            return
        if self._listener is not None:
            self._listener.body_ended()

    def upstream_error(self) -> None:
        """The upstream connection or its framing failed."""
        if self.meter.bytes_seen > self.meter.sure_bytes and not self._is_read_before(self.upstream_error):
            return
        self._fold()
        if self._listener is not None:
            self._listener.body_broke()

    def _is_read_before(self, end: Callable[[], None]) -> bool:
        """Whether the meter can be closed. If not, it reads on, and `end` is called again in a later callback."""
        if self._listener is None:
            return True
        try:
            if not self.meter.behind:
                self.meter.end()
            if not self.meter.behind:
                return True
            in_slice(self._catch_up)
        except Exception:
            self.internal_error()
            raise  # the event loop logs it
        asyncio.get_running_loop().call_soon(end)
        return False

    def internal_error(self) -> None:
        """A bug of ours while a piece was processed."""
        self.sound = False
        if self._listener is not None:
            self._listener.body_lost()
