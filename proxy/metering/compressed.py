"""Meters bodies with a content encoding that the proxy did not request. The client gets the compressed bytes unchanged.

Invariants: the decompressed size of all pieces is bounded, and so is the number of bytes that are read at once. Bytes
that cannot be read are counted by their size.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from proxy.metering.metered import BodyMeter, Metered, OpaqueMeter
from proxy.metering.wire.content_coding import CODINGS, BadCodingError, Decompressor
from proxy.metering.wire.parts import Parts

# Streams of short events shrink to a thirtieth at most. A piece of 64 KiB can become this much more than the share.
RATIO_MAX = 100
SPARE_BYTES = 1 << 20


class CompressedMeter(BodyMeter):
    """Meters the content of a compressed body. `bytes_seen`: compressed bytes. Own events cannot follow."""

    __slots__ = ("_decompressor", "_inner", "_opaque_bytes", "_read", "_unread_bytes", "_work")

    sure_bytes = 0

    def __init__(self, inner: BodyMeter) -> None:
        super().__init__(inner.tally)
        self._inner = inner
        self._decompressor: Decompressor | None = Decompressor()
        self._read = 0  # decompressed bytes
        self._work: Iterator[None] = iter(())  # on the last piece, part by part
        self._unread_bytes = 0  # the size of that piece, if it is not read yet
        self._opaque_bytes = 0

    def feed(self, payload: bytes) -> None:
        while self.behind:  # the caller did not call `catch_up`
            self.catch_up()
        self.bytes_seen += len(payload)
        self._unread_bytes = len(payload)
        self._work = self._reading(self._decompressor, payload)
        self.catch_up()

    def catch_up(self) -> bool:
        self.behind = next(self._work, self) is None
        return not self.behind

    def end(self) -> None:
        while self.behind:  # the caller did not call `catch_up`
            self.catch_up()
        self._inner.end()
        self._work, self.behind = self._catching_up(), self._inner.behind

    def give_up(self) -> None:
        if self._unread_bytes:
            self._be_opaque()
        self._inner.give_up()
        self._work, self.behind = iter(()), False

    def _reading(self, decompressor: Decompressor | None, payload: bytes) -> Iterator[None]:
        """Read a piece, with a stop before each further part. A body that is not compressed as stated, or that expands
        too much, is opaque from there on."""
        if decompressor is None:
            self._be_opaque()
            return
        begun = False
        try:
            for content in decompressor.feed(payload):
                self._read += len(content)
                if self._read > SPARE_BYTES + RATIO_MAX * self.bytes_seen:
                    self._be_opaque()
                    return
                parts = Parts(content)
                while parts:
                    if begun:
                        yield
                    begun = True
                    yield from self._catching_up()
                    self._inner.feed(parts.take())
                    self._inner.fold()
        except BadCodingError:
            self._be_opaque()
        self._unread_bytes = 0
        yield from self._catching_up()

    def _catching_up(self) -> Iterator[None]:
        while self._inner.behind:
            yield
            self._inner.catch_up()

    def _be_opaque(self) -> None:
        """The piece that is being read, and all after it, cannot be read."""
        self._decompressor = None
        self._opaque_bytes += self._unread_bytes
        self._unread_bytes = 0

    def fold(self) -> None:
        if not self._inner.behind:
            self._inner.fold()
        if self._inner.behind and not self.behind:
            self._work = self._catching_up()
            self.catch_up()

    @property
    def done(self) -> bool:
        return self._inner.done

    def _result(self) -> Metered:
        self.end()
        while self.behind:
            self.catch_up()
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
