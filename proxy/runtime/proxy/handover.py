"""A new proxy takes the place of the running one on the same data folder: `serve --take-over`. Or systemd opens the
listeners, and keeps them open from one proxy to the next.

Invariants: both proxies accept on the same listening sockets, so that no connection is lost between them. The running
proxy stops only after the new one serves; a new one that fails before changes nothing. Only a process of the same user
can ask. While the earlier one drains, each has a journal of its own.

The running proxy listens on an abstract Unix socket (Linux), which is named after its data folder and vanishes with it.
It answers with one message: JSON, and with it the file descriptors of its listening sockets.

With `--workers` on either side, the parents hand over; their numbers of processes may differ. The earlier parent has a
copy of the sockets of each process, so that it can answer although one is busy. No socket that was handed over is
closed while the new proxy starts: a process that dies then is started again on its sockets, and one that has none then
is not started. The new processes share the sockets (`shared_out`); every socket has at least one of them. The earlier
processes stop only when all new ones serve. Each new process takes a data folder that no process uses.
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
# SCM_MAX_FD of Linux.
_MESSAGE_BYTES_MAX, _SOCKETS_MAX = 4096, 253
_SERVES, _LEAVES = b"serves", b"leaves"
# systemd passes sockets from this file descriptor on (sd_listen_fds).
_FIRST_ACTIVATED = 3

# From a parent to its processes: they serve, alone from now on; another proxy serves in their place.
LEADS, REPLACED = b"leads", b"replaced"

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
        """Let the previous process stop, since this process serves; its running exchanges finish."""
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
    """The sockets that a proxy takes over at its start, and the proxy that it replaces."""

    listeners: Listeners = MappingProxyType({})
    predecessor: Predecessor | None = None
    """the running proxy, which stops once this process serves"""
    is_beside: bool = False
    """another process may drain on the same data folder"""
    is_served: bool = False
    """another proxy serves until this one does"""

    def of(self, section: str) -> Sequence[socket.socket]:
        """The sockets to listen on; empty: those of the settings."""
        return self.listeners.get(section, ())

    @property
    def is_activated(self) -> bool:
        """Whether systemd has opened the sockets, and keeps them open."""
        return bool(self.listeners) and not self.is_beside


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
        # A socket that is kept and not used would make clients wait without end.
        if port is not None and name in earlier.listeners and _is_at(earlier.listeners[name], hosts_of(host), port)
    }
    for name in earlier.listeners.keys() - kept.keys():
        for one in earlier.listeners[name]:
            one.close()
    return Succession(kept, earlier, is_beside=True, is_served=True)


def shared_out(succession: Succession, processes: int) -> list[Listeners]:
    """The sockets that each of several processes listens on; a process without one makes its own. At every address each
    gets the socket of the process before it with its number, and all get those of numbers that are no longer used, and
    systemd's. The first process has the console and the metrics."""
    by_address: dict[Any, list[Any]] = {}
    for one in succession.of("listen"):
        by_address.setdefault(one.getsockname(), []).append(one)
    shares: list[dict[str, Sequence[Any]]] = []
    for number in range(processes):
        own, all_from = (slice(0, 0), 0) if succession.is_activated else (slice(number, number + 1), processes)
        shares.append({"listen": [one for group in by_address.values() for one in (*group[own], *group[all_from:])]})
    shares[0] |= {name: group for name, group in succession.listeners.items() if name != "listen"}
    return list(shares)


def _is_at(sockets: Sequence[socket.socket], hosts: Sequence[str], port: int) -> bool:
    """Whether the sockets listen on exactly these addresses. `port`: 0: any."""
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
            pid, listeners = receive_listeners(connected)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except (OSError, msgspec.MsgspecError) as failure:
            raise HandoverError(f"the proxy that runs with {data_dir} does not hand over: {failure}") from failure
        opened.pop_all()
        return Predecessor(connected, pid, listeners)


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


def kept_from_programs(succession: Succession) -> Succession:
    """Make the sockets from the parent process private: programs that this process starts do not inherit them."""
    for group in succession.listeners.values():
        for one in group:
            one.set_inheritable(False)
    return succession


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
    send_listeners(asking, listeners)
    return await asyncio.get_running_loop().sock_recv(asking, len(_SERVES)) == _SERVES


