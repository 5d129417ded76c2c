"""One TCP path with faults: it stands before any server (a provider, Redis, Postgres) and does to its connections what
networks do. It runs in a thread of its own, so that tests with a loop and tests without one use it alike.

Law: without a fault it passes every byte on, in order, at once, and the end of a side as the end of that side.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable

PIECE_BYTES = 65_536
# A reply that is to be lost is over when nothing came for so long.
QUIET_S = 0.05
CONTROL_S_MAX = 5.0


class FaultyPath:
    """Use it as a context manager; connect to `port`. Faults can be set at any time from any thread."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """A path to `host`:`port`. `tls`: use TLS with the clients, and none with the server."""
        self.port = 0
        self.accepted = 0
        """connections so far"""
        self.delay_s = 0.0
        """delay of each piece, in each direction"""
        self.split_bytes = PIECE_BYTES
        """a longer piece is split into packets of this length"""
        self._server_address = host, port
        self._tls = tls
        self._links: set[_Link] = set()
        self._losing: bytes | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-path", daemon=True)
        self._listener: socket.socket | None = None
        self._fresh: set[socket.socket] = set()
        """accepted connections that are not served yet"""
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def __enter__(self) -> FaultyPath:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONTROL_S_MAX)
        self._loop.close()

    def stall(self) -> None:
        """Relay nothing in either direction; connections stay, and new ones are accepted."""
        self._do(self._flowing.clear)

    def flow(self) -> None:
        """Relay again."""
        self._do(self._flowing.set)

    def reset(self) -> None:
        """End every connection with an RST, both ways."""
        self._do(self._reset_all)

    def half_close(self) -> None:
        """Tell every client that the server sends no more (FIN); what clients send still passes."""
        self._do(self._half_close_all)

    def cut(self) -> None:
        """End every connection, and refuse new ones until `heal`."""
        self._do(self._refuse)

    def heal(self) -> None:
        self.delay_s, self.split_bytes, self._losing = 0.0, PIECE_BYTES, None
        self.flow()
        self._do(self._listen)

    def lead_to(self, host: str, port: int) -> None:
        """Switch to another server. End every connection to the previous one."""
        self._server_address = host, port
        self.reset()

    def lose_reply(self, to: bytes = b"") -> None:
        """The next request with `to` in it arrives; its reply does not, and the connection is reset. Once."""
        self._losing = to

    @property
    def lost(self) -> bool:
        """True after the reply was lost."""
        return self._losing is None

    # -- on the path's own loop ----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _half_close_all(self) -> None:
        for link in self._links:
            link.half_close()

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self._reset_all()

    async def _reset_all(self) -> None:
        for link in self._links:
            link.abort()
        for sock in self._fresh:
            sock.close()
        self._fresh.clear()
        ending = list(self._tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _end(self) -> None:
        await self._refuse()
        await asyncio.sleep(0)  # transports close one turn later

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # gone again
            sock, _ = listener.accept()
            sock.setblocking(False)
            self.accepted += 1
            self._fresh.add(sock)
            task = self._loop.create_task(self._serve(sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, sock: socket.socket) -> None:
        self._fresh.discard(sock)
        with suppress(OSError):
            client = await self._accepted(sock)
            try:
                server = await asyncio.open_connection(*self._server_address)
            except BaseException:
                _reset(client[1])
                raise
            link = _Link(client, server)
            self._links.add(link)
            try:
                await self._carry(link)
            finally:
                self._links.discard(link)
                for side in (client[1], server[1]):
                    side.close()

    async def _accepted(self, sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader = asyncio.StreamReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, sock, ssl=self._tls)
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _carry(self, link: _Link) -> None:
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._requests(link))
                ways.create_task(self._replies(link))
        except* OSError:
            link.abort()

    async def _requests(self, link: _Link) -> None:
        while piece := await link.client[0].read(PIECE_BYTES):
            link.asked += piece
            await self._pass(piece, link.server[1])
        link.server[1].write_eof()

    async def _replies(self, link: _Link) -> None:
        while piece := await link.server[0].read(PIECE_BYTES):
            if self._losing is not None and self._losing in link.asked:
                await link.swallow()
                self._losing = None
                raise ConnectionResetError
            link.asked = b""
            await self._pass(piece, link.client[1])
        link.half_close()

    async def _pass(self, piece: bytes, onward: asyncio.StreamWriter) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        for start in range(0, len(piece), self.split_bytes):
            await self._flowing.wait()
            onward.write(piece[start : start + self.split_bytes])
            await onward.drain()
            if self.split_bytes < PIECE_BYTES:
                await asyncio.sleep(0.001)  # a packet of its own

    # -- from other threads --------------------------------------------------------------------------------------

    def _do(self, what: Callable[[], object]) -> None:
        async def done() -> None:
            if isawaitable(doing := what()):
                await doing

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(CONTROL_S_MAX)


class _Link:
    """One client's connection and ours to the server."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.client, self.server = client, server
        self.asked = b""
        """bytes from the client since the last reply"""
        for _, writer in (client, server):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def abort(self) -> None:
        """Send RST in both directions."""
        _reset(self.client[1])
        _reset(self.server[1])

    def half_close(self) -> None:
        """FIN to the client. (TLS has no half of a connection: there it is the whole.)"""
        writer = self.client[1]
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()
        else:
            writer.close()

    async def swallow(self) -> None:
        """Read from the server until it sends nothing more."""
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(QUIET_S):
                    if not await self.server[0].read(PIECE_BYTES):
                        return


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        if sock is not None:  # of TLS, none is left after a close
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
