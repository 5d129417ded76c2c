"""The connection pool of all providers, and the answers that come through it.

Invariants: a request goes only to the configured origin, through the configured proxy if there is one: no redirects, no
cookies. Certificates are always verified. Bodies for clients are never decompressed. Failures are raised as
`UpstreamFailedError`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator
from time import monotonic
from typing import Any

from aiohappyeyeballs import AddrInfoType, start_connection

from proxy.foundation.outage import Outage, OutageLog
from proxy.foundation.tls import client_context
from proxy.gateway.upstream.connection import Sink, UpstreamConnection
from proxy.gateway.upstream.failures import NotSentError, OutOfConnectionsError, UpstreamFailedError
from proxy.gateway.upstream.provider import Origin, Provider
from proxy.gateway.upstream.tunnel import Egress, connect_in, open_tunnel
from proxy.http.framing import Head
from proxy.metering.wire.content_coding import CODINGS, decompressed
from proxy.settings import ForwardProxy

# Bytes of an answer in the kernel's buffer, per connection (the kernel doubles this for its bookkeeping). One read
# returns no more, and a stream holds at most one read that its client has not taken: never more than 256 KiB.
RECEIVE_BYTES_MAX = 64 * 1024
# An idle connection is kept less long than servers usually keep theirs, so that we rarely write into a closed one.
KEEP_IDLE_S = 20.0
# Idle connections per origin; the oldest is closed first. Of 3,000 streams that begin and end at random, the number of
# idle connections varies by some 55 (the square root); more serve only a burst, and each one holds a descriptor.
IDLE_MAX = 512
# The second address of a name is tried when the first has not answered for this long (RFC 8305).
HAPPY_EYEBALLS_S = 0.25
# The longest compressed error that is decompressed.
READABLE_BYTES_MAX = 4 << 20
# This machine's own limits: descriptors, buffers, memory, local ports.
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))
# The errors of addresses of the other IP version, where only one is in use.
_OTHER_IP_VERSION = frozenset((errno.ENETUNREACH, errno.EAFNOSUPPORT))
# At its limit, a machine alternates between failures and connections: the outage ends after this long without a
# failure.
EXHAUSTION_OVER_S = 10.0


class Answer:
    """The head of an answer, and the connection that delivers its body, in use until the body ends."""

    __slots__ = ("_checkout", "_connection", "coding", "content_type", "head", "status")

    def __init__(self, head: Head, connection: UpstreamConnection) -> None:
        self.head = head
        self.status = head.status
        """HTTP status"""
        self.content_type = head.header("content-type").partition(";")[0].strip().lower()
        """media type, lower case, without parameters"""
        coding = head.header("content-encoding").strip().lower()
        self.coding = "" if coding == "identity" else coding
        """the compression of the body, in lower case; empty: none. A provider may compress although requests decline
        it"""
        self._connection = connection
        self._checkout = connection.checkout

    def readable(self, body: bytes) -> bytes | None:
        """`body` without compression. None if that cannot be undone, or would be longer than READABLE_BYTES_MAX."""
        if not self.coding:
            return body
        return decompressed(body, READABLE_BYTES_MAX) if self.coding in CODINGS else None

    async def read(self, bytes_max: int) -> bytes | None:
        """The whole body, or None if it is longer than `bytes_max`. Raises UpstreamFailedError."""
        collected = _Collector(bytes_max, self)
        self.relay_to(collected)
        if not collected.done.done():
            await collected.done
        return collected.done.result()

    def early_payload(self) -> AsyncGenerator[bytes]:
        """The body that arrives before `relay_to`: see `UpstreamConnection.early_payload`."""
        return self._connection.early_payload()

    def close(self) -> None:
        """Discard the rest of the body."""
        if self._ours:
            self._connection.release_or_abort()

    def relay_to(self, sink: Sink) -> None:
        """Send the body to `sink`."""
        assert self._ours, "a body is relayed once"
        self._connection.relay_to(sink)

    def pause_reading(self) -> None:
        """Stop reading from the socket (backpressure)."""
        if self._ours:
            self._connection.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading from the socket."""
        if self._ours:
            self._connection.resume_reading()

    @property
    def _ours(self) -> bool:
        # A released connection may serve another exchange within this iteration of the event loop.
        return self._connection.checkout == self._checkout


