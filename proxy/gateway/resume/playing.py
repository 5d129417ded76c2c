"""Plays a tape to a client from a place on: first the bytes in memory, then the rest of the stream.

Invariants: the body is, byte by byte, the stream of the first client after that place. A slow client delays no other;
if its next bytes were dropped, it gets an error.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from proxy.gateway.tapes.tape import OverwrittenError, Tape
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.errors import ApiError
from proxy.http.headers import EXCHANGE_HEADER, SERVER, STREAM
from proxy.http.reply import Reply
from proxy.metering.wire.framing import SSE

# Bytes of one write; the next one waits until the client has taken them.
PIECE_BYTES = 64 * 1024
_BOUNDARIES = (b"\n\n", b"\r\n\r\n", b"\r\r")


async def play(
    tape: Tape, place: int, request: web.BaseRequest, connection: ClientConnection, *, stall_s: float
) -> web.StreamResponse:
    """Play the tape. Returns when the client has taken it or is gone. `stall_s`: how long the client may stall."""
    reply, transport = Reply(request), request.transport
    fields = (EXCHANGE_HEADER, tape.exchange_id), SERVER, *connection.headers
    headers = (("Content-Type", tape.content_type), *STREAM, *fields)
    if transport is None or not reply.begin(200, headers, length=None):
        return reply
    player = _Player(tape, place, reply, transport)
    connection.listener = player
    tape.readers += 1
    tape.resumed()
    try:
        await player.play(stall_s)
    except (TimeoutError, ConnectionError):
        transport.abort()
    finally:
        tape.readers -= 1
        connection.listener = None
    return reply


class _Player:
    """Writes to one client, and receives the events of its connection."""

    def __init__(self, tape: Tape, place: int, reply: Reply, transport: asyncio.WriteTransport) -> None:
        self._tape = tape
        self._place = place
        self._reply = reply
        self._transport = transport
        self._gone = False
        self._between = True  # the last write ended between two events

    async def play(self, stall_s: float) -> None:
        """Play to the end. Raises TimeoutError, ConnectionError."""
        tape = self._tape
        try:
            while not self._gone:
                piece = tape.read(self._place, PIECE_BYTES)
                if piece:
                    self._place += len(piece)
                    self._between = piece.endswith(_BOUNDARIES)
                    self._write(piece)
                    async with asyncio.timeout(stall_s):
                        await self._reply.drained()
                elif tape.ended:
                    break
                else:
                    await self._wait()
        except OverwrittenError:
            self._break_off(errors.stream_overwritten())
        else:
            self._end()

    async def _wait(self) -> None:
        """Wait for more bytes. After `heartbeat_s`, the client gets a comment."""
        tape = self._tape
        await tape.more(self._place, tape.heartbeat_s or None)
        if tape.heartbeat_s and self._between and not self._gone and not tape.has_more(self._place):
            self._write(SSE.heartbeat)

    def _end(self) -> None:
        if self._gone:
            return
        if self._tape.whole:
            self._reply.end()
        elif self._tape.error_sent:
            self._transport.close()
        else:
            self._break_off(errors.stream_incomplete())

    def _break_off(self, refusal: ApiError) -> None:
        if self._between and not self._gone:
            self._write(refusal.event(self._tape.errors))
        self._transport.close()

    def _write(self, payload: bytes) -> None:
        chunked = self._reply.chunked_body
        self._transport.write(b"%x\r\n%b\r\n" % (len(payload), payload) if chunked else payload)

    def client_left(self) -> None:
        self._gone = True
        self._tape.wake()

    def client_full(self) -> None:
        """Nothing to do: `Reply.drained` waits."""

    def client_drained(self) -> None:
        """Nothing to do: `Reply.drained` continues."""
