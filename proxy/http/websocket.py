"""One side of a WebSocket (RFC 6455): a client's or a provider's.

Invariants: messages are complete, and relayed byte for byte, as text or as binary; the receiver must refuse text that
is not UTF-8. Pings are answered here. A message has a limit, and so have buffered bytes: a sender whose receiver does
not read is not read. A closing side is reported once, with its code and reason. The rate of pings and pongs is limited.
Whatever a side sends, it is read and written in slices of the event loop's time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from aiohttp.base_protocol import BaseProtocol

from proxy.foundation.slices import Slice
from proxy.http.request_body import BODY_BYTES_PER_S_MIN, BODY_S
from proxy.http.websocket_frames import NO_CODE, PART, Frame, FrameError, FrameReader, Kind, close_of, head, masked

# Bytes that may wait to be read by `receive` before the other side is not read any more.
QUEUE_BYTES = 64 * 1024
# Of a longer message, as many are written at once. A multiple of the mask's length.
WRITE_BYTES = 256 * 1024
# How long the answer to a close frame is waited for, and the end of a side that broke the protocol or a limit: it may
# still send, and an unread byte would take the close frame from it.
CLOSE_S = 2.0
# Pings and pongs of one side: so many at once, and so many a second. Clients and providers send one in some seconds.
CONTROL_FRAMES_MAX = 1_000
CONTROL_FRAMES_PER_S = 10
# The reason in a close frame (RFC 6455, 5.5): 125 bytes with the code.
REASON_BYTES_MAX = 123

TEXT, BINARY = Kind.TEXT, Kind.BINARY
GOING_AWAY, POLICY, INTERNAL, TRY_AGAIN_LATER = 1001, 1008, 1011, 1013


class Message(NamedTuple):
    """A complete message."""

    kind: Kind
    """TEXT or BINARY"""
    payload: bytes


class Closed(NamedTuple):
    """The reason why a side is closed."""

    code: int
    """NO_CODE: none was given"""
    reason: str = ""
    by_peer: bool = True
    """True: the peer sent a close frame; False: the peer broke the protocol or a limit, and gets a close frame"""


class PeerLostError(ConnectionError):
    """The connection ended without a close frame."""


class Allowance:
    """A rate: `most` at once, then `per_s` a second."""

    __slots__ = ("_at", "_left", "_most", "_per_s")

    def __init__(self, most: int, per_s: float) -> None:
        self._most, self._per_s = most, per_s
        self._left, self._at = float(most), monotonic()

    def take(self) -> bool:
        """Count one message. False: it is one too many."""
        now = monotonic()
        left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at, self._left = now, left - (left >= 1)
        return left >= 1


def _uncounted(_size: int) -> bool:
    return True


class WebSocket:
    """An open WebSocket, after the handshake. The connection calls `feed_data` and `feed_eof`, `pause_writing` and
    `resume_writing`."""

    def __init__(
        self,
        protocol: BaseProtocol,
        transport: asyncio.Transport,
        *,
        masks: bool,
        message_bytes_max: int,
        grew: Callable[[int], bool] | None = None,
        shrank: Callable[[int], object] = _uncounted,
    ) -> None:
        """`masks`: this end is the client's. `grew`, `shrank`: called with bytes of messages that are incomplete or not
        received yet; `grew` returns False if there is no room for them. With `grew`, a message must arrive in time."""
        self._transport = transport
        self._protocol = protocol
        self._masks = masks
        self._reader = FrameReader(masked=not masks, message_bytes_max=message_bytes_max)
        self._is_timed = grew is not None
        self._grew, self._shrank = grew or _uncounted, shrank
        self._counted = 0  # bytes by which memory grew
        self._taken = 0  # of the message that was received last
        self._began_at = monotonic()  # when the message that is arriving could have begun
        self._end: Closed | None = None  # nothing more is read
        self._control_frames = Allowance(CONTROL_FRAMES_MAX, CONTROL_FRAMES_PER_S)
        self._slice = Slice()
        self._arrived: asyncio.Future[None] | None = None  # set while `receive` waits for bytes
        self._has_room = asyncio.Event()  # for more that is written
        if not protocol.writing_paused:
            self._has_room.set()
        self._is_writing = asyncio.Lock()
        self._writers = 0  # that write or wait
        self._is_cut = False  # a frame was not written to its end
        self._closing = False
        self._lost = asyncio.Event()
        self.is_read = True
        """False: its bytes are held back, until there is room for them"""
        self.heard_at = monotonic()
        """when bytes last arrived"""
        self.writing_since: float | None = None
        """since when the write buffer is full; None: it has space"""

    # -- called by the connection

    def feed_data(self, data: bytes) -> None:
        """Receive bytes."""
        self.heard_at = monotonic()
        if self._end is not None:
            return
        if not self._reader.held:
            self._began_at = self.heard_at
        elif self._is_timed and self._is_late():
            self._break(POLICY, "This message did not arrive in time.")
            return
        if not self._grew(len(data)):
            self._break(TRY_AGAIN_LATER, "The proxy's memory for messages is full now.")
            return
        self._counted += len(data)
        self._reader.feed(data)
        if self._arrived is not None:
            self._wake()
        elif self.is_read and self._reader.unread > QUEUE_BYTES:
            self.is_read = False
            self._protocol.pause_reading()

    def feed_eof(self) -> None:
        """The connection is lost."""
        self._lost.set()
        self._has_room.set()
        self._wake()

    def pause_writing(self) -> None:
        """The write buffer is full: the other side reads too slowly."""
        self._has_room.clear()

    def resume_writing(self) -> None:
        """The write buffer has space again."""
        self._has_room.set()

    def _is_late(self) -> bool:
        allowed_s = BODY_S + self._reader.held / BODY_BYTES_PER_S_MIN
        return self._reader.is_amid_message and self.heard_at > self._began_at + allowed_s

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        self._arrived = None

    def _break(self, code: int, reason: str) -> Closed:
        """The other side has broken the protocol or a limit: its further bytes are dropped."""
        return self._ended(Closed(code, reason, by_peer=False))

    def _ended(self, end: Closed) -> Closed:
        self._end = end
        self._reader.clear()
        self._count_held()
        self._read_on()
        self._wake()
        return end

    def _read_on(self) -> None:
        if not self.is_read:
            self.is_read = True
            self._protocol.resume_reading()

    def _count_held(self) -> None:
        """Release the bytes that were read and are not kept: heads, control frames, messages that were processed."""
        held = self._reader.held + self._taken
        if held < self._counted:
            self._shrank(self._counted - held)
            self._counted = held

    # -- called by the session

    async def receive(self) -> Message | Closed:
        """The next message. Raises PeerLostError. Cancellation loses nothing."""
        self._taken = 0
        if not self._reader.is_amid_message:
            self._began_at = monotonic()
        while self._end is None:
            await self._slice.give_way()
            try:
                frame = self._reader.read()
                found = None if frame is None or frame is PART else await self._received(frame)
            except FrameError as wrong:
                return self._break(wrong.code, wrong.reason)
            self._count_held()
            if found is not None:
                return found
            if frame is None:
                await self._more()
        return self._end

    async def _received(self, frame: Frame) -> Message | Closed | None:
        """The result of `receive` for a frame; None: it is processed here. Raises FrameError."""
        kind, payload = frame
        if kind is TEXT or kind is BINARY:
            self._taken = len(payload)
            return Message(kind, payload)
        if kind is Kind.CLOSE:
            return self._ended(Closed(*close_of(payload)))
        if not self._control_frames.take():
            return self._break(POLICY, "Too many pings and pongs.")
        if kind is Kind.PING and not self._closing:
            with suppress(ConnectionError):
                await self._write(Kind.PONG, payload)
        return None

    async def _more(self) -> None:
        """Wait for more bytes. Raises PeerLostError."""
        if self._lost.is_set():
            raise PeerLostError("disconnected")
        self._read_on()
        arrived = self._arrived = asyncio.get_running_loop().create_future()
        try:
            await arrived
        finally:
            self._arrived = None
        self._slice = Slice()

    async def until_lost(self) -> None:
        """Wait until the connection is lost. A caller that processes a message would not notice otherwise."""
        await self._lost.wait()

    async def send(self, message: Message) -> None:
        """Write the message, and wait until the other side has taken it. Raises PeerLostError."""
        try:
            if self._closing:
                raise PeerLostError("closed")
            await self._write(message.kind, message.payload)
        except ConnectionError:
            raise PeerLostError("disconnected") from None

    async def ping(self) -> None:
        """Send a ping, so that middleboxes do not close an idle connection. If it is lost, `receive` raises."""
        if not (self._closing or self._is_cut) and self._has_room.is_set():  # a ping does not wait
            with suppress(ConnectionError):
                self._put(head(Kind.PING, 0, os.urandom(4) if self._masks else b""))

    async def _write(self, kind: Kind, payload: bytes) -> None:
        """Write a frame, and wait until the other side has taken it. Raises ConnectionError."""
        self._writers += 1
        if self.writing_since is None:
            self.writing_since = monotonic()
        try:
            async with self._is_writing:
                if self._is_cut:
                    raise PeerLostError("it would take this for the rest of a message")
                self._is_cut = True
                mask = os.urandom(4) if self._masks else b""
                self._put(head(kind, len(payload), mask) + masked(payload[:WRITE_BYTES], mask))
                if len(payload) > WRITE_BYTES:
                    await self._put_rest(payload, mask)
                self._is_cut = False
                await self._has_room.wait()
        finally:
            self._writers -= 1
            if not self._writers:
                self.writing_since = None

    async def _put_rest(self, payload: bytes, mask: bytes) -> None:
        for at in range(WRITE_BYTES, len(payload), WRITE_BYTES):
            await self._has_room.wait()
            await self._slice.give_way()
            self._put(masked(payload[at : at + WRITE_BYTES], mask))

    def _put(self, wire: bytes) -> None:
        if self._transport.is_closing():
            raise PeerLostError("disconnected")
        self._transport.write(wire)

    async def close(self, code: int, reason: str = "") -> None:
        """Send a close frame, wait up to CLOSE_S for the answer, and disconnect. Never raises; a second call does
        nothing."""
        if self._closing:
            return
        self._closing = True
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._say_closed(code, reason)
        except (ConnectionError, TimeoutError):
            self._transport.abort()
        else:
            self._transport.close()
        finally:
            self._give_back()

    async def _say_closed(self, code: int, reason: str) -> None:
        if self._transport.is_closing():
            raise PeerLostError("disconnected")
        self._transport.set_write_buffer_limits(0)  # what is not written when we disconnect would be kept for ever
        await self._write(Kind.CLOSE, b"" if code == NO_CODE else code.to_bytes(2, "big") + _cut(reason))
        while not isinstance(last := await self.receive(), Closed):
            pass
        if not last.by_peer:
            await self._lost.wait()

    def abort(self) -> None:
        """Disconnect at once."""
        self._closing = True
        self._transport.abort()
        self._give_back()

    def _give_back(self) -> None:
        """Nothing more is read: bytes that still come are dropped, and not counted."""
        self._end = self._end or Closed(GOING_AWAY, by_peer=False)
        self._reader.clear()
        self._taken = 0
        self._count_held()


def _cut(reason: str) -> bytes:
    """The reason, cut to the limit at a whole character."""
    return reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
