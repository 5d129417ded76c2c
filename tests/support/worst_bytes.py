"""The worst bytes that clients and providers send, in tables: no turn of the event loop may take more than LIMIT_S of
CPU time for them. Clients and providers run in threads of their own, so that only the proxy is measured.

A row of a table is a function that makes the bytes, by a size. To add one, write it into the table of those who send
it.
"""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha1
from threading import Thread

from proxy.http.websocket_frames import Kind, head
from tests.support.reference_loop import slowness

LIMIT_S = 0.020
PATIENCE_S = 60.0

NO_MASK, MASK = b"", bytes(4)
"""the second changes nothing"""
EVENT = b'{"type":"x"}'


def turn_s_max() -> float:
    """The longest time that a turn may take: on a slow machine, longer in proportion."""
    return LIMIT_S * max(1.0, slowness())


def frame(kind: Kind, payload: bytes, mask: bytes, *, last: bool = True) -> bytes:
    wire = head(kind, len(payload), mask) + payload
    return wire if last else bytes([wire[0] & 0x7F]) + wire[1:]


def in_fragments(payload: bytes, mask: bytes) -> bytes:
    """One message, whose fragments have a byte each."""
    pieces = b"".join(frame(Kind.CONTINUATION, payload[at : at + 1], mask, last=False) for at in range(len(payload)))
    return frame(Kind.TEXT, b"", mask, last=False) + pieces + frame(Kind.CONTINUATION, b"", mask)


FRAMES: Mapping[str, Callable[[int, bytes], bytes]] = {
    "pings": lambda size, mask: frame(Kind.PING, b"", mask) * 20_000 * size,
    "long pings": lambda size, mask: frame(Kind.PING, b"x" * 125, mask) * 2_000 * size,
    "pongs": lambda size, mask: frame(Kind.PONG, b"", mask) * 20_000 * size,
    "empty texts": lambda size, mask: frame(Kind.TEXT, b"", mask) * 2_000 * size,
    "empty binaries": lambda size, mask: frame(Kind.BINARY, b"", mask) * 2_000 * size,
    "events": lambda size, mask: frame(Kind.TEXT, EVENT, mask) * 1_500 * size,
    "events that are refused": lambda size, mask: frame(Kind.TEXT, b'{"type":"x","type":"x"}', mask) * 1_500 * size,
    "empty fragments": lambda size, mask: (
        frame(Kind.TEXT, b"", mask, last=False) + frame(Kind.CONTINUATION, b"", mask, last=False) * 20_000 * size
    ),
    "fragments of a byte": lambda size, mask: in_fragments(b'{"x":"%b"}' % (b"y" * 1_500), mask) * 10 * size,
    "a long text": lambda size, mask: frame(Kind.TEXT, b'{"type":"x","y":"%b"}' % (b"z" * 900_000), mask) * size,
    "an event of many members": lambda size, mask: (
        frame(Kind.TEXT, b'{"type":"x",%b}' % b",".join(b'"%d":0' % number for number in range(70_000)), mask) * size
    ),
    "an event of many arrays": lambda size, mask: (
        frame(Kind.TEXT, b'{"type":"x","y":[%b0]}' % (b"[]," * 30_000), mask) * size
    ),
    "an event of many fractions": lambda size, mask: (
        frame(Kind.TEXT, b'{"type":"x","y":[%b0]}' % (b"0.1," * 200_000), mask) * size
    ),
    "an event that is not JSON": lambda size, mask: (
        frame(Kind.TEXT, b'{"type":"x","y":%b' % (b"[" * 900_000), mask) * size
    ),
    "binary noise": lambda size, mask: frame(Kind.BINARY, b"z" * 900_000, mask) * 3 * size,
    "close frames": lambda size, mask: frame(Kind.CLOSE, b"", mask) * 20_000 * size,
    "no frames": lambda size, _mask: b"\xff" * 100_000 * size,
}
"""what both sides of a WebSocket may send"""

EVENTS: Mapping[str, Callable[[int], bytes]] = {
    "the shortest events": lambda size: b"data:\n\n" * 10_000 * size,
    "events without data": lambda size: b":\n\n" * 10_000 * size,
    "an event of many lines": lambda size: b"data:\n" * 40_000 * size + b"\n",
    "a comment of many lines": lambda size: b":\n" * 100_000 * size + b"\n",
    "line ends": lambda size: b"\r\n" * 100_000 * size,
    "numbered events": lambda size: b'data: {"sequence_number":0}\n\n' * 10_000 * size,
    "one long line": lambda size: b"data: " + b"x" * 200_000 * size + b"\n\n",
}
"""streams that clients resume"""

HEADS: Mapping[str, Callable[[int], bytes]] = {
    "pipelined requests": lambda size: b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n" * 500 * size,
    "pipelined with bodies": lambda size: b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx" * 300 * size,
    "many headers": lambda size: (b"GET /none HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 126 + b"\r\n") * 20 * size,
    "too many headers": lambda size: b"GET /none HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 10_000 * size,
    "names of agents": lambda size: b"GET /none HTTP/1.1\r\n" + b"User-Agent: b\r\n" * 10_000 * size,
    "a head without an end": lambda size: b"GET /none HTTP/1.1\r\nA: " + b"x" * 1_000_000 * size,
    "a path without an end": lambda size: b"GET /" + b"/" * 1_000_000 * size,
    "tiny chunks": lambda size: (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 30_000 * size + b"0\r\n\r\n"
    ),
}
"""heads, and the framing of bodies"""


# -- clients and providers


def read_to(connection: socket.socket, end: bytes) -> bytes:
    """What comes up to `end`, or to the end of the connection."""
    read = b""
    while end not in read and (piece := connection.recv(1 << 16)):
        read += piece
    return read


def send_all(connection: socket.socket, wire: bytes) -> None:
    with suppress(OSError):  # the other side has closed
        connection.sendall(wire)


def talk(port: int, wire: bytes, last: bytes) -> bytes:
    """A client: sends `wire`, and reads up to `last` or to the end. Returns the end of what it read."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        sending = Thread(target=send_all, args=(connection, wire))
        sending.start()
        tail = b""
        with suppress(ConnectionResetError):
            while last not in tail and (piece := connection.recv(1 << 16)):
                tail = tail[-len(last) :] + piece
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        sending.join()
        return tail


class Provider:
    """Answers each connection with `answer`; one that asks for a WebSocket, after the handshake."""

    def __init__(self) -> None:
        self.answer = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                Thread(target=self._serve, args=(connection,)).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(PATIENCE_S)
            asked = read_to(connection, b"\r\n\r\n")
            key = asked.lower().partition(b"sec-websocket-key: ")[2]
            if key:
                start = len(asked) - len(key)
                send_all(connection, switched(asked[start:].partition(b"\r\n")[0]))
            send_all(connection, self.answer)
            while connection.recv(1 << 16):
                pass


def switched(key: bytes) -> bytes:
    accept = b64encode(sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    fields = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b" % accept
    return b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n\r\n" % fields


UPGRADE = (
    b"GET /v1/realtime?model=electron HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
