"""Resumes streams from memory: `GET /v1/exchanges/{id}/stream`, and for OpenAI's responses the route of the response.

Invariants: only the key that made a stream gets it; for other keys it does not exist. Resuming a stream is no exchange.
The body is, byte by byte, the stream of the first client after the requested place: first the bytes in memory, then the
rest of the stream. A slow client delays no other; if its next bytes were dropped, it gets an error.
"""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.foundation.slices import Slice
from proxy.gateway.authentication import Accepting, authenticated, refuse_byok
from proxy.gateway.passing import passed
from proxy.gateway.resume.others import ASKED_HEADER, PATH, STREAM_PATH, Others
from proxy.gateway.tapes.tape import BeyondError, OverwrittenError, Tape
from proxy.gateway.tapes.tapes import Tapes
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.credentials import presented
from proxy.http.errors import ApiError
from proxy.http.headers import EXCHANGE_HEADER, SERVER, STREAM
from proxy.http.reply import Reply
from proxy.http.server import Routes, Serve
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import is_ours
from proxy.metering.wire.framing import SSE

# Bytes of one write; the next one waits until the client has taken them.
PIECE_BYTES = 64 * 1024
_BOUNDARIES = (b"\n\n", b"\r\n\r\n", b"\r\r")


async def play(
    tape: Tape, place: int, request: web.BaseRequest, connection: ClientConnection, *, stall_s: float
) -> web.StreamResponse:
    """Send the tape to the client. Returns when the client has received it or is gone. `stall_s`: how long the client
    may stall."""
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
        """Send the tape to its end. Raises TimeoutError, ConnectionError."""
        tape, current = self._tape, Slice()
        try:
            while not self._gone:
                await current.give_way()
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
        """No-op: `Reply.drained` waits."""

    def client_drained(self) -> None:
        """No-op: `Reply.drained` continues."""


_ID = re.compile(r"[0-9a-f-]{36}", re.ASCII)
# A stream of a billion events has no end.
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
LAST_EVENT = "Last-Event-ID"


class Place(NamedTuple):
    """The event after which a stream is resumed."""

    events: int | None = None
    """the number of events that the client has"""
    number: int | None = None
    """the `sequence_number` of the client's last event; -1: it has none"""

    @property
    def query(self) -> str:
        """The query of a request to another proxy."""
        return f"after={self.events}" if self.number is None else f"starting_after={self.number}"

    async def on(self, tape: Tape) -> int:
        """The place on a tape. Raises OverwrittenError, BeyondError."""
        if self.number is None:
            return await tape.after_events(self.events or 0)
        return await tape.after_number(self.number)


class ResumeHandler:
    """Serves requests to resume a stream."""

    def __init__(self, *, keys: Keyring, tapes: Tapes, others: Others, stall_s: float, accepting: Accepting) -> None:
        """`stall_s`: how long a client may stall."""
        self._keys = keys
        self._tapes = tapes
        self._others = others
        self._stall_s = stall_s
        self._accepting = accepting

    def add_to(self, routes: Routes) -> None:
        """Add the route, before that of the exchange, whose path is a prefix."""
        routes.named("GET", PATH, STREAM_PATH, self._serving)

    def _serving(self, exchange_id: str) -> Serve:
        async def serve(request: web.BaseRequest, connection: ClientConnection) -> web.StreamResponse:
            return await self._serve(exchange_id, request, connection)

        return serve

    async def _serve(
        self, exchange_id: str, request: web.BaseRequest, connection: ClientConnection
    ) -> web.StreamResponse:
        """Serve one request. Raises ApiError."""
        if request.method == "HEAD":
            raise errors.method_not_allowed("HEAD", ("GET",))
        self._accepting.check()
        key = await authenticated(self._keys, request)
        refuse_byok(key, "Resuming a stream")
        if not key.uses_stored:  # another holder of the parent's key may have begun it
            raise errors.stored_not_allowed()
        place = _place(request)
        tape = self._tape(exchange_id, key)
        if tape is not None and (place.number is None or tape.can_be_completed):
            return await play(tape, await _found(tape, place), request, connection, stall_s=self._stall_s)
        response = await self._of_others(exchange_id, place, request, connection)
        if response is None:
            raise errors.unknown_stream()
        return response

    async def response(
        self, exchange_id: str, key: ApiKey, number: int, request: web.BaseRequest, connection: ClientConnection
    ) -> web.StreamResponse | None:
        """Resume the stream after the event with this `sequence_number`. None: its rest is not in memory, neither here
        nor in another proxy."""
        tape, place = self._tape(exchange_id, key), Place(number=number)
        if tape is None or not tape.can_be_completed:
            return await self._of_others(exchange_id, place, request, connection)
        try:
            at = await place.on(tape)
        except OverwrittenError:
            return None
        return await play(tape, at, request, connection, stall_s=self._stall_s)

    def _tape(self, exchange_id: str, key: ApiKey) -> Tape | None:
        tape = self._tapes.of(exchange_id)
        return tape if tape is not None and tape.key_id == key.key_id else None

    async def _of_others(
        self, exchange_id: str, place: Place, request: web.BaseRequest, connection: ClientConnection
    ) -> web.StreamResponse | None:
        """Relay the stream from another proxy; None: none has it. Raises ApiError."""
        key = presented(request, is_ours)
        if _ID.fullmatch(exchange_id) is None or key is None:
            return None
        asked = request.headers.get(ASKED_HEADER)
        found = await self._others.find(exchange_id, place.query, key, asked=asked)
        if found is None or (place.number is not None and found.answer.status != 200):
            if found is not None:
                found.answer.close()
            return None
        try:
            return await passed(found.answer, found.other, exchange_id, request, connection)
        finally:
            found.answer.close()


async def _found(tape: Tape, place: Place) -> int:
    """The place on the tape. Raises ApiError in the format of the stream's dialect."""
    try:
        return await place.on(tape)
    except OverwrittenError:
        refusal = errors.stream_overwritten()
    except BeyondError as beyond:
        message = f"after: this stream has {beyond.events} events so far"
        refusal = errors.bad_request(message, param="after", code="invalid_value")
    refusal.shape = tape.errors
    raise refusal


def _place(request: web.BaseRequest) -> Place:
    """The place in the request: by `Last-Event-ID`, else by the query. Raises ApiError."""
    if LAST_EVENT in request.headers:
        return Place(_number(LAST_EVENT, request.headers[LAST_EVENT]))
    query = request.query
    if "starting_after" in query:
        text = query["starting_after"]
        return Place(number=-1 if text == "-1" else _number("starting_after", text))
    return Place(_number("after", query["after"]) if "after" in query else 0)


def _number(name: str, text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise _not_a_number(name)
    return int(text)


def _not_a_number(name: str) -> ApiError:
    return errors.bad_request(f"{name}: must be the number of events received so far", param=name, code="invalid_value")
