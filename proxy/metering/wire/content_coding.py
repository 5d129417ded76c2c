"""Decompresses bodies piece by piece.

Invariant: a call returns at most SLICE_BYTES, so that the caller can bound the memory and yield to other tasks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

CODINGS = frozenset(("gzip", "x-gzip", "deflate"))
"""values of Content-Encoding, in lower case, that Python decompresses without another library"""
SLICE_BYTES = 256 << 10
# Compressed bytes read in one step: the rest of a step is copied at the end of each gzip member.
STEP_BYTES = 16 << 10
# gzip members of a whole body, some of which may be empty: four times as many as bgzip makes of 64 MiB.
MEMBERS_MAX = 4096

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class BadCodingError(ValueError):
    """The bytes are not compressed as stated."""


class TooLongError(ValueError):
    """The body expands to more than is allowed."""


class Decompressor:
    """One body, of one gzip member or several. `members_max`: None if the body arrives piece by piece."""

    def __init__(self, members_max: int | None = None) -> None:
        self._member = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._members_left = members_max
        self._begun = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The content of `piece`, in slices. Consume all of them before the next piece. Raises BadCodingError."""
        out, at = b"", 0
        while at < len(piece) or len(out) == SLICE_BYTES:  # a full slice may have left output in the decompressor
            step = piece[at : at + STEP_BYTES]
            if self._member.eof and step:
                self._next_member()
            self._begun = True
            try:
                out = self._member.decompress(step, SLICE_BYTES)
            except zlib.error:
                raise BadCodingError("not compressed as stated") from None
            at += len(step) - len(self._member.unconsumed_tail or self._member.unused_data)
            if out:
                yield out

    def _next_member(self) -> None:
        if self._members_left is not None:
            self._members_left -= 1
            if not self._members_left:
                raise BadCodingError("too many members")
        self._member = zlib.decompressobj(_GZIP_OR_ZLIB)

    def end(self) -> None:
        """The end of the body. Raises BadCodingError if the compressed data is incomplete."""
        if self._begun and not self._member.eof:
            raise BadCodingError("cut")


def slices(body: bytes, bytes_max: int) -> Iterator[bytes]:
    """A whole body, slice by slice. Raises BadCodingError, and TooLongError beyond `bytes_max`."""
    decompressor = Decompressor(MEMBERS_MAX)
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
