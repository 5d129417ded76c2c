"""One side of a WebSocket (RFC 6455), over aiohttp's frames: a client's or a provider's.

Invariants: messages are whole, and passed on byte for byte, as text or as binary; what is not UTF-8 in a text is for
its reader to refuse. Pings are answered here. Nothing is compressed. A message has a limit, and so has what is
buffered: who does not read is not read for. A side that closes is told once, with its code and reason.
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

# Whole messages that wait for their reader, before the other side is not read any more. Each direction of a session
# holds twice as much, and one message.
QUEUE_BYTES = 64 * 1024
# Who has been told that a connection closes may take so long to answer.
CLOSE_S = 2.0
# Of a close frame (RFC 6455, 5.5): 125 bytes with the code.
REASON_BYTES_MAX = 123

TEXT, BINARY = WSMsgType.TEXT, WSMsgType.BINARY
GOING_AWAY, POLICY, TOO_BIG, INTERNAL = 1001, 1008, 1009, 1011
NO_CODE = 1005
"""a close frame without a code; never sent"""


class Message(NamedTuple):
    """A whole message."""

    kind: WSMsgType
    """TEXT or BINARY"""
    payload: bytes


class Closed(NamedTuple):
    """Why a side is closed."""

    code: int
    """NO_CODE: none was given"""
    reason: str = ""
    by_peer: bool = True
    """its close frame came; False: it broke the protocol or a limit, and is to be told so"""


class PeerLostError(ConnectionError):
    """The connection ended without a close frame."""


class _Queue(WebSocketDataQueue):
    """Says when a message with data is whole."""

    def __init__(self, protocol: BaseProtocol, loop: asyncio.AbstractEventLoop, whole: Callable[[], None]) -> None:
        super().__init__(protocol, QUEUE_BYTES, loop=loop)
        self._whole = whole

    def feed_data(self, data: WSMessage, size: int) -> None:  # type: ignore[override]
        if data[0] is TEXT or data[0] is BINARY:
            self._whole()
        super().feed_data(data, size)


class WebSocket:
    """Made when the handshake is over; `feed_data` and `feed_eof` are called by the connection."""

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
        """`masks`: this end is the client's. `grew`, `shrank`: of bytes of messages that are not whole yet, or that
        nobody has taken; `grew` returns False if there is no room for them."""
        self._transport = transport
        self._protocol = protocol
        self._queue = _Queue(protocol, asyncio.get_running_loop(), self._whole)
        self._reader = WebSocketReader(self._queue, message_bytes_max + 1, compress=False, decode_text=False)
        self._writer = WebSocketWriter(protocol, transport, use_mask=masks, limit=QUEUE_BYTES)
        self._grew, self._shrank = grew, shrank
        self._part = 0  # bytes of the message that is not whole
        self._waiting = 0  # bytes of those that nobody has taken
        self._taken = 0  # of the one that was taken last
        self._overrun = False
        self._senders = 0  # that wait
        self._closing = False
        self._lost = asyncio.Event()
        self.heard_at = monotonic()
        """something came"""
        self.writing_since: float | None = None
        """the other side does not take what is written; None: it does"""

    # -- called by the connection

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Bytes have come."""
        self.heard_at = monotonic()
        if self._grew is not None:
            if not self._overrun and not self._grew(len(data)):
                self._overrun = True
                failure = WebSocketError(WSCloseCode.TRY_AGAIN_LATER, "Too much is in memory now.")
                self._queue.set_exception(failure)
            if self._overrun:
                return False, b""
            self._part += len(data)
        self._reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        """The connection is lost."""
        self._lost.set()
        self._reader.feed_eof()

    def _whole(self) -> None:
        self._waiting += self._part
        self._part = 0

    # -- called by the session

    async def receive(self) -> Message | Closed:
        """The next message. Raises PeerLostError. Cancellation loses nothing."""
        self._let_go()
        while True:
            try:
                message = await self._queue.read()
            except EofStream:
                raise PeerLostError("disconnected") from None
            except WebSocketError as wrong:
                return Closed(int(wrong.code), str(wrong)[:REASON_BYTES_MAX], by_peer=False)
            kind, payload = message[0], message[1]
            if kind is TEXT or kind is BINARY:
                self._taken, self._waiting = self._waiting, 0
                return Message(kind, payload)
            if kind is WSMsgType.CLOSE:
                return Closed(int(payload) or NO_CODE, str(message[2]))
            if kind is WSMsgType.PING:
                with suppress(ConnectionError):
                    await self._writer.send_frame(payload, WSMsgType.PONG)

    async def until_lost(self) -> None:
        """Wait until there is no connection, which whoever is busy with a message would not notice."""
        await self._lost.wait()

    def _let_go(self) -> None:
        """The last message is dealt with."""
        if self._shrank is not None and self._taken:
            self._shrank(self._taken)
        self._taken = 0

    async def send(self, message: Message) -> None:
        """Write it at once, and wait until the other side takes it. Raises PeerLostError."""
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
        """Keep whoever is in between from closing an idle connection. One that is lost is told to its reader."""
        if not self._protocol.writing_paused:
            with suppress(ConnectionError):
                await self._writer.send_frame(b"", WSMsgType.PING)

    @property
    def is_read(self) -> bool:
        """False: its bytes are held back, until there is room for them."""
        return not self._protocol._reading_paused  # noqa: SLF001  there is no other way

    async def close(self, code: int, reason: str = "") -> None:
        """Say so, wait for the answer for a moment, and disconnect. Never raises; a second call does nothing."""
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
    """As much of it as fits, as whole characters."""
    return reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
