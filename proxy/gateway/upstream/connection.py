"""One connection to a provider, for one request at a time.

Invariants: a piece of a body reaches its sink in the same event-loop callback; one that takes longer than a slice does
so in parts, the others in the next callbacks. Only those parts, and bytes that arrive before the sink is set, are
buffered, and the socket is paused meanwhile. The connection's end is noticed after all that was received. A connection
is reused only if the answer ended exactly where its framing ends. A connection that switches protocols on request is
handed over, and never returns to the pool.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Protocol, TypeAlias, cast

from proxy.foundation.slices import in_slice
from proxy.gateway.upstream.early import EarlyBody
from proxy.gateway.upstream.failures import NotSentError, UpstreamFailedError
from proxy.http.framing import (
    HEAD_BYTES_MAX,
    BadFramingError,
    ChunkReader,
    Head,
    LengthReader,
    read_head,
    whole_chunks,
)
from proxy.metering.wire.parts import Parts

# Interim answers (1xx) to one request. A server that sends 102 every ten seconds has a quarter of an hour.
INTERIM_MAX = 100
# Bytes that may arrive between the head and the sink (one iteration of the loop) before the socket is paused.
EARLY_BYTES_MAX = 64 * 1024
# Bytes of a request that are written in one step, in a millisecond or two with TLS.
WRITTEN_BYTES_MAX = 256 * 1024
_SLICE_BYTES = 64 * 1024
# A longer piece is read in parts: the work of this one is bounded, whatever it is.
PIECE_BYTES_MAX = 4096

CatchUp: TypeAlias = Callable[[], bool]
"""Does some milliseconds of a piece's remaining work. Returns whether it is finished."""


def _refused_certificate(failure: Exception | None) -> bool:
    """True if the provider rejected the client certificate. TLS 1.3 allows this after the client's part of the
    handshake, but before the request is read."""
    return isinstance(failure, ssl.SSLError) and "ALERT" in (reason := failure.reason or "") and "CERT" in reason


class Sink(Protocol):
    """Receives the pieces of a body."""

    def relay_matched(self, wire: bytes) -> bool:
        """Raw bytes of a chunked body. Returns False if they must be decoded and passed to `piece`."""

    def piece(self, payload: bytes, framed: bytes | None = None) -> CatchUp | None:
        """A piece of the body. `framed`: the same bytes as whole HTTP chunks, if they arrived so. Returns a function to
        call before the next piece, repeatedly until it returns True; None: none. The end of the body does not wait for
        it."""

    def complete(self) -> None:
        """The body is complete."""

    def upstream_error(self) -> None:
        """The connection or its framing failed before the end of the body."""

    def internal_error(self) -> None:
        """A bug of ours while a piece was processed: it may be missing."""