class _Collector:
    """A sink that collects a body."""

    def __init__(self, bytes_max: int, answer: Answer) -> None:
        self.done: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._bytes_left = bytes_max
        self._pieces: list[bytes] = []
        self._answer = answer

    def relay_matched(self, wire: bytes) -> bool:
        return False

    def piece(self, payload: bytes, framed: bytes | None = None) -> None:
        self._pieces.append(payload)
        self._bytes_left -= len(payload)
        if self._bytes_left < 0:
            self._end(None)
            self._answer.pause_reading()

    def complete(self) -> None:
        self._end(b"".join(self._pieces))

    def internal_error(self) -> None:
        """A bug of ours: discard the body."""
        self.upstream_error()

    def upstream_error(self) -> None:
        if not self.done.done():
            self.done.set_exception(UpstreamFailedError("broke off"))

    def _end(self, body: bytes | None) -> None:
        if not self.done.done():
            self.done.set_result(body)


class UpstreamClient:
    """The connection pool of all providers. The most recently used idle connection is taken first."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: trusted certificates; default: those of the system."""
        # Read now: without a free descriptor, OpenSSL would find none and report no error.
        self._tls = tls or client_context()
        # Idle connections → when they became idle (by `time.monotonic`), oldest first.
        self._idle: defaultdict[Origin, OrderedDict[UpstreamConnection, float]] = defaultdict(OrderedDict)
        self._origins: dict[UpstreamConnection, Origin] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._exhaustion = Outage(OutageLog("connecting to providers (this machine's own limit)"))
        self._exhausted_at = 0.0

    async def ask(self, provider: Provider, request: bytes, *rest: bytes) -> Answer:
        """Send a request and wait for the head of its answer. `rest`: further pieces of its body. Raises
        UpstreamFailedError. Cancellation closes the connection."""
        if provider.authorization is not None:
            request = await provider.authorization.authorized(request, *rest)
        connection = self._rested(provider.origin) or await self._connected(
            provider.origin, provider.settings.timeouts.connect_s
        )
        try:
            return Answer(await connection.ask(request, *rest), connection)
        except BaseException:
            connection.release_or_abort()
            raise

    async def switch(self, provider: Provider, request: bytes) -> Answer | UpstreamConnection:
        """Send a request for another protocol. Returns the connection with the head of the 101 answer, which now
        belongs to the caller; or the answer that declines. Raises UpstreamFailedError. Cancellation closes the
        connection."""
        if provider.authorization is not None:
            request = await provider.authorization.authorized(request)
        connection = await self._connected(provider.origin, provider.settings.timeouts.connect_s)
        try:
            head = await connection.ask(request, switches=True)
        except BaseException:
            connection.release_or_abort()
            raise
        return connection if connection.switched is not None else Answer(head, connection)

    async def close(self) -> None:
        """Abort every connection: a TLS shutdown would wait for the provider, and the event loop may end."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._origins):
            connection.abort()
        await asyncio.sleep(0)
        self._idle.clear()

    def _rested(self, origin: Origin) -> UpstreamConnection | None:
        idle = self._idle[origin]
        too_old = monotonic() - KEEP_IDLE_S
        while idle:
            connection, rested_at = idle.popitem()
            if rested_at > too_old and connection.usable:
                return connection
            connection.close()
        return None

    async def _connected(self, origin: Origin, connect_s: float) -> UpstreamConnection:
        egress = origin.egress
        try:
            async with asyncio.timeout(connect_s):
                if egress is None or egress.proxy is None:
                    connection = await self._direct(origin)
                else:
                    connection = await self._tunnelled(origin, egress, egress.proxy)
        except (OSError, TimeoutError, ValueError) as failure:
            exhausted = _exhausted(failure)
            if exhausted is not None:
                self._exhausted_at = monotonic()
                self._exhaustion.began(exhausted)
                raise OutOfConnectionsError(f"not connected: {exhausted.strerror}") from failure
            if isinstance(failure, TimeoutError) and egress is not None and egress.proxy is not None:
                raise egress.failed("no connection through it in time") from failure
            # Not the error's own text: it can hold addresses.
            raise NotSentError(f"not connected: {type(failure).__name__}") from failure
        self._origins[connection] = origin
        if self._exhaustion.lasts and monotonic() - self._exhausted_at > EXHAUSTION_OVER_S:
            self._exhaustion.over()
        return connection

    async def _direct(self, origin: Origin) -> UpstreamConnection:
        if origin.socket:
            loop = asyncio.get_running_loop()
            return (
                await loop.create_unix_connection(lambda: UpstreamConnection(self._rests, self._gone), origin.socket)
            )[1]
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: UpstreamConnection(self._rests, self._gone),
            sock=await _socket_to(origin.host, origin.port),
            ssl=self._tls_of(origin),
            server_hostname=origin.host if origin.tls else None,
        )
        return connection

    async def _tunnelled(self, origin: Origin, egress: Egress, proxy: ForwardProxy) -> UpstreamConnection:
        try:
            sock = await _socket_to(proxy.host, proxy.port)
            tunnel = await open_tunnel(egress, sock, origin.host, origin.port)
        except OSError as failure:
            if _exhausted(failure) is not None:
                raise
            raise egress.failed(f"it cannot be reached ({type(failure).__name__})") from failure
        connection = UpstreamConnection(self._rests, self._gone)
        await connect_in(tunnel, connection, self._tls_of(origin), origin.host)
        egress.outage.over()
        return connection

    def _tls_of(self, origin: Origin) -> ssl.SSLContext | None:
        if not origin.tls:
            return None
        return self._tls if origin.egress is None or origin.egress.tls is None else origin.egress.tls

    def _rests(self, connection: UpstreamConnection) -> None:
        idle = self._idle[self._origins[connection]]
        idle[connection] = monotonic()
        if len(idle) > IDLE_MAX:
            oldest, _ = idle.popitem(last=False)
            oldest.close()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEP_IDLE_S, self._close_old)

    def _gone(self, connection: UpstreamConnection) -> None:
        origin = self._origins.pop(connection, None)
        if origin is not None:
            self._idle[origin].pop(connection, None)

    def _close_old(self) -> None:
        self._sweep = None
        too_old = monotonic() - KEEP_IDLE_S
        for idle in self._idle.values():
            while idle and next(iter(idle.values())) <= too_old:
                connection, _ = idle.popitem(last=False)
                connection.close()
        if any(self._idle.values()):
            self._sweep = asyncio.get_running_loop().call_later(KEEP_IDLE_S / 2, self._close_old)


async def _socket_to(host: str, port: int) -> socket.socket:
    """A connected socket. Raises OSError."""
    found = await _addresses(host, port)
    return await start_connection(found, happy_eyeballs_delay=HAPPY_EYEBALLS_S, interleave=1, socket_factory=_socket)


async def _addresses(host: str, port: int) -> list[Any]:
    """The addresses to connect to. Raises socket.gaierror. A resolver without descriptors can also raise the error of
    any earlier call."""
    try:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as failure:
        raise socket.gaierror(socket.EAI_SYSTEM, "the resolver failed") from failure


def _exhausted(failure: Exception) -> OSError | None:
    """The limit of this machine that prevented a connection; None if another failure did."""
    if isinstance(failure, socket.gaierror):
        return _no_descriptor()  # a resolver without descriptors reports that the name is unknown
    numbers = {failure.errno} if isinstance(failure, OSError) and failure.errno is not None else _errnos_of(failure)
    reached = numbers & _EXHAUSTED
    if not reached or numbers - _EXHAUSTED - _OTHER_IP_VERSION:
        return None
    number = min(reached)
    return OSError(number, os.strerror(number))


def _errnos_of(failure: Exception) -> set[int]:
    """The error numbers in the text of an exception that combines the errors of several addresses."""
    return {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(failure))}


def _no_descriptor() -> OSError | None:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as failure:
        return OSError(failure.errno, failure.strerror)
    return None


def _socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES_MAX)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
