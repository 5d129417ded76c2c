"""A new proxy takes the place of the running one on the same data folder: `serve --take-over`. Or systemd opens the
listeners, and keeps them open from one proxy to the next.

Invariants: both proxies accept on the same listening sockets, so that no connection is lost between them. The running
proxy stops only after the new one serves; a new one that fails before changes nothing. Only a process of the same user
can ask. While the earlier one drains, each has a journal of its own.

The running proxy listens on an abstract Unix socket (Linux), which is named after its data folder and vanishes with it.
It answers with one message: JSON, and with it the file descriptors of its listening sockets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from proxy.foundation.addresses import hosts_of
from proxy.settings import Settings

Listeners = Mapping[str, Sequence[Any]]
"""section of the settings (`listen`, `admin`, `metrics`) → its listening sockets"""

# Each step of the exchange takes milliseconds, and a start of the new proxy between them some seconds.
ANSWER_S = 5.0
_MESSAGE_BYTES_MAX, _SOCKETS_MAX = 4096, 64
_SERVES, _LEAVES = b"serves", b"leaves"
# systemd passes sockets from this file descriptor on (sd_listen_fds).
_FIRST_ACTIVATED = 3

_log = logging.getLogger(__name__)


class HandoverError(OSError):
    """The running proxy cannot be replaced; the message is for the operator."""


class _Offer(msgspec.Struct, frozen=True):
    pid: int
    sections: list[str]
    """the section of each file descriptor that comes with this message"""


class Predecessor:
    """The running proxy, which hands its listeners over."""

    def __init__(self, connected: socket.socket, pid: int, listeners: Listeners) -> None:
        self.pid = pid
        self.listeners = listeners
        self._connected = connected

    async def leave(self) -> None:
        """Let it stop, since this process serves; its running exchanges finish."""
        loop = asyncio.get_running_loop()
        self._connected.setblocking(False)
        answer = b""
        with self._connected, suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await loop.sock_sendall(self._connected, _SERVES)
                answer = await loop.sock_recv(self._connected, len(_LEAVES))
        if answer != _LEAVES:  # it has died, or hangs: this process serves in any case
            _log.error("process %d does not answer any more; end it, if it still runs", self.pid)


class Succession(NamedTuple):
    """What a proxy takes over at its start."""

    listeners: Listeners = MappingProxyType({})
    predecessor: Predecessor | None = None
    """it stops once this process serves"""
    is_beside: bool = False
    """another process may drain on the same data folder"""

    def of(self, section: str) -> Sequence[socket.socket]:
        """The sockets to listen on; empty: those of the settings."""
        return self.listeners.get(section, ())


FIRST = Succession()


def take_over(settings: Settings) -> Succession:
    """Take the place of the proxy that runs with the data folder, if there is one. Raises HandoverError."""
    earlier = _predecessor(settings.data_dir)
    if earlier is None:
        return Succession(is_beside=True)
    admin, metrics = settings.admin, settings.metrics
    sections = {
        "listen": (settings.listen.host, settings.listen.port),
        "admin": (admin.host, admin.port if admin.is_on else None),
        "metrics": (metrics.host, metrics.port),
    }
    kept = {
        name: earlier.listeners[name]
        for name, (host, port) in sections.items()
        # A socket that is kept and not used would let clients wait for ever.
        if port is not None and name in earlier.listeners and _is_at(earlier.listeners[name], hosts_of(host), port)
    }
    for name in earlier.listeners.keys() - kept.keys():
        for one in earlier.listeners[name]:
            one.close()
    return Succession(kept, earlier, is_beside=True)


def _is_at(sockets: Sequence[socket.socket], hosts: Sequence[str], port: int) -> bool:
    """Whether they listen on exactly these addresses. `port`: 0: any."""
    try:
        found = [one for host in hosts for one in socket.getaddrinfo(host, port or None, type=socket.SOCK_STREAM)]
    except socket.gaierror:  # the new listener fails by it, and names the setting
        return False
    names = [one.getsockname()[:2] for one in sockets]
    wanted = {(one[4][0], port or (names[0][1] if names else 0)) for one in found}
    return wanted == set(names)


def _predecessor(data_dir: Path) -> Predecessor | None:
    """The proxy that runs with this data folder; None: there is none. Raises HandoverError."""
    if sys.platform != "linux":
        raise HandoverError("--take-over: works on Linux only")
    with ExitStack() as opened:
        connected = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connected.settimeout(ANSWER_S)
        try:
            connected.connect(_address(data_dir))
            _check_user(connected)
            message, descriptors, _flags, _sender = socket.recv_fds(connected, _MESSAGE_BYTES_MAX, _SOCKETS_MAX)
            sockets = [opened.enter_context(_own(one)) for one in descriptors]
            offer = msgspec.json.decode(message, type=_Offer)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except (OSError, msgspec.MsgspecError) as failure:
            raise HandoverError(f"the proxy that runs with {data_dir} does not hand over: {failure}") from failure
        opened.pop_all()
        return Predecessor(connected, offer.pid, _by_section(zip(offer.sections, sockets, strict=True)))


def activated(environment: Mapping[str, str]) -> Succession:
    """The listening sockets that systemd has opened for this process; the FileDescriptorName of a socket unit is the
    section, `listen` if it has another name."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return FIRST
    count = int(environment.get("LISTEN_FDS", "0"))
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    sections = [name if name in ("admin", "metrics") else "listen" for name in (*names, *[""] * count)[:count]]
    descriptors = range(_FIRST_ACTIVATED, _FIRST_ACTIVATED + count)
    return Succession(_by_section(zip(sections, map(_own, descriptors), strict=True)))


