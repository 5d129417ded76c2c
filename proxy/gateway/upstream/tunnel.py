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
from proxy.gateway.upstream.connection import UpstreamConnection
from proxy.gateway.upstream.failures import NotSentError
from proxy.http import errors
from proxy.http.errors import ApiError
from proxy.http.framing import HEAD_BYTES_MAX, BadFramingError, read_head
from proxy.settings import ForwardProxy, ProviderSettings, SettingsError, TlsSettings

# The meaning of the statuses with which proxies refuse.
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
class Egress:
    """TLS and proxy settings of one provider. Compared by identity: connections are not shared between providers."""

    tls: ssl.SSLContext | None
    """TLS to the provider; None: the default"""
    proxy: ForwardProxy | None
    proxy_tls: ssl.SSLContext | None
    """TLS to the proxy; None: unencrypted"""
    outage: Outage
    """logs the outages of the proxy"""

    @classmethod
    def of(cls, settings: ProviderSettings) -> Self | None:
        """Read the certificates; None: the provider uses the defaults. Raises SettingsError."""
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
        """The error to raise. Logs the first failure of several."""
        self.outage.began(ConnectionError(why))
        return ProxyFailedError(why)


async def open_tunnel(egress: Egress, sock: socket.socket, host: str, port: int) -> asyncio.Transport:
    """Open a tunnel to `host` over `sock`, a connection to the proxy. Raises ProxyFailedError, OSError."""
    assert egress.proxy is not None
    transport, opening = await asyncio.get_running_loop().create_connection(
        lambda: _Opening(egress),
        sock=sock,
        ssl=egress.proxy_tls,
        server_hostname=egress.proxy.host if egress.proxy.tls else None,
    )
    try:
        transport.write(_request(egress.proxy, host, port))
        await opening.opened
    except BaseException:
        transport.abort()
        raise
    return transport


async def connect_in(
    tunnel: asyncio.Transport, connection: UpstreamConnection, tls: ssl.SSLContext | None, host: str
) -> None:
    """Connect to the provider at the end of the tunnel. `tls` None: unencrypted. Raises OSError."""
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
    """Raises ConnectionResetError if the transport is closed: `connection_lost` is not called again."""
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

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("it closed the connection")

    def data_received(self, data: bytes) -> None:
        if self.opened.done():  # bytes after the proxy's answer: the provider has no request yet
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
            self.opened.set_exception(self._egress.failed(why))
