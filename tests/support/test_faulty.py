"""The fault proxy does what its faults say, and nothing without one: what is tested with it depends on that."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.faulty import FaultyPath
from tests.support.waiting import wait_until

pytestmark = pytest.mark.io

TIMEOUT_S = 5.0


class Echo:
    """An echo server that keeps the received bytes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.got = b""
        self.pieces = 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            while True:
                try:
                    piece = sock.recv(1 << 20)
                    self.got += piece
                    self.pieces += 1
                    if not piece:
                        sock.sendall(b"<end>")
                        return
                    sock.sendall(piece)
                except OSError:
                    return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def path(echo: Echo) -> Iterator[FaultyPath]:
    with FaultyPath("127.0.0.1", echo.port) as path:
        yield path


def connected(path: FaultyPath) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", path.port), timeout=TIMEOUT_S)
    sock.sendall(b"hello")
    assert read(sock, 5) == b"hello"
    return sock


def read(sock: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (piece := sock.recv(count - len(found))):
        found += piece
    return found


def test_without_a_fault_every_byte_passes_and_so_does_the_end(path: FaultyPath) -> None:
    sent = bytes(range(256)) * 20_000
    with connected(path) as sock:
        sender = threading.Thread(target=sock.sendall, args=(sent,))
        sender.start()
        assert read(sock, len(sent)) == sent
        sender.join(TIMEOUT_S)
        sock.shutdown(socket.SHUT_WR)
        assert read(sock, 100) == b"<end>"
    assert path.accepted == 1


def test_a_delay_is_on_both_ways(path: FaultyPath) -> None:
    with connected(path) as sock:
        path.delay_s = 0.05
        began = time.monotonic()
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        assert time.monotonic() - began >= 0.1


def test_a_stall_keeps_what_comes_until_it_flows_again(path: FaultyPath, echo: Echo) -> None:
    with connected(path) as sock:
        path.stall()
        sock.sendall(b"later")
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        assert echo.got == b"hello"
        sock.settimeout(TIMEOUT_S)
        path.flow()
        assert read(sock, 5) == b"later"


def test_a_reset_is_a_reset(path: FaultyPath) -> None:
    with connected(path) as sock:
        path.reset()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    connected(path).close()


def test_a_stalled_path_can_be_reset(path: FaultyPath) -> None:
    with connected(path) as sock:
        path.stall()
        sock.sendall(b"never")
        path.reset()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        path.flow()
    connected(path).close()


def test_a_half_close_ends_one_way_only(path: FaultyPath, echo: Echo) -> None:
    with connected(path) as sock:
        path.half_close()
        assert sock.recv(1) == b""
        sock.sendall(b" still there")
        wait_until(lambda: echo.got == b"hello still there", lambda: echo.got, within_s=TIMEOUT_S)


def test_a_cut_path_refuses_until_it_is_healed(path: FaultyPath) -> None:
    with connected(path) as sock:
        path.cut()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", path.port), timeout=TIMEOUT_S)
    path.heal()
    connected(path).close()


def test_split_bytes_come_one_by_one(path: FaultyPath, echo: Echo) -> None:
    with connected(path) as sock:
        path.split_bytes = 1
        deadline = time.monotonic() + TIMEOUT_S
        while echo.pieces < 5:  # a server that gets no processor time meets them together
            assert time.monotonic() < deadline
            sock.sendall(b"piecewise")
            assert read(sock, 9) == b"piecewise"


def test_a_lost_reply_is_lost_after_its_request_has_arrived_and_only_once(path: FaultyPath, echo: Echo) -> None:
    with connected(path) as sock, connected(path) as other:
        path.lose_reply(to=b"ADD")
        other.sendall(b"something else")
        assert read(other, 14) == b"something else"
        lost_by_another = path.lost
        assert not lost_by_another
        sock.sendall(b"ADD 1")
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        assert path.lost
        assert echo.got.endswith(b"ADD 1")
    with connected(path) as sock:
        sock.sendall(b"ADD 2")
        assert read(sock, 5) == b"ADD 2"


def test_a_server_that_is_away_is_a_reset(echo: Echo) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen; a port that is let go could be given to the path itself
        with (
            FaultyPath("127.0.0.1", nobody.getsockname()[1]) as path,
            pytest.raises(ConnectionResetError),
            socket.create_connection(("127.0.0.1", path.port), timeout=TIMEOUT_S) as sock,
        ):
            sock.recv(1)


async def test_it_serves_a_test_that_has_a_loop(path: FaultyPath) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", path.port)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    path.reset()
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    writer.close()
