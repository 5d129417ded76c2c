"""An address that cannot be used: the setting is named, and what to do."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import pytest
import uvloop

from proxy.http.probes import HEALTHZ
from proxy.http.server import CannotListenError, Routes, Server, wait_until

pytestmark = pytest.mark.io


async def refusal(host: str, port: int) -> str:
    server = Server(Routes(), refused=lambda *_: None)
    with pytest.raises(CannotListenError) as raised:
        await server.start(host, port, section="worker")
    return str(raised.value)


async def test_a_port_that_is_taken_and_a_host_that_is_not_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = await refusal("127.0.0.1", port)
    assert said == (f"worker.port: another program listens on 127.0.0.1:{port}: stop it, or choose another port")
    assert await refusal("192.0.2.1", 0) == "worker.host: 192.0.2.1 is no address of this machine"
    assert await refusal("no.such.host.invalid", 0) == "worker.host: 'no.such.host.invalid' cannot be resolved"


async def test_a_port_that_needs_more_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create_server(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "permission denied")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_server", create_server)
    assert await refusal("127.0.0.1", 80) == ("worker.port: this user may not listen on 80: choose a port from 1024 up")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_leaves_to_another_serves_what_it_has_accepted(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Whatever the turn of the event loop in which it leaves; what it has not accepted is the other's."""

    async def served(turns: int) -> tuple[bool, bool]:
        routes = Routes()
        routes.local("GET", "/healthz", HEALTHZ)
        server = Server(routes, refused=lambda *_: None)
        port = await server.start("127.0.0.1", 0)
        with server.sockets[0].dup() as kept, socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.leave_to_another()
            await wait_until(lambda: not server.has_connections, deadline_s=5)
            await server.close()
            answer = await asyncio.to_thread(_answer, client)
            kept.setblocking(False)
            try:
                kept.accept()[0].close()
            except BlockingIOError:
                return answer, False
            return answer, True

    with asyncio.Runner(loop_factory=new_loop) as runner:
        for turns in range(7):
            here, left = runner.run(served(turns))
            assert here is not left, f"lost after {turns} turns"


def _answer(client: socket.socket) -> bool:
    """Whether an answer has come by now: the server has closed."""
    client.settimeout(0.01)
    try:
        return client.recv(1_000).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
