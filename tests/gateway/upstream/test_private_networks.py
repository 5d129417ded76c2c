"""Providers behind private CAs, client certificates and HTTP proxies, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.failures import NotSentError, OutOfConnectionsError, UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.tunnel import ProxyFailedError
from proxy.settings import ForwardProxy, ProviderSettings, Secret, SettingsError, Timeouts, TlsSettings
from tests.gateway.inprocess import gateway
from tests.support.certificates import Authority, Issued
from tests.support.connect_proxy import Behaviour, ConnectProxy, connect_proxy
from tests.support.net import ask, chat_request, closed_port, connect, listening

pytestmark = pytest.mark.io

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
REQUEST = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
Loops = Callable[[], asyncio.AbstractEventLoop]
LOOPS = [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]
KEY, PASSWORD = "sk-canary-of-a-private-network", "canary-pass/word:@"


@dataclass(frozen=True, slots=True)
class Pki:
    """An authority, a server and a client of it, and another authority."""

    authority: Authority
    server: Issued
    client: Issued
    other: Authority


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    folder = tmp_path_factory.mktemp("pki")
    authority = Authority(folder)
    return Pki(authority, authority.issue("server"), authority.issue("client"), Authority(folder, "other"))


@dataclass
class Server:
    """A provider that answers each request with `{}`."""

    port: int = 0
    requests: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                self.requests += 1
                writer.write(ANSWER)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client is gone, or the test is over
        finally:
            writer.close()


@asynccontextmanager
async def server(tls: ssl.SSLContext | None) -> AsyncIterator[Server]:
    made = Server()
    async with listening(made.serve, ssl=tls) as url:
        made.port = int(url.rpartition(":")[2])
        yield made


def provider(
    port: int, tls: TlsSettings | None = None, proxy: ForwardProxy | None = None, *, scheme: str = "https", **more: Any
) -> Provider:
    settings = ProviderSettings(
        name="p",
        base_url=f"{scheme}://127.0.0.1:{port}/v1",
        api_key=Secret(KEY),
        tls=tls or TlsSettings(),
        proxy=proxy,
        **more,
    )
    return Provider.of(settings, write_stall_s=60)


def at(proxy: ConnectProxy, credentials: str | None = None, *, tls: bool = False) -> ForwardProxy:
    return ForwardProxy("127.0.0.1", proxy.port, tls, None if credentials is None else Secret(credentials))


@asynccontextmanager
async def pool() -> AsyncIterator[UpstreamClient]:
    client = UpstreamClient()
    try:
        yield client
    finally:
        await client.close()


async def twice(client: UpstreamClient, one: Provider) -> list[bytes | None]:
    """Two requests, the second over the same connection."""
    return [await (await client.ask(one, REQUEST)).read(100) for _ in range(2)]


def trusting(pki: Pki) -> TlsSettings:
    return TlsSettings(ca_file=pki.authority.file)


def on(loops: Loops, work: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(work())


# -- certificates


async def test_a_private_authority_is_trusted_where_it_is_configured_and_nowhere_else(pki: Pki) -> None:
    async with server(pki.authority.server_context(pki.server)) as made, pool() as client:
        assert await twice(client, provider(made.port, trusting(pki))) == [b"{}"] * 2
        # Not even over the connection that is idle now.
        for other in (None, TlsSettings(ca_file=pki.other.file)):
            with pytest.raises(NotSentError, match="SSLCertVerificationError"):
                await client.ask(provider(made.port, other), REQUEST)
        assert made.requests == 2


async def test_the_host_name_is_verified_with_a_private_authority_too(pki: Pki) -> None:
    async with server(pki.authority.server_context(pki.server)) as made, pool() as client:
        settings = replace(provider(made.port, trusting(pki)).settings, base_url=f"https://127.0.0.2:{made.port}")
        elsewhere = await asyncio.start_server(
            made.serve, "127.0.0.2", made.port, ssl=pki.authority.server_context(pki.server)
        )
        with pytest.raises(NotSentError, match="SSLCertVerificationError"):
            await client.ask(Provider.of(settings, write_stall_s=60), REQUEST)
        elsewhere.close()


async def test_a_client_certificate_is_presented(pki: Pki) -> None:
    async with server(pki.authority.server_context(pki.server, clients=True)) as made, pool() as client:
        tls = replace(trusting(pki), cert_file=pki.client.cert, key_file=pki.client.key)
        assert await twice(client, provider(made.port, tls)) == [b"{}"] * 2
        with pytest.raises(UpstreamFailedError):
            await client.ask(provider(made.port, trusting(pki)), REQUEST)
        assert made.requests == 2


@pytest.mark.parametrize("loops", LOOPS)
def test_a_client_certificate_that_is_missing_is_named_and_nothing_was_served(pki: Pki, loops: Loops) -> None:
    """TLS 1.3 refuses it after the client's part of the handshake, when the request is on its way."""
    context = pki.authority.server_context(pki.server, clients=True)

    def refuse(listening: socket.socket) -> None:
        accepted = listening.accept()[0]
        with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as connection:
            with suppress(ssl.SSLError):
                connection.do_handshake()
            while socket.socket.recv(connection, 4096):  # or a reset would overtake the alert
                pass

    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            refusing = asyncio.get_running_loop().run_in_executor(None, refuse, listening)
            async with pool() as client:
                with pytest.raises(NotSentError, match="client certificate"):
                    await client.ask(provider(listening.getsockname()[1], trusting(pki)), REQUEST)
            await refusing

    on(loops, work)


