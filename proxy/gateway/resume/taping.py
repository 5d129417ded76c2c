"""A client's transport whose every write is kept on a tape.

Invariant: the client is written to first. Without a client, what would have been written is kept all the same.
"""

from __future__ import annotations

import asyncio

from proxy.gateway.resume.tape import Tape
from proxy.http.framing import ChunkReader, whole_chunks


class TapedTransport(asyncio.WriteTransport):
    """Gets whole HTTP chunks, or the bytes of a body that is not chunked."""

    __slots__ = ("_chunked", "_client", "_tape")

    def __init__(self, client: asyncio.WriteTransport, tape: Tape, *, chunked: bool) -> None:
        self._client: asyncio.WriteTransport | None = client
        self._tape = tape
        self._chunked = chunked

    def write(self, data: bytes) -> None:  # type: ignore[override]  # nothing else is written here
        """To the client, if there is one, and to the tape."""
        if self._client is not None:
            self._client.write(data)
        self._tape.add(_payload(data) if self._chunked else data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of the client."""
        if self._client is not None:
            self._client.set_write_buffer_limits(high, low)

    def leave(self) -> None:
        """The client is gone."""
        self._client = None


def _payload(chunks: bytes) -> bytes:
    plain = whole_chunks(chunks)
    return ChunkReader().feed(chunks)[0] if plain is None else plain