class ParentOffer:
    """Offers the listening sockets, like `offer`, in a parent process that must not block: call `look` repeatedly."""

    def __init__(self, data_dir: Path) -> None:
        self._asked = open_offer(data_dir)
        self._asking: socket.socket | None = None
        self._has_answered = False

    @property
    def is_taken(self) -> bool:
        """A new proxy has the sockets, and does not serve yet."""
        return self._has_answered

    @property
    def waits_for(self) -> list[socket.socket]:
        """The sockets that are readable when `look` should be called."""
        if self._asking is not None:
            return [self._asking] if self._has_answered else []
        return [] if self._asked is None else [self._asked]

    def look(self, listeners: Callable[[], Listeners | None]) -> bool:
        """Hand over to a process that asks. `listeners`: None: not now. Returns True once that process serves: then
        call `leave`."""
        if self._asked is None:
            return False
        try:
            if self._asking is None:
                self._asking = self._asked.accept()[0]
                _check_user(self._asking)
            if not self._has_answered:
                found = listeners()
                if found is None:
                    return False
                send_listeners(self._asking, found)
                self._asking.setblocking(False)
                self._has_answered = True
            answer = self._asking.recv(len(_SERVES))
        except BlockingIOError:
            return False
        except OSError as failure:
            _log.warning("a process that asked for the listeners did not get them: %s", failure)
            answer = b""
        if answer != _SERVES:
            self._forget()
        return answer == _SERVES

    def leave(self) -> None:
        """Another process serves: release the name of the socket, and tell that process."""
        assert self._asked is not None
        assert self._asking is not None
        self._asked.close()
        with suppress(OSError):  # it may have died since
            self._asking.sendall(_LEAVES)
        self.close()

    def close(self) -> None:
        """End the offer."""
        self._forget()
        if self._asked is not None:
            self._asked.close()
            self._asked = None

    def _forget(self) -> None:
        if self._asking is not None:
            self._asking.close()
        self._asking, self._has_answered = None, False


def send_listeners(connected: socket.socket, listeners: Listeners) -> None:
    """Send the listening sockets of this process. Raises OSError."""
    named = [(section, one) for section, group in listeners.items() for one in group]
    if len(named) > _SOCKETS_MAX:
        raise HandoverError(f"there are more than {_SOCKETS_MAX} listening sockets")
    message = msgspec.json.encode(_Offer(os.getpid(), [section for section, _ in named]))
    socket.send_fds(connected, [message], [one.fileno() for _, one in named])


def receive_listeners(connected: socket.socket) -> tuple[int, Listeners]:
    """What `send_listeners` has sent: the pid of the sender, and the sockets. Raises OSError, MsgspecError."""
    message, descriptors, _flags, _sender = socket.recv_fds(connected, _MESSAGE_BYTES_MAX, _SOCKETS_MAX)
    with ExitStack() as opened:
        sockets = [opened.enter_context(_own(one)) for one in descriptors]
        offer = msgspec.json.decode(message, type=_Offer)
        named = list(zip(offer.sections, sockets, strict=True))
        opened.pop_all()
    return offer.pid, _by_section(named)


def _by_section(sockets: Iterable[tuple[str, socket.socket]]) -> Listeners:
    """The sockets without duplicates, which are closed."""
    found: dict[str, dict[int, socket.socket]] = {}
    for section, one in sockets:
        if found.setdefault(section, {}).setdefault(os.fstat(one.fileno()).st_ino, one) is not one:
            one.close()
    return {section: list(group.values()) for section, group in found.items()}


def _address(data_dir: Path) -> bytes:
    """The name of the socket: the same by whatever path the folder is reached. Raises FileNotFoundError."""
    folder = os.stat(data_dir)
    return b"\0tokenweir-%x-%x" % (folder.st_dev, folder.st_ino)


def _check_user(connected: socket.socket) -> None:
    """Raises HandoverError if the other process is another user's."""
    _pid, user, _group = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise HandoverError(f"the proxy that runs with this data folder belongs to another user ({user})")
