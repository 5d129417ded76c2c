"""Meters bodies with a content encoding that nobody requested: the client gets the bytes as they came.

Invariants: what one piece can become is bounded, whatever its provider compressed into it. What cannot be read
is counted by its size.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from proxy.metering.metered import BodyMeter, Metered
from proxy.metering.opaque_meter import OpaqueMeter
from proxy.metering.usage import Evidence, Running, ServedAs, Usage
from proxy.metering.wire.content_coding import CODINGS, BadCodingError, Decompressor
from proxy.metering.wire.event_template import TemplateMatch

# Streams of short events shrink to a thirtieth at most. A piece of 64 KiB can become this much more than the share.
RATIO_MAX = 100
SPARE_BYTES = 1 << 20


class CompressedMeter:
    """Meters what a compressed body contains. `bytes_seen`: of the body as it came."""

    at_boundary = False
    """an own event cannot follow: it would not be compressed"""
    matcher = None

    def __init__(self, inner: BodyMeter) -> None:
        self._inner = inner
        self._decompressor: Decompressor | None = Decompressor()
        self._read = 0  # decompressed bytes
        self._metered: Metered | None = None
        self.bytes_seen = 0
        self._unread = 0

    def take(self, match: TemplateMatch) -> None:
        """Never called: there is no matcher."""

    def feed(self, payload: bytes) -> None:
        """More of the body."""
        self.bytes_seen += len(payload)
        if self._decompressor is None:
            self._unread += len(payload)
            return
        if not self._feed_inner(self._decompressor.feed(payload), SPARE_BYTES + RATIO_MAX * self.bytes_seen):
            self._decompressor = None
            self._unread += len(payload)

    def _feed_inner(self, pieces: Iterator[bytes], read_max: int) -> bool:
        """Returns False for a body that is not compressed as stated, or expands to more than `read_max` bytes."""
        try:
            for piece in pieces:
                self._read += len(piece)
                if self._read > read_max:
                    return False
                self._inner.feed(piece)
        except BadCodingError:
            return False
        return True

    def fold(self) -> None:
        """Read everything fed so far."""
        self._inner.fold()

    @property
    def events(self) -> int:
        """Whole events that the bytes so far contain."""
        return self._inner.events

    @property
    def done(self) -> bool:
        """The dialect's last event was received."""
        return self._inner.done

    @property
    def evidence(self) -> Evidence:
        """Of the text so far."""
        return self._inner.evidence

    @property
    def usage(self) -> Usage | None:
        """As reported so far."""
        return self._inner.usage

    @property
    def running(self) -> Running:
        """As reported so far."""
        return self._inner.running

    @property
    def served_as(self) -> ServedAs:
        """As reported so far."""
        return self._inner.served_as

    @property
    def response_id(self) -> str | None:
        """The provider's id of the answer."""
        return self._inner.response_id

    @property
    def in_background(self) -> bool | None:
        """What the provider has said of that."""
        return self._inner.in_background

    def final_so_far(self, answers: int) -> None:
        """Never: nothing is added to what is compressed."""

    def close(self) -> Metered:
        """The body has ended. Idempotent."""
        if self._metered is None:
            metered = self._inner.close()
            if self._unread:
                metered.evidence.chars_latin += self._unread
                metered.evidence.text_events += 1
                flags = tuple(sorted({*metered.flags, *OpaqueMeter.flags}))
                metered = structs.replace(metered, complete=True, flags=flags)
            self._metered = metered
        return self._metered


def compressed_meter(coding: str, inner: BodyMeter) -> BodyMeter:
    """For a body with this Content-Encoding, in lower case, around what `inner` meters."""
    return CompressedMeter(inner) if coding in CODINGS else OpaqueMeter()
