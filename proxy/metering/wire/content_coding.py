"""Decompresses bodies piece by piece.

Invariant: a call returns at most SLICE_BYTES, so that whoever calls can bound the memory and give others their turn.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

CODINGS = frozenset(("gzip", "x-gzip", "deflate"))
"""of Content-Encoding, in lower case; what Python decompresses without another library"""
SLICE_BYTES = 256 << 10

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class BadCodingError(ValueError):
    """The bytes are not compressed as stated."""


class TooLongError(ValueError):
    """It expands to more than is allowed."""


class Decompressor:
    """One body, of one gzip member or several."""

    __slots__ = ("_begun", "_member")

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._begun = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """What `piece` contains, in slices. Consume all of them before the next piece. Raises BadCodingError."""
        out = b""
        while piece or len(out) == SLICE_BYTES:  # a full slice may have left output in the decompressor
            if self._member.eof and piece:
                self._member = zlib.decompressobj(_GZIP_OR_ZLIB)
            self._begun = True
            try:
                out = self._member.decompress(piece, SLICE_BYTES)
            except zlib.error:
                raise BadCodingError("not compressed as stated") from None
            piece = self._member.unconsumed_tail or self._member.unused_data
            if out:
                yield out

    def end(self) -> None:
        """The body has ended. Raises BadCodingError if its compression has not."""
        if self._begun and not self._member.eof:
            raise BadCodingError("cut")


def slices(body: bytes, bytes_max: int) -> Iterator[bytes]:
    """A whole body, slice by slice. Raises BadCodingError, and TooLongError beyond `bytes_max`."""
    decompressor = Decompressor()
    size = 0
    for piece in decompressor.feed(body):
        size += len(piece)
        if size > bytes_max:
            raise TooLongError
        yield piece
    decompressor.end()


def decompressed(body: bytes, bytes_max: int) -> bytes | None:
    """A whole body; None if it is longer than `bytes_max`, broken or cut."""
    try:
        return b"".join(slices(body, bytes_max))
    except (BadCodingError, TooLongError):
        return None
