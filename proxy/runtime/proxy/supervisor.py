"""Several proxies on one port: `serve --workers N`.

Invariants: each proxy is a process with its own journal. A process that dies is started again on its journal. No
process outlives the parent by more than its grace time. The parent relays nothing: it reserves the port (SO_REUSEPORT:
the kernel spreads new connections), and starts, watches and stops the processes. It also takes over from the proxy
before, and hands over to the next one: `handover.py` has the invariants.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

import msgspec

from proxy.foundation.addresses import hosts_of
from proxy.http.server import CannotListenError, why_not
from proxy.runtime.machine.configuration_file import ConfigurationFile, reloaded, running_status
from proxy.runtime.machine.data_folder import unlocked_folders
from proxy.runtime.proxy.handover import (
    FIRST,
    LEADS,
    REPLACED,
    Listeners,
    ParentOffer,
    Succession,
    receive_listeners,
    shared_out,
)
from proxy.runtime.proxy.peer_processes import PeerProcesses
from proxy.settings import Settings, SettingsError

# The pause before a restart; it doubles with each one, up to the second.
RESTART_S_MIN, RESTART_S_MAX = 0.1, 5.0
# How long after a SIGHUP the processes may reload.
ADOPT_S = 30.0
# After a run of this length the pause is the shortest again.
WELL_S = 30.0
# On top of the grace time of the streams, for the last settling.
STOP_S_MORE = 30.0
# Of the folders for sockets. They are in the system's folder for temporary files, because the path of a socket has at
# most 107 bytes, and that of a data directory can be longer.
FOLDER_PREFIX = "tokenweir-peers-"

_log = logging.getLogger(__name__)

Child = Callable[[Settings, ConfigurationFile | None, PeerProcesses, Succession, connection.Connection], None]
"""the function of a process: it relays until SIGTERM, or until the other end of the connection closes, and sends its
listening sockets when it listens; it can be imported by its name"""


class Supervisor:
    """`run` returns when all processes have ended: 0, or 1 if the first start of one failed."""

    def __init__(
        self,
        settings: Settings,
        file: ConfigurationFile | None,
        workers: int,
        child: Child,
        succession: Succession = FIRST,
        *,
        started: Callable[[int], None],
    ) -> None:
        """`file`: where the settings come from; None: from the environment. `succession`: what the processes take over.
        `started` is called with the port once every process listens."""
        self._settings = settings
        self._file = file
        self._child = child
        self._started = started
        self._succession = succession
        self._members = [
            _ProxyProcess(number, share, is_lasting=succession.is_activated)
            for number, share in enumerate(shared_out(succession, workers))
        ]
        is_beside, data_dir = succession.is_beside, settings.data_dir
        self._folders = unlocked_folders(data_dir, workers) if is_beside else range(workers)
        self._offer: ParentOffer | None = None
        self._reserved = ExitStack()
        self._stopping = False
        self._is_replaced = False
        self._adopt_until = 0.0  # by `time.monotonic`: the processes reload until then

    def run(self) -> int:
        """Run the processes until all have ended. Raises OSError if the port is taken."""
        listen = self._settings.listen
        with self._reserved as reserved, _socket_folder() as folder:
            port = reserved.enter_context(_reserved(listen.host, listen.port, self._succession))
            self._settings = replace(self._settings, listen=replace(listen, port=port))
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)
            signal.signal(signal.SIGHUP, self._on_hangup)
            for member in self._members:
                self._start(member, folder)
            try:
                return self._watch(folder)
            finally:
                self._end()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_served_by_another and not self._stopping:
            self._leave()  # what they have accepted by now is answered
            return
        self._stopping = True
        self._hand_over_no_more()
        for member in self._members:
            member.terminate()

    @property
    def _is_served_by_another(self) -> bool:
        """The previous proxy serves until the processes of this one do."""
        return self._succession.is_served

    def _leave(self) -> None:
        """Another proxy serves: the processes finish the requests that they have accepted, then stop."""
        self._stopping = self._is_replaced = True
        self._hand_over_no_more()
        self._reserved.close()
        for member in self._members:
            member.tell(REPLACED)

    def _hand_over_no_more(self) -> None:
        if self._offer is not None:
            self._offer.close()
        for member in self._members:
            member.drop_sockets()

    def _listeners(self) -> Listeners | None:
        """The listening sockets of all processes; None while a process starts, which will have other sockets."""
        if any(member.running is not None and not member.is_up for member in self._members):
            return None
        kept = [member.listeners or member.given for member in self._members]
        sections = {name for listeners in kept for name in listeners}
        return {name: [one for listeners in kept for one in listeners.get(name, ())] for name in sections}

    def _take_over(self) -> None:
        """All processes listen for the first time: make the previous proxy stop, and offer the sockets to the next
        one."""
        before = self._succession
        # A restarted process may run at the same time as those of the proxy that takes over.
        self._succession = before._replace(predecessor=None, is_served=False, is_beside=True)
        if before.predecessor is not None:
            _close(before.listeners)
            asyncio.run(before.predecessor.leave())
            for member in self._members:
                member.tell(LEADS)
        if not self._stopping:
            self._offer = ParentOffer(self._settings.data_dir)
        self._started(self._settings.listen.port)

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._adopt_until = time.monotonic() + ADOPT_S
        for member in self._members:
            member.send(signal.SIGHUP)

    def _adopt(self) -> None:
        """Use the configuration that the running processes have loaded for processes started from now on. A
        configuration that they refused is not used."""
        status = running_status(self._settings.data_dir)
        if self._file is None or status is None or status.digest == self._file.digest:
            return
        with suppress(SettingsError):
            settings, digest = self._file.read_again()
            if digest == status.digest:
                self._settings = reloaded(self._settings, settings)
                self._file = self._file._replace(digest=digest)

    def _start(self, member: _ProxyProcess, folder: Path) -> None:
        peers = PeerProcesses(folder, member.number, len(self._members), self._folders)
        succession = self._succession._replace(listeners=member.given, predecessor=None)
        parent_end, child_end = get_context("spawn").Pipe()
        arguments = (self._settings, self._file, peers, succession, child_end)
        running = get_context("spawn").Process(target=self._child, args=arguments)
        # It inherits this: a SIGHUP waits until it can handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
        running.start()
        member.began(running, parent_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
        child_end.close()

    def _watch(self, folder: Path) -> int:
        """Watch the processes, and return when all have ended."""
        waiting, failed = len(self._members), False  # those that have not listened yet
        while not self._stopping or any(member.running for member in self._members):
            for member in self._members:
                if member.listens_first():
                    waiting -= 1
                    if waiting == 0:
                        self._take_over()
                if member.running is not None and member.running.exitcode is not None:
                    code = member.ended(keeps_sockets=self._is_handed_over)
                    if waiting > 0 and not self._stopping:  # it has printed the reason
                        if not self._is_served_by_another:
                            return 1
                        failed = True
                        self._leave()
                    if not self._stopping:
                        _log.error("process %d ended with %s and is started again", member.number, code)
                if member.running is None and self._may_start(member):
                    self._start(member, folder)
            if time.monotonic() < self._adopt_until:
                self._adopt()
            if self._offer is not None and not self._stopping and self._offer.look(self._listeners):
                self._offer.leave()
                self._leave()
            asking = [] if self._offer is None else self._offer.waits_for
            running = [member.running.sentinel for member in self._members if member.running is not None]
            connection.wait([*running, *asking], timeout=0.05)
        return 1 if failed else 0

    @property
    def _is_handed_over(self) -> bool:
        """A new proxy has the sockets, and does not serve yet."""
        return self._offer is not None and self._offer.is_taken

    def _may_start(self, member: _ProxyProcess) -> bool:
        """Whether the process may start now. While the proxy is replaced, it must have a socket already: the new proxy
        would not have a later one."""
        has_socket = bool(member.given.get("listen")) or not self._is_handed_over
        return not self._stopping and has_socket and time.monotonic() >= member.start_at

    def _end(self) -> None:
        """Stop the running processes, and kill those that take too long."""
        settings = self._settings
        until = time.monotonic() + settings.drain_delay_s + settings.shutdown_grace_s + STOP_S_MORE
        for member in self._members:
            if not self._is_replaced:
                member.terminate()
        for member in self._members:
            if member.running is not None:
                member.running.join(max(0.0, until - time.monotonic()))
                member.running.kill()
                member.running.join()


class _ProxyProcess:
    """One process with its restarts."""

    def __init__(self, number: int, given: Listeners, *, is_lasting: bool) -> None:
        """`given`: the sockets that its first start listens on; `is_lasting`: and every later one."""
        self.number = number
        self.given = given
        """the sockets for its next start; empty: it makes its own"""
        self._lasting: Listeners = given if is_lasting else {}
        self.listeners: Listeners = {}
        """copies of the sockets that the process listens on"""
        self.is_up = False
        """the process listens"""
        self.running: SpawnProcess | None = None
        self.start_at = 0.0
        self._connection: connection.Connection | None = None
        self._began_at = 0.0
        self._delay_s = RESTART_S_MIN
        self._listened = False

    def began(self, running: SpawnProcess, parent_end: connection.Connection) -> None:
        """Record a start; the process sends its listening sockets over the connection."""
        self.running, self._connection, self._began_at = running, parent_end, time.monotonic()

    def listens_first(self) -> bool:
        """True once: when the process listens for the first time."""
        if self.is_up or self._connection is None:
            return False
        with suppress(OSError, msgspec.MsgspecError):  # it has ended
            if self._connection.poll():
                with socket.socket(fileno=os.dup(self._connection.fileno())) as line:
                    self.listeners = receive_listeners(line)[1]
                self.is_up = True
                self._drop_given()
        is_first, self._listened = self.is_up and not self._listened, self._listened or self.is_up
        return is_first

    def drop_sockets(self) -> None:
        """Close the copies of the process's sockets."""
        _close(self.listeners)
        self.listeners = {}
        self._drop_given()

    def _drop_given(self) -> None:
        if self.given is not self._lasting:
            _close(self.given)
        self.given = self._lasting

    def ended(self, *, keeps_sockets: bool) -> int | None:
        """Record the end of the process, and return its exit code. `keeps_sockets`: the next one listens on them."""
        self.is_up = False
        if not keeps_sockets:
            self.drop_sockets()
        elif self.listeners:  # else it has not listened yet
            self.given, self.listeners = self.listeners, {}
        assert self.running is not None
        assert self._connection is not None
        now = time.monotonic()
        self._delay_s = RESTART_S_MIN if now - self._began_at > WELL_S else min(2 * self._delay_s, RESTART_S_MAX)
        self.start_at = now + self._delay_s
        code = self.running.exitcode
        self.running.close()
        self._connection.close()
        self.running = self._connection = None
        return code

    def terminate(self) -> None:
        """Stop the process gracefully."""
        self.send(signal.SIGTERM)

    def tell(self, word: bytes) -> None:
        """Send a message to the process if it listens; else stop it."""
        if not self.is_up:
            self.terminate()
        elif self._connection is not None:
            with suppress(OSError):  # it has ended
                self._connection.send_bytes(word)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.running is not None and self.running.pid is not None and self.running.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.running.pid, number)


