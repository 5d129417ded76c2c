"""One side of a WebSocket (RFC 6455), over aiohttp's frames: a client's or a provider's.

Invariants: messages are complete, and relayed byte for byte, as text or as binary; the receiver must refuse text that
is not UTF-8. Pings are answered here. Nothing is compressed. A message has a limit, and so have buffered bytes: a
sender whose receiver does not read is not read. A closing side is reported once, with its code and reason. Bytes of
pings and pongs do not count as those of messages; the rate of pings and pongs is limited. A side takes the event loop's
time in slices, even if its frames are small.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from aiohttp._websocket.reader import WebSocketDataQueue
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import WebSocketError, WebSocketReader, WebSocketWriter, WSCloseCode, WSMessage, WSMsgType
from aiohttp.streams import EofStream

from proxy.foundation.slices import Slice
from proxy.http.request_body import BODY_BYTES_PER_S_MIN, BODY_S

# Complete messages that may wait for `receive` before the other side is not read any more. Each direction of a session
# holds twice as much, and one message.
QUEUE_BYTES = 64 * 1024
# How long the answer to a close frame is waited for.
CLOSE_S = 2.0
# Pings and pongs of one side: so many at once, and so many a second. Clients and providers send one in some seconds.
CONTROL_FRAMES_MAX = 1_000
CONTROL_FRAMES_PER_S = 10
# Of a masked control frame, besides its payload.
CONTROL_HEAD_BYTES = 6
# The bytes of a message in fragments, frame heads included, are at most so many times its limit.
FRAMED_RATIO_MAX = 2
# The reason in a close frame (RFC 6455, 5.5): 125 bytes with the code.
REASON_BYTES_MAX = 123

TEXT, BINARY = WSMsgType.TEXT, WSMsgType.BINARY
GOING_AWAY, POLICY, TOO_BIG, INTERNAL = 1001, 1008, 1009, 1011
NO_CODE = 1005
"""a close frame without a code; never sent"""


class Message(NamedTuple):
    """A complete message."""

    kind: WSMsgType
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
        """Count one. False: it is one too many."""
        now = monotonic()
        left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at, self._left = now, left - (left >= 1)
        return left >= 1


class _Queue(WebSocketDataQueue):
    """Calls `whole` for each whole message with data, and `control` with the size of each ping's and pong's payload."""

    def __init__(
        self,
        protocol: BaseProtocol,
        loop: asyncio.AbstractEventLoop,
        whole: Callable[[], None],
        control: Callable[[int], None],
    ) -> None:
        super().__init__(protocol, QUEUE_BYTES, loop=loop)
        self._whole = whole
        self._control = control

    def feed_data(self, data: WSMessage, size: int) -> None:  # type: ignore[override]
        if data[0] is TEXT or data[0] is BINARY:
            self._whole()
        else:
            self._control(size)
        super().feed_data(data, size)


class WebSocket:
    """An open WebSocket, after the handshake. The connection calls `feed_data` and `feed_eof`."""

    def __init__(
        self,
        protocol: BaseProtocol,
        transport: asyncio.Transport,
        *,
        masks: bool,
        message_bytes_max: int,
        grew: Callable[[int], bool] | None = None,
        shrank: Callable[[int], None] | None = None,
    ) -> None:
        """`masks`: this end is the client's. `grew`, `shrank`: called with bytes of messages that are incomplete or not
        received yet; `grew` returns False if there is no room for them."""
        self._transport = transport
        self._protocol = protocol
        self._queue = _Queue(protocol, asyncio.get_running_loop(), self._whole, self._control)
        self._reader = WebSocketReader(self._queue, message_bytes_max + 1, compress=False, decode_text=False)
        self._writer = WebSocketWriter(protocol, transport, use_mask=masks, limit=QUEUE_BYTES)
        self._grew, self._shrank = grew, shrank
        self._part = 0  # bytes of the incomplete message
        self._waiting = 0  # bytes of complete messages that were not received yet
        self._taken = 0  # of the one that was taken last
        self._part_max = FRAMED_RATIO_MAX * message_bytes_max + QUEUE_BYTES
        self._part_began = monotonic()  # when that message could have begun
        self._broken: Closed | None = None  # the limit that the other side has passed: no more of it is read
        self._control_frames = Allowance(CONTROL_FRAMES_MAX, CONTROL_FRAMES_PER_S)
        self._slice = Slice()
        self._senders = 0  # that wait
        self._closing = False
        self._lost = asyncio.Event()
        self.heard_at = monotonic()
        """when bytes last arrived"""
        self.writing_since: float | None = None
        """since when the other side has not taken what was written; None: it takes everything"""

    # -- called by the connection

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Receive bytes."""
        self.heard_at = monotonic()
        if self._broken is None and self._grew is not None:
            self._count(len(data))
        if self._broken is None:
            self._reader.feed_data(data)
        return False, b""

    def _count(self, size: int) -> None:
        """Count bytes that have come. Those of control frames are given back when they are parsed."""
        assert self._grew is not None
        if not self._part:
            self._part_began = self.heard_at
        elif self._part > self._part_max:
            self._break(WSCloseCode.MESSAGE_TOO_BIG, "The fragments of this message are too many.")
        elif self.heard_at > self._part_began + BODY_S + self._part / BODY_BYTES_PER_S_MIN:
            self._break(POLICY, "This message did not arrive in time.")
        if self._broken is None and not self._grew(size):
            self._break(WSCloseCode.TRY_AGAIN_LATER, "Too much is in memory now.")
        if self._broken is None:
            self._part += size

    def _break(self, code: int, reason: str) -> Closed:
        """The other side has passed a limit: its further bytes are dropped."""
        self._broken = Closed(code, reason, by_peer=False)
        self._queue.set_exception(WebSocketError(code, reason))
        if not self.is_read:
            self._protocol.resume_reading()
        return self._broken

    def feed_eof(self) -> None:
        """The connection is lost."""
        self._lost.set()
        self._reader.feed_eof()

    def _whole(self) -> None:
        self._waiting += self._part
        self._part = 0

    def _control(self, size: int) -> None:
        """Give back the bytes of a control frame. `size`: of its payload."""
        if self._shrank is not None:
            size = min(size + CONTROL_HEAD_BYTES, self._part)
            self._part -= size
            self._shrank(size)

    # -- called by the session

    async def receive(self) -> Message | Closed:
        """The next message. Raises PeerLostError. Cancellation loses nothing."""
        self._let_go()
        while True:
            await self._slice.give_way()
            if self._broken is not None:
                return self._broken
            try:
                message = await self._queue.read()
            except EofStream:
                raise PeerLostError("disconnected") from None
            except WebSocketError as wrong:
                return Closed(int(wrong.code), str(wrong)[:REASON_BYTES_MAX], by_peer=False)
            kind, payload = message[0], message[1]
            if kind is TEXT or kind is BINARY:
                self._taken, self._waiting = self._waiting, 0
                self._part_began = monotonic()
                return Message(kind, payload)
            if kind is WSMsgType.CLOSE:
                return Closed(int(payload) or NO_CODE, str(message[2]))
            if not self._control_frames.take():
                return self._break(POLICY, "Too many pings and pongs.")
            if kind is WSMsgType.PING:
                with suppress(ConnectionError):
                    await self._writer.send_frame(payload, WSMsgType.PONG)

    async def until_lost(self) -> None:
        """Wait until the connection is lost. A caller that processes a message would not notice otherwise."""
        await self._lost.wait()

    def _let_go(self) -> None:
        """The last message was processed: release its bytes."""
        if self._shrank is not None and self._taken:
            self._shrank(self._taken)
        self._taken = 0

    async def send(self, message: Message) -> None:
        """Write the message, and wait until the other side has taken it. Raises PeerLostError."""
        self._senders += 1
        if self.writing_since is None:
            self.writing_since = monotonic()
        try:
            await self._writer.send_frame(message.payload, message.kind)
        except ConnectionError:
            raise PeerLostError("disconnected") from None
        finally:
            self._senders -= 1
            if not self._senders:
                self.writing_since = None

    async def ping(self) -> None:
        """Send a ping, so that middleboxes do not close an idle connection. If it is lost, `receive` raises."""
        if not self._protocol.writing_paused:
            with suppress(ConnectionError):
                await self._writer.send_frame(b"", WSMsgType.PING)

    @property
    def is_read(self) -> bool:
        """False: its bytes are held back, until there is room for them."""
        return not self._protocol._reading_paused  # noqa: SLF001  there is no other way

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
        if code == NO_CODE:
            await self._writer.send_frame(b"", WSMsgType.CLOSE)
        else:
            await self._writer.close(code, _cut(reason))
        while not isinstance(last := await self.receive(), Closed):
            pass
        if not last.by_peer:  # what it still sends is not read, but an unread byte would take our words from it
            await self._lost.wait()

    def abort(self) -> None:
        """Disconnect at once."""
        self._closing = True
        self._transport.abort()
        self._give_back()

    def _give_back(self) -> None:
        if self._shrank is not None:
            self._shrank(self._taken + self._waiting + self._part)
        self._taken = self._waiting = self._part = 0


def _cut(reason: str) -> bytes:
    """The reason, cut to the limit at a whole character."""
    return reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
