"""The pool of connections to providers, and what it makes of this machine's own limits."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from proxy.gateway.upstream import client as module
from proxy.gateway.upstream.client import EXHAUSTION_OVER_S, IDLE_MAX, UpstreamClient
from proxy.gateway.upstream.connection import UpstreamConnection
from proxy.gateway.upstream.failures import NotSentError, OutOfConnectionsError
from proxy.gateway.upstream.provider import Origin, Provider
from proxy.settings import ProviderSettings
from tests.gateway.upstream.connections import FakeTransport, Heard
from tests.support.linear import assert_linear
from tests.support.net import listening

ORIGIN = Origin("provider.test", 80, tls=False)
# Not 0: poll(2) rejects more descriptors than the limit.
LOWEST = 3
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def busy(client: UpstreamClient, count: int) -> list[tuple[UpstreamConnection, FakeTransport]]:
    """So many connections of the client, each with a request."""
    made = []
    for _ in range(count):
        connection, transport = UpstreamConnection(client._rests, client._gone), FakeTransport()
        connection.connection_made(transport)
        client._origins[connection] = ORIGIN
        connection.ask(b"request")
        made.append((connection, transport))
    return made


async def answered(connection: UpstreamConnection) -> None:
    """Its request is over."""
    connection.data_received(ANSWER)
    connection.relay_to(Heard())


async def test_that_all_idle_connections_close_at_once_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_MAX", 100_000)

    def close_all(connections: list[tuple[UpstreamConnection, FakeTransport]]) -> None:
        for connection, _ in connections:
            connection.connection_lost(None)

    clients = {}
    for count in (400, 1_600) * 3:  # one prepared for each try
        client = UpstreamClient(TLS)
        connections = busy(client, count)
        for connection, _ in connections:
            await answered(connection)
        clients.setdefault(count, []).append(connections)
    assert_linear(lambda count: close_all(clients[count].pop()), 400)


TLS: Any = object()
"""no test here connects with TLS"""


async def test_idle_connections_are_bounded_and_the_oldest_is_closed() -> None:
    client = UpstreamClient(TLS)
    connections = busy(client, IDLE_MAX + 2)
    for connection, _ in connections:
        await answered(connection)
    assert [transport.closed for _, transport in connections] == [True] * 2 + [False] * IDLE_MAX
    assert client._rested(ORIGIN) is connections[-1][0]
    await client.close()


async def test_old_idle_connections_are_closed_and_young_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    client = UpstreamClient(TLS)
    (old, old_transport), (young, young_transport) = busy(client, 2)
    await answered(old)
    now += module.KEEP_IDLE_S
    await answered(young)
    client._close_old()
    assert (old_transport.closed, young_transport.closed) == (True, False)
    assert client._rested(ORIGIN) is young
    assert client._rested(ORIGIN) is None
    await client.close()


# -- this machine's own limits


def provider_at(url: str) -> Provider:
    return Provider.of(ProviderSettings(name="p", base_url=url), write_stall_s=60)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A provider that answers one request."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(ANSWER)
    writer.close()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing: the lowest descriptors are all in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LOWEST, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBUSY])
async def test_a_resolver_without_descriptors_may_say_anything(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises the error that another call had left."""
    client = UpstreamClient(TLS)

    def failing(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "getaddrinfo", failing)
    provider = provider_at("http://a.example")
    with no_descriptors(), pytest.raises(OutOfConnectionsError, match="Too many open files"):
        await client.ask(provider, b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(NotSentError):
        await client.ask(provider, b"GET / HTTP/1.1\r\n\r\n")
    await client.close()


@pytest.mark.io
async def test_without_descriptors_it_is_this_machine_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    client = UpstreamClient(TLS)
    async with listening(answer) as url:
        for host in ("127.0.0.1", "localhost"):
            provider = provider_at(url.replace("127.0.0.1", host))
            with no_descriptors(), pytest.raises(OutOfConnectionsError, match="Too many open files"):
                await client.ask(provider, b"GET / HTTP/1.1\r\n\r\n")
        assert (await client.ask(provider, b"GET / HTTP/1.1\r\n\r\n")).status == 200
    assert [record.message for record in caplog.records] == [
        "connecting to providers (this machine's own limit): [Errno 24] Too many open files"
    ]
    await client.close()


def several(*numbers: int) -> OSError:
    """The failures of several addresses, as they are raised."""
    return OSError("Multiple exceptions: " + ", ".join(str(OSError(one, os.strerror(one))) for one in numbers))


@pytest.mark.parametrize(
    ("failure", "ours"),
    [
        *((OSError(number, "…"), True) for number in (errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)),
        (several(errno.ENETUNREACH, errno.EADDRNOTAVAIL), True),
        (several(errno.EADDRNOTAVAIL, errno.ECONNREFUSED), False),
        (several(errno.ENETUNREACH, errno.EHOSTUNREACH), False),
        (OSError(errno.ENETUNREACH, "…"), False),
        (ConnectionRefusedError(errno.ECONNREFUSED, "…"), False),
        (TimeoutError(), False),
        (socket.gaierror(socket.EAI_NONAME, "…"), False),
    ],
    ids=str,
)
async def test_which_failures_are_this_machine_s(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, ours: bool
) -> None:
    async def fails(*_args: object, **_named: object) -> None:
        raise failure

    monkeypatch.setattr(module, "start_connection", fails)
    with pytest.raises(NotSentError) as raised:
        await UpstreamClient(TLS).ask(provider_at("http://127.0.0.1:9/v1"), b"")
    assert isinstance(raised.value, OutOfConnectionsError) == ours
    refusal = raised.value.refusal()
    assert (refusal.status, refusal.code == "out_of_connections") == ((503, True) if ours else (502, False))


@pytest.mark.io
async def test_an_outage_that_comes_and_goes_is_logged_once_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    client = UpstreamClient(TLS)
    async with listening(answer) as url:
        for _ in range(3):
            with no_descriptors(), pytest.raises(OutOfConnectionsError):
                await client.ask(provider_at(url), b"GET / HTTP/1.1\r\n\r\n")
            await client.ask(provider_at(url), b"GET / HTTP/1.1\r\n\r\n")
        assert len(caplog.records) == 1
        now += EXHAUSTION_OVER_S + 1
        await client.ask(provider_at(url), b"GET / HTTP/1.1\r\n\r\n")
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    await client.close()


def test_the_system_s_certificates_are_read_at_the_start() -> None:
    """Read later without a free descriptor, there would be none, and no error."""
    client = UpstreamClient()
    with no_descriptors():
        assert client._tls.cert_store_stats()["x509_ca"] > 0