def _own(descriptor: int) -> socket.socket:
    """The socket of a file descriptor that another process has opened; programs that this one starts do not get it."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def open_offer(data_dir: Path) -> socket.socket | None:
    """The socket where other processes ask for the listeners; None: they cannot, and the log says why."""
    if sys.platform != "linux":
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        made.bind(_address(data_dir))
        made.listen()
    except OSError as failure:
        made.close()
        _log.warning("this proxy cannot be replaced by serve --take-over: %s", failure.strerror)
        return None
    return made


async def offer(asked: socket.socket, listeners: Callable[[], Listeners], replaced: Callable[[], None]) -> None:
    """Hand the listeners over to each process that asks for them, until one serves: then `replaced` is called, once.
    `asked`: what `open_offer` returned."""
    loop = asyncio.get_running_loop()
    with asked:
        while True:
            asking, _sender = await loop.sock_accept(asked)
            with asking:
                serves = False
                with suppress(OSError):
                    _check_user(asking)
                    serves = await _hand_over(asking, listeners())
                if serves:
                    asked.close()  # the new one takes the name
                    replaced()
                    with suppress(OSError):  # it may have died since
                        await loop.sock_sendall(asking, _LEAVES)
                    return


async def _hand_over(asking: socket.socket, listeners: Listeners) -> bool:
    """Whether the process that asks serves now. It may take as long as it needs to start."""
    all_of_them = [(section, one) for section, group in listeners.items() for one in group]
    message = msgspec.json.encode(_Offer(os.getpid(), [section for section, _ in all_of_them]))
    socket.send_fds(asking, [message], [one.fileno() for _, one in all_of_them])
    return await asyncio.get_running_loop().sock_recv(asking, len(_SERVES)) == _SERVES


def _by_section(sockets: Iterable[tuple[str, socket.socket]]) -> Listeners:
    found: dict[str, list[socket.socket]] = {}
    for section, one in sockets:
        found.setdefault(section, []).append(one)
    return found


def _address(data_dir: Path) -> bytes:
    """The name of the socket: the same by whatever path the folder is reached. Raises FileNotFoundError."""
    folder = os.stat(data_dir)
    return b"\0tokenweir-%x-%x" % (folder.st_dev, folder.st_ino)


def _check_user(connected: socket.socket) -> None:
    """Raises HandoverError if the other process is another user's."""
    _pid, user, _group = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise HandoverError(f"the proxy that runs with this data folder is of another user ({user})")