def test_a_key_may_be_in_the_file_of_its_certificate(pki: Pki, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(pki.client.key.read_bytes() + pki.client.cert.read_bytes())
    assert provider(1, TlsSettings(cert_file=both)).origin.egress is not None


def test_what_is_wrong_with_a_file_names_its_setting_and_quotes_nothing(pki: Pki, tmp_path: Path) -> None:
    absent, text = tmp_path / "absent.pem", tmp_path / "text.pem"
    text.write_text("a canary\n")
    locked = pki.authority.issue("locked", passphrase=b"canary")
    cert, key = pki.client.cert, pki.client.key
    cases = {
        "ca_file: cannot be read: No such file": TlsSettings(ca_file=absent),
        "ca_file: holds no certificates in PEM": TlsSettings(ca_file=text),
        "cert_file: cannot be read: No such file": TlsSettings(cert_file=absent, key_file=key),
        "key_file: cannot be read: Is a directory": TlsSettings(cert_file=cert, key_file=tmp_path),
        "key_file: the private key does not belong": TlsSettings(cert_file=cert, key_file=pki.server.key),
        "key_file: the private key is encrypted": TlsSettings(cert_file=locked.cert, key_file=locked.key),
        "cert_file: holds no certificate in PEM format, or key_file": TlsSettings(cert_file=cert, key_file=text),
        "cert_file: holds no certificate in PEM format, or cert_file": TlsSettings(cert_file=text),
    }
    for says, tls in cases.items():
        with pytest.raises(SettingsError) as refused:
            provider(1, tls)
        assert str(refused.value).startswith(f"providers.p.tls.{says}")
        assert "canary" not in str(refused.value)


# -- proxies


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["http-proxy", "https-proxy"])
def test_a_tunnel_and_what_goes_through_it(pki: Pki, loops: Loops, scheme: str, encrypted: bool) -> None:
    """With credentials, and the client certificate of the provider; the connection is used again."""

    async def work() -> None:
        to_server = pki.authority.server_context(pki.server, clients=True) if scheme == "https" else None
        to_proxy = pki.authority.server_context(pki.server) if encrypted else None
        credentials = f"user:{PASSWORD}"
        async with (
            server(to_server) as made,
            connect_proxy(credentials=credentials, tls=to_proxy) as proxy,
            pool() as client,
        ):
            tls = replace(trusting(pki), cert_file=pki.client.cert, key_file=pki.client.key)
            one = provider(made.port, tls, at(proxy, credentials, tls=encrypted), scheme=scheme)
            assert await twice(client, one) == [b"{}"] * 2
            assert proxy.targets == [f"127.0.0.1:{made.port}"], "one tunnel for both requests"
            assert KEY.encode() not in b"".join(proxy.heads)
            assert made.requests == 2

    on(loops, work)


REFUSALS: dict[Behaviour, str] = {
    "forbids": "does not allow this host (403)",
    "unauthorized": "refuses its credentials (407)",
    "fails": "cannot reach the provider (502)",
    "hangs": "no connection through it in time",
    "closes": "closed the connection",
    "closes_in_head": "closed the connection",
    "garbage": "does not answer in HTTP",
    "endless": "head of its answer is too long",
    "adds": "sent bytes of its own",
}


