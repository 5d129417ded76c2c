"""Meters bodies with a content encoding that the proxy did not request. The client gets the compressed bytes unchanged.

Invariants: the decompressed size of one piece is bounded. Bytes that cannot be read are counted by their size.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from proxy.metering.metered import BodyMeter, Metered, OpaqueMeter
from proxy.metering.wire.content_coding import CODINGS, BadCodingError, Decompressor

# Streams of short events shrink to a thirtieth at most. A piece of 64 KiB can become this much more than the share.
RATIO_MAX = 100
SPARE_BYTES = 1 << 20


class CompressedMeter(BodyMeter):
    """Meters the content of a compressed body. `bytes_seen`: compressed bytes. Own events cannot follow."""

    __slots__ = ("_decompressor", "_inner", "_opaque_bytes", "_read")

    def __init__(self, inner: BodyMeter) -> None:
        super().__init__(inner.tally)
        self._inner = inner
        self._decompressor: Decompressor | None = Decompressor()
        self._read = 0  # decompressed bytes
        self._opaque_bytes = 0

    def feed(self, payload: bytes) -> None:
        self.bytes_seen += len(payload)
        if self._decompressor is None or not self._feed_inner(self._decompressor.feed(payload)):
            self._decompressor = None
            self._opaque_bytes += len(payload)

    def _feed_inner(self, pieces: Iterator[bytes]) -> bool:
        """Returns False for a body that is not compressed as stated, or expands too much."""
        read_max = SPARE_BYTES + RATIO_MAX * self.bytes_seen
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
        self._inner.fold()

    @property
    def done(self) -> bool:
        return self._inner.done

    def _result(self) -> Metered:
        metered = self._inner.close()
        self.tally = self._inner.tally
        if not self._opaque_bytes:
            return metered
        metered.evidence.chars_latin += self._opaque_bytes
        metered.evidence.text_events += 1
        flags = tuple(sorted({*metered.flags, *OpaqueMeter.flags}))
        return structs.replace(metered, complete=True, flags=flags)


def compressed_meter(coding: str, inner: BodyMeter) -> BodyMeter:
    """The meter of a body with this Content-Encoding, in lower case. `inner`: meters the content."""
    return CompressedMeter(inner) if coding in CODINGS else OpaqueMeter()
