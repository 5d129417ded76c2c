"""A listener on one address, on several, and on all of this machine."""

from __future__ import annotations

import asyncio
import socket

import pytest

from proxy.foundation.addresses import hosts_of, shown_host
from proxy.http.probes import HEALTHZ
from proxy.http.server import CannotListenError, Routes, Server
from proxy.runtime.proxy.handover import FIRST
from proxy.runtime.proxy.supervisor import _reserved

pytestmark = pytest.mark.io

HAS_IPV6 = len(hosts_of("*")) == 2


async def answers(host: str, port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200")


OF_IPV4 = [
    ("127.0.0.1", ["127.0.0.1"], ["127.0.0.2"]),
    ("127.0.0.1, 127.0.0.2", ["127.0.0.1", "127.0.0.2"], ["127.0.0.3"]),
    ("*", ["127.0.0.1", "127.0.0.2"], []),
]
OF_IPV6 = [
    ("127.0.0.2,::1", ["127.0.0.2", "::1"], ["127.0.0.1"]),
    ("*", ["127.0.0.1", "::1"], []),
    ("::", ["::1"], ["127.0.0.1"]),
]


@pytest.mark.parametrize(("host", "reached", "refused"), OF_IPV4 + (OF_IPV6 if HAS_IPV6 else []))
async def test_each_address_that_is_named_is_listened_on(host: str, reached: list[str], refused: list[str]) -> None:
    routes = Routes()
    routes.local("GET", "/healthz", HEALTHZ)
    server = Server(routes, refused=lambda _status, _code: None)
    port = await server.start(host, 0)
    try:
        for one in reached:
            assert await answers(one, port)
        for one in refused:
            assert not await answers(one, port)
        second = Server(routes, refused=lambda _status, _code: None)
        with pytest.raises(CannotListenError, match="another program listens on"):
            await second.start(host, port)
    finally:
        await server.close()


def test_the_supervisor_reserves_each() -> None:
    with _reserved("127.0.0.1, 127.0.0.2", 0, FIRST) as port:
        for host in ("127.0.0.1", "127.0.0.2"):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, port))
        with socket.socket() as fleet:
            fleet.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            fleet.bind(("127.0.0.2", port))
            fleet.listen()
            wrong = pytest.raises(CannotListenError, match="another program listens on")
            with wrong, _reserved("127.0.0.2", port, FIRST):
                pass


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("*", "127.0.0.1"), ("::1, 10.0.0.7", "[::1]"),
     ("a.example", "a.example")],
)  # fmt: skip
def test_a_url_has_one_of_them(host: str, shown: str) -> None:
    assert shown_host(host) == shown