@pytest.mark.parametrize("loops", LOOPS)
def test_a_proxy_that_opens_no_tunnel_is_named_and_nothing_was_sent(
    pki: Pki, loops: Loops, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with server(pki.authority.server_context(pki.server)) as made, pool() as client, connect_proxy() as proxy:
            for behaviour, says in REFUSALS.items():
                proxy.behaviour = behaviour
                # A hang is waited for; the others must not take so long on a busy machine.
                patience = Timeouts(connect_s=0.2 if behaviour == "hangs" else 20)
                one = provider(made.port, trusting(pki), at(proxy, f"user:{PASSWORD}"), timeouts=patience)
                for _ in range(2):
                    with pytest.raises(ProxyFailedError) as failed:
                        await client.ask(one, REQUEST)
                    assert says in str(failed.value)
                lines = [record.getMessage() for record in caplog.records]
                assert len(lines) == 1, "once per outage"
                assert lines[0].startswith("connecting to provider p through its proxy: ")
                assert says in lines[0]
                caplog.clear()
            proxy.behaviour = "tunnels"
            assert await twice(client, one) == [b"{}"] * 2
            assert [record.getMessage() for record in caplog.records][-1].endswith("works again")
            assert made.requests == 2
        while proxy.open:  # nothing is left open
            await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING):
        on(loops, work)
    assert PASSWORD not in caplog.text


def test_another_provider_may_be_asked_after_a_proxy_failed() -> None:
    """As after any connection that was not made."""
    assert issubclass(ProxyFailedError, NotSentError)
    assert not issubclass(ProxyFailedError, OutOfConnectionsError)


async def test_a_proxy_that_is_not_there_is_named(pki: Pki) -> None:
    async with pool() as client:
        nowhere = ForwardProxy("127.0.0.1", closed_port(), False, None)
        with pytest.raises(ProxyFailedError, match=r"the proxy: it cannot be reached \(ConnectionRefusedError\)"):
            await client.ask(provider(1, proxy=nowhere), REQUEST)
        async with connect_proxy(tls=pki.other.server_context(pki.other.issue("stranger"))) as stranger:
            with pytest.raises(ProxyFailedError, match="SSLCertVerificationError"):
                await client.ask(provider(1, trusting(pki), at(stranger, tls=True)), REQUEST)
        assert stranger.heads == [], "its credentials go to no stranger"


async def test_a_provider_with_a_wrong_certificate_behind_a_proxy_is_the_provider_s_failure(pki: Pki) -> None:
    async with server(pki.authority.server_context(pki.server)) as made, connect_proxy() as proxy, pool() as client:
        with pytest.raises(NotSentError, match="SSLCertVerificationError") as failed:
            await client.ask(provider(made.port, TlsSettings(ca_file=pki.other.file), at(proxy)), REQUEST)
        assert not isinstance(failed.value, ProxyFailedError)


async def test_who_gives_up_while_the_tunnel_is_opened_leaves_nothing_open() -> None:
    async with connect_proxy("hangs") as proxy, pool() as client:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(client.ask(provider(1, proxy=at(proxy)), REQUEST))
            while not proxy.heads:
                await asyncio.sleep(0)
            asking.cancel()
        assert asking.cancelled()
        while proxy.open:
            await asyncio.sleep(0)
        del asking
        gc.collect()  # no future's exception was never retrieved: the tests make warnings errors


async def test_the_client_gets_502_and_the_record_says_why(tmp_path: Path) -> None:
    async with connect_proxy(credentials="user:other") as proxy:
        settings = {"api_key": Secret(KEY), "proxy": at(proxy, f"user:{PASSWORD}")}
        async with gateway(tmp_path, "https://provider.test/v1", **settings) as made:
            async with await connect(made.url) as client:
                await client.send(chat_request(ask("electron", stream=False), key="tw-1"))
                response = await client.read()
            error = json.loads(response.body)["error"]
            assert (response.status, error["code"]) == (502, "upstream_proxy_failed")
            (record,) = made.outbox.records
            assert record.details["failed"] == "not connected: the proxy: it refuses its credentials (407)"
            assert proxy.targets == ["provider.test:443"]
    assert not [word for word in (KEY, PASSWORD) if word in f"{record}{response.wire!r}{response.head!r}"]


def test_nothing_shows_the_credentials() -> None:
    one = provider(1, proxy=ForwardProxy("h", 1, False, Secret(PASSWORD)))
    assert PASSWORD not in f"{one!r}{one.settings!r}{one.origin}"