def _close(listeners: Listeners) -> None:
    for group in listeners.values():
        for one in group:
            one.close()


@contextmanager
def _socket_folder() -> Iterator[Path]:
    """A folder for the sockets of the processes. It is locked as long as this process lives; folders of killed parents
    are removed."""
    _remove_left_behind()
    folder, lock = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        with suppress(FileNotFoundError):  # another start took it for one left behind, before it was locked
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove_left_behind() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # another user's, or locked: its process lives
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(lock)


@contextmanager
def _reserved(host: str, port: int, succession: Succession) -> Iterator[int]:
    """The port, with a socket on each address that is bound to it and accepts no connection. Raises OSError."""
    sockets = succession.of("listen")
    if sockets:
        port = sockets[0].getsockname()[1]
    if succession.is_activated:
        yield port
        return
    for taken in sockets:  # of a proxy that was alone
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    with ExitStack() as bound:
        for one in hosts_of(host):
            try:
                if port and not sockets:  # SO_REUSEPORT would share it with another proxy of this user
                    _bound(one, port, reuse_port=False).close()
                made = bound.enter_context(_bound(one, port, reuse_port=True))
            except OSError as failure:
                raise CannotListenError(why_not(failure, "listen", one, port)) from failure
            port = made.getsockname()[1]
        yield port


def _bound(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made
