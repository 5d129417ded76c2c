"""The bytes of a body that arrive before it has a sink.

Invariant: all of them go to the sink, in their order; `payload` reads them earlier, and removes none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from proxy.http.framing import ChunkReader, LengthReader


class EarlyBody:
    """The early bytes of one connection, one body after the other."""

    __slots__ = ("_awaited", "_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._awaited: asyncio.Future[None] | None = None
        self.size = 0
        """in bytes, with the chunk headers"""

    def add(self, piece: bytes) -> None:
        """Append the next bytes."""
        self._pieces.append(piece)
        self.size += len(piece)
        if self._awaited is not None:
            self.wake()

    def take(self) -> bytes:
        """Remove and return all bytes, for the sink."""
        taken, self._pieces, self.size = b"".join(self._pieces), [], 0
        return taken

    def wake(self) -> None:
        """Make `payload` check again: more bytes arrived, or the connection is lost."""
        awaited, self._awaited = self._awaited, None
        if awaited is not None and not awaited.done():
            awaited.set_result(None)

    async def payload(self, reader: ChunkReader | LengthReader, goes_on: Callable[[], bool]) -> AsyncGenerator[bytes]:
        """The decoded body, piece by piece as it arrives, until it ends. `reader`: a new one. `goes_on`: whether more
        may arrive; it may raise, too. Raises BadFramingError."""
        read = 0
        while reader.rest is None:
            if read < len(self._pieces):
                piece, _ = reader.feed(self._pieces[read])
                read += 1
                yield piece
                if reader.broken is not None:
                    raise reader.broken
            elif goes_on():
                self._awaited = asyncio.get_running_loop().create_future()
                await self._awaited
            else:
                return
