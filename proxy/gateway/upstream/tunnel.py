"""Connections to providers through an HTTP proxy (CONNECT).

Invariants: nothing of a request is sent before the proxy has opened the tunnel, so each failure here is a
`NotSentError`. The proxy's answer is untrusted: bounded, and never quoted. The proxy's credentials go to the proxy
only, the provider's key and client certificate to the provider only.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from dataclasses import dataclass
from typing import Self, cast

from proxy.foundation.outage import Outage, OutageLog
from proxy.foundation.tls import TlsFileError, client_context
from proxy.gateway.upstream.connection import NotSentError, UpstreamConnection
from proxy.http import errors
from proxy.http.errors import ApiError
from proxy.http.framing import HEAD_BYTES_MAX, BadFramingError, read_head
from proxy.settings import ForwardProxy, ProviderSettings, SettingsError, TlsSettings

# What the statuses mean that proxies refuse with.
_REFUSALS = {
    403: "it does not allow this host (403)",
    407: "it refuses its credentials (407)",
    502: "it cannot reach the provider (502)",
    503: "it cannot reach the provider (503)",
    504: "it cannot reach the provider (504)",
}


class ProxyFailedError(NotSentError):
    """The HTTP proxy on the way to the provider was unreachable, or opened no tunnel."""

    def __init__(self, why: str) -> None:
        super().__init__(f"not connected: the proxy: {why}")

    def refusal(self) -> ApiError:
        return errors.upstream_proxy_failed()


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How one provider is reached, where that differs from others. Compared by identity: connections are not shared."""

    tls: ssl.SSLContext | None
    """to the provider; None: as all others"""
    proxy: ForwardProxy | None
    proxy_tls: ssl.SSLContext | None
    """to the proxy itself; None: unencrypted"""
    outage: Outage
    """of the proxy"""

    @classmethod
    def of(cls, settings: ProviderSettings) -> Self | None:
        """None: as all others. Reads the certificates. Raises SettingsError."""
        tls, proxy = settings.tls, settings.proxy
        if tls == TlsSettings() and proxy is None:
            return None
        try:
            own = None if tls == TlsSettings() else client_context(tls.ca_file, tls.cert_file, tls.key_file)
            to_proxy = client_context(tls.ca_file) if proxy is not None and proxy.tls else None
        except TlsFileError as wrong:
            raise SettingsError(f"providers.{settings.name}.tls.{wrong}") from None
        outage = Outage(OutageLog(f"connecting to provider {settings.name} through its proxy"))
        return cls(own, proxy, to_proxy, outage)

    def failed(self, why: str) -> ProxyFailedError:
        """Logs the first failure of several."""
        self.outage.began(ConnectionError(why))
        return ProxyFailedError(why)


async def open_tunnel(way: Way, sock: socket.socket, host: str, port: int) -> asyncio.Transport:
    """A tunnel to `host`, opened over `sock`, a connection to the proxy. Raises ProxyFailedError, OSError."""
    assert way.proxy is not None
    transport, opening = await asyncio.get_running_loop().create_connection(
        lambda: _Opening(way), sock=sock, ssl=way.proxy_tls, server_hostname=way.proxy.host if way.proxy.tls else None
    )
    try:
        transport.write(_request(way.proxy, host, port))
        await opening.opened
    except BaseException:
        transport.abort()
        raise
    return transport


async def connect_in(
    tunnel: asyncio.Transport, connection: UpstreamConnection, tls: ssl.SSLContext | None, host: str
) -> None:
    """Connect to the provider at the tunnel's end. `tls`: None: unencrypted. Raises OSError."""
    try:
        if tls is None:
            tunnel.set_protocol(connection)
            connection.connection_made(tunnel)
        else:
            loop = asyncio.get_running_loop()
            encrypted = await loop.start_tls(tunnel, connection, tls, server_hostname=host)
            connection.connection_made(_open(encrypted))
    except BaseException:
        tunnel.abort()
        raise


def _open(transport: asyncio.Transport | None) -> asyncio.Transport:
    """Raises ConnectionResetError if it is closed: nobody would say so again."""
    if transport is None or transport.is_closing():
        raise ConnectionResetError("disconnected")
    return transport


def _request(proxy: ForwardProxy, host: str, port: int) -> bytes:
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", "User-Agent: tokenweir"]
    if proxy.credentials is not None:
        basic = b64encode(proxy.credentials.reveal().encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {basic}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class _Opening(asyncio.Protocol):
    """Reads the proxy's answer."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("it closed the connection")

    def data_received(self, data: bytes) -> None:
        if self.opened.done():  # by then only the provider may speak, and it is not asked yet
            assert self._transport is not None
            self._transport.abort()
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if not self._head.startswith(b"HTTP/1."[: len(self._head)]):
            self._fail("it does not answer in HTTP")
        elif (len(self._head) if end < 0 else end) > HEAD_BYTES_MAX:
            self._fail("the head of its answer is too long")
        elif end >= 0:
            self._answered(bytes(self._head[: end + 2]), more=len(self._head) > end + 4)

    def _answered(self, head: bytes, *, more: bool) -> None:
        try:
            status = read_head(head).status
        except BadFramingError:
            self._fail("it does not answer in HTTP")
            return
        if not 200 <= status < 300:
            self._fail(_REFUSALS.get(status, f"it answered {status}"))
        elif more:
            self._fail("it sent bytes of its own into the tunnel")
        else:
            self.opened.set_result(None)

    def _fail(self, why: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(self._way.failed(why))
