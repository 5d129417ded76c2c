"""An address that cannot be used: the setting is named, and what to do."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from proxy.http.server import CannotListenError, Routes, Server

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