def _slices(*pieces: bytes) -> Iterator[bytes]:
    """Cut the pieces, and join short ones, to pieces of at most _SLICE_BYTES."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        for at in range(0, len(piece), _SLICE_BYTES):
            part = piece[at : at + _SLICE_BYTES]
            if size + len(part) > _SLICE_BYTES:
                yield b"".join(held)
                held, size = [], 0
            held.append(part)
            size += len(part)
    yield b"".join(held)


class UpstreamConnection(asyncio.Protocol):
    """Created by the pool. `ask`, then `relay_to`; then it returns to the pool or closes."""

    def __init__(self, idle: Callable[[UpstreamConnection], None], gone: Callable[[UpstreamConnection], None]) -> None:
        self._idle = idle
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._unread = select.poll()
        self._head: bytearray = bytearray()
        self._interim = 0  # interim answers (1xx) to the current request
        self._asked: asyncio.Future[Head] | None = None
        self._reader: ChunkReader | LengthReader | None = None
        self._chunks: ChunkReader | None = None  # `_reader`, if it is one: saves a check on the hot path
        self._early = EarlyBody()
        self._parts: Parts | None = None  # received bytes that are not read yet; None: all are
        self._catch_up: CatchUp | None = None  # before the next of them
        self._paused = False  # by the exchange
        self._sink: Sink | None = None
        self._keep_alive = False
        self._said_end = False
        self._unsent: Iterator[bytes] | None = None  # of a long request
        self._is_full = False  # the transport has more than it should
        self._switches = False  # the request asks for another protocol
        self.switched: Head | None = None
        """the head of the 101 answer, after a switch of protocols"""
        self.checkout = 0
        """number of the current checkout; calls with an older number are ignored"""

    # -- called by the exchange

    def ask(self, request: bytes, *rest: bytes, switches: bool = False) -> asyncio.Future[Head]:
        """Send a request. `rest`: further pieces of its body. The future resolves to the head of the answer, or fails
        with UpstreamFailedError. `switches`: the request asks for another protocol; after a 101 answer, `hand_over` the
        connection."""
        assert self._asked is None, "one request at a time"
        assert self._reader is None, "one request at a time"
        asked = asyncio.get_running_loop().create_future()
        if self._transport is None:
            asked.set_exception(NotSentError("disconnected"))
        else:
            self._asked = asked
            self._head = bytearray()
            self._interim = 0
            self._switches = switches
            if not rest and len(request) <= WRITTEN_BYTES_MAX:
                self._transport.write(request)
            else:
                self._unsent = _slices(request, *rest)
                self._write_on()
        return asked

    def hand_over(self, protocol: asyncio.Protocol) -> tuple[asyncio.Transport, bytes]:
        """Hand the transport over to `protocol`, which must call `connection_lost` at its end. Returns the transport,
        and the bytes that arrived after the head. Raises UpstreamFailedError."""
        assert self.switched is not None, "it was not asked to switch, or did not"
        if self._transport is None:
            raise UpstreamFailedError("disconnected")
        rest, self._head = bytes(self._head), bytearray()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        return self._transport, rest

    def early_payload(self) -> AsyncGenerator[bytes]:
        """The decoded body, piece by piece as it arrives, before `relay_to`, which sends all of it to the sink. Ends
        with the body. Raises UpstreamFailedError if it breaks off or too much has arrived, BadFramingError."""
        assert self._reader is not None, "its head was read, its body is still to come"
        return self._early.payload(self._reader.afresh(), self._goes_on)

    def _goes_on(self) -> bool:
        """Whether more of a body without a sink may arrive. Raises UpstreamFailedError."""
        if self._transport is not None and not self._paused:
            return True
        if self._transport is None and self._ended_by_closing:
            return False
        raise UpstreamFailedError("disconnected" if self._transport is None else "too long")

    @property
    def _ended_by_closing(self) -> bool:
        """Whether the connection's end is the end of the body."""
        return self._said_end and isinstance(self._reader, LengthReader) and self._reader.ends_with_connection

    def relay_to(self, sink: Sink) -> None:
        """Send the body to `sink`."""
        assert self._sink is None, "a body is relayed once"
        early = self._early.take() if self._early.size else b""
        self._sink = sink
        assert self._reader is not None, "its head was read, its body is still to come"
        self.resume_reading()
        if len(early) > PIECE_BYTES_MAX:
            self._read_in_parts(early)
            return
        if early or self._reader.rest is not None:
            self._feed(early)
        if self._sink is sink and self._parts is None and self._transport is None:
            self._finish_disconnected()  # the connection was lost before the body had a sink

    def release_or_abort(self) -> None:
        """Discard the rest of the answer. Closes the connection if the answer has not ended."""
        self._sink = self._parts = self._catch_up = None
        if self._asked is not None or self._reader is not None or self.switched is not None:
            self.abort()

    def pause_reading(self) -> None:
        """Stop reading from the socket (backpressure)."""
        self._paused = True
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading from the socket, once all received parts are read."""
        self._paused = False
        if (
            self._parts is None
            and self._transport is not None
            and not self._transport.is_closing()
            and not self._transport.is_reading()
        ):
            self._transport.resume_reading()

    @property
    def usable(self) -> bool:
        """True if it is open and idle, and the kernel has no unread bytes for it.

        The provider may have closed it since the last event-loop iteration; a request written then is lost and must
        not be sent twice. Unsolicited bytes also make it unusable.
        """
        at_rest = self._transport is not None and not self._transport.is_closing() and self._reader is None
        return at_rest and not self._unread.poll(0)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        # A TLS transport that was closed twice has no protocol, and early releases of Python 3.11 would raise.
        if self._transport is not None and getattr(self._transport, "_ssl_protocol", self) is not None:
            self._transport.abort()

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its type
        sock = transport.get_extra_info("socket")
        if sock is not None:
            self._unread.register(sock.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived. Hot path: a piece of a body first."""
        try:
            if self._parts is not None:
                self._parts.append(data)
                return
            sink, chunks = self._sink, self._chunks
            if sink is None:
                self._received_without_sink(data)
                return
            if chunks is not None and not chunks.within_chunk:
                if sink.relay_matched(data):
                    return
                payload = whole_chunks(data) if len(data) <= PIECE_BYTES_MAX else None
                if payload is not None:
                    catch_up = sink.piece(payload, data)
                    if catch_up is not None:
                        self._wait(catch_up)
                    return
            if len(data) > PIECE_BYTES_MAX:
                self._read_in_parts(data)
            else:
                self._feed(data)
        except Exception:
            if self._sink is not None:
                self._sink.internal_error()
            raise  # the event loop logs it and closes the connection

    def _received_without_sink(self, wire: bytes) -> None:
        if self._reader is not None:
            self._keep_early(wire)
        elif self._asked is not None:
            self._read_head(wire)
        elif self.switched is not None:
            self._head += wire
        else:
            self.abort()  # unsolicited bytes

    def eof_received(self) -> None:
        """The provider has closed its side. The transport closes itself, and `connection_lost` follows."""
        self._said_end = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._unsent = None
        self._gone(self)
        self._early.wake()
        if self._parts is None and (self._reader is None or self._sink is not None):
            if _refused_certificate(exc) and self._asked is not None and not self._asked.done():
                self._asked.set_exception(NotSentError("not connected: the client certificate is refused"))
            self._finish_disconnected()  # else the buffered bytes are relayed first

    def pause_writing(self) -> None:
        """The socket's write buffer is full: the provider reads too slowly."""
        self._is_full = True

    def resume_writing(self) -> None:
        """The socket's write buffer has space again."""
        self._is_full = False
        self._write_on()

    # -- within

    def _write_on(self) -> None:
        """Write the next pieces of a long request. The loop would copy, or encrypt, all of it at once."""
        transport, left = self._transport, WRITTEN_BYTES_MAX
        while self._unsent is not None and transport is not None and not self._is_full and not transport.is_closing():
            piece = next(self._unsent, None)
            if piece is None:
                self._unsent = None
                return
            transport.write(piece)
            left -= len(piece)
            if left <= 0:
                asyncio.get_running_loop().call_soon(self._write_on)
                return

    def _read_head(self, piece: bytes) -> None:
        self._head += piece
        read = self._next_head()
        while read is not None and 100 <= read.status < 200:
            self._interim += 1
            if read.status == 101 and self._switches:
                self._switch(read)
                return
            if read.status == 101 or self._interim > INTERIM_MAX:
                self._fail("switched protocols" if read.status == 101 else "too many interim answers")
                return
            read = self._next_head()
        if read is not None:
            self._begin_body(read)

    def _switch(self, read: Head) -> None:
        asked, self._asked = self._asked, None
        self.switched = read
        self.pause_reading()
        if asked is not None and not asked.done():
            asked.set_result(read)
        else:
            self.abort()

    def _next_head(self) -> Head | None:
        """Take a complete head from `_head`. None: incomplete, or invalid; then the request has failed."""
        head = self._head
        end = head.find(b"\r\n\r\n")
        if (len(head) if end < 0 else end) > HEAD_BYTES_MAX:
            self._fail("head too long")
            return None
        if end < 0:
            return None
        try:
            read = read_head(bytes(head[: end + 2]))
        except BadFramingError:
            self._fail("bad head")
            return None
        del head[: end + 4]
        return read

    def _begin_body(self, read: Head) -> None:
        """The head of the final answer was read; `_head` holds the bytes that followed it."""
        rest, self._head = bytes(self._head), bytearray()
        asked, self._asked = self._asked, None
        self._keep_alive = read.keep_alive
        self._chunks = ChunkReader() if read.chunked else None
        self._reader = self._chunks or LengthReader(read.length)
        if rest:
            self._early.add(rest)
        if asked is not None and not asked.done():
            asked.set_result(read)
        else:
            self.abort()

    def _keep_early(self, piece: bytes) -> None:
        self._early.add(piece)
        if self._early.size > EARLY_BYTES_MAX:
            self.pause_reading()

    def _feed(self, piece: bytes) -> None:
        """Decode a piece that is not just whole chunks."""
        reader, sink = self._reader, self._sink
        assert reader is not None
        assert sink is not None
        payload, whole = reader.feed(piece)
        if payload:
            catch_up = sink.piece(payload, piece if whole else None)
            if catch_up is not None:
                self._wait(catch_up)
        if reader.broken is not None:
            self._fail("bad framing")
        elif reader.rest is not None:
            self._body_complete(reusable=not reader.rest and not self._parts)

    def _read_in_parts(self, wire: bytes) -> None:
        """Read a long piece, in the next callbacks too if it takes longer than a slice."""
        self._parts = Parts(wire)
        if not in_slice(self._read_part):
            self._read_on_later()

    def _wait(self, catch_up: CatchUp) -> None:
        """The sink must catch up before the next bytes."""
        self._catch_up = catch_up
        if self._parts is None:
            self._parts = Parts(b"")
            self._read_on_later()

    def _read_on_later(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._read_on, self.checkout)

    def _read_on(self, checkout: int) -> None:
        if checkout != self.checkout:
            return  # the body has ended meanwhile
        try:
            if not in_slice(self._read_part):
                self._read_on_later()
        except Exception:
            if self._sink is not None:
                self._sink.internal_error()
            self.abort()
            raise  # the event loop logs it

    def _read_part(self) -> bool:
        """Read one part more, or let the sink catch up. Returns whether there is nothing left to do."""
        parts, chunks, sink = self._parts, self._chunks, self._sink
        if parts is None or sink is None:
            return True
        if self._catch_up is not None:
            if self._catch_up():
                self._catch_up = None
        elif parts:
            part = parts.take()
            payload = whole_chunks(part) if chunks is not None and not chunks.within_chunk else None
            if payload is None:
                self._feed(part)
            elif (catch_up := sink.piece(payload, part)) is not None:
                self._wait(catch_up)
        if self._parts is not parts:
            return True
        if parts or self._catch_up is not None:
            return False
        self._parts = None
        if self._transport is None:
            self._finish_disconnected()
        elif not self._paused:
            self.resume_reading()
        return True

    def _body_complete(self, *, reusable: bool) -> None:
        """The body has ended: release the sink first, since its `complete` may use the connection again."""
        sink, self._sink = self._sink, None
        self._reader = self._chunks = self._parts = self._catch_up = None
        self.checkout += 1
        reusable = reusable and self._keep_alive and self._unsent is None
        if reusable and self._transport is not None and not self._transport.is_closing():
            self.resume_reading()
            self._idle(self)
        else:
            self.close()
        if sink is not None:
            sink.complete()

    def _finish_disconnected(self) -> None:
        """The connection is lost: the end of a body without length, else a failure."""
        if self._ended_by_closing:
            self._body_complete(reusable=False)
        else:
            self._break("disconnected")

    def _fail(self, why: str) -> None:
        self._break(why)
        self.abort()

    def _break(self, why: str) -> None:
        asked, self._asked = self._asked, None
        sink, self._sink = self._sink, None
        self._reader = self._chunks = self._parts = self._catch_up = None
        if asked is not None and not asked.done():
            asked.set_exception(UpstreamFailedError(why))
        if sink is not None:
            sink.upstream_error()
