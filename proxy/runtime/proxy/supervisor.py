"""Several proxies on one port: `serve --workers N`.

Invariants: each proxy is a process with its own journal. A process that dies is started again on its journal. No
process outlives the parent by more than its grace time. The parent relays nothing: it reserves the port (SO_REUSEPORT:
the kernel spreads new connections), and starts, watches and stops the processes.
"""

from __future__ import annotations

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

from proxy.foundation.addresses import hosts_of
from proxy.runtime.machine.configuration_file import ConfigurationFile, reloaded, running_status
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

Child = Callable[[Settings, ConfigurationFile | None, PeerProcesses, connection.Connection], None]
"""the function of a process: it relays until SIGTERM, or until the other end of the connection closes, and sends its
port when it listens; it can be imported by its name"""


class Supervisor:
    """`run` returns when all processes have ended: 0, or 1 if the first start of one failed."""

    def __init__(
        self,
        settings: Settings,
        file: ConfigurationFile | None,
        workers: int,
        child: Child,
        *,
        started: Callable[[int], None],
    ) -> None:
        """`file`: where the settings come from; None: from the environment. `started` is called with the port once
        every process listens."""
        self._settings = settings
        self._file = file
        self._child = child
        self._started = started
        self._members = [_ProxyProcess(number) for number in range(workers)]
        self._stopping = False
        self._adopt_until = 0.0  # by `time.monotonic`: the processes reload until then

    def run(self) -> int:
        """Run the processes until all have ended. Raises OSError if the port is taken."""
        listen = self._settings.listen
        with _reserved(listen.host, listen.port) as port, _socket_folder() as folder:
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
        self._stopping = True
        for member in self._members:
            member.terminate()

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._adopt_until = time.monotonic() + ADOPT_S
        for member in self._members:
            member.send(signal.SIGHUP)

    def _adopt(self) -> None:
        """Start later processes with what the running ones have reloaded: not with what they have refused."""
        status = running_status(self._settings.data_dir)
        if self._file is None or status is None or status.digest == self._file.digest:
            return
        with suppress(SettingsError):
            settings, digest = self._file.read_again()
            if digest == status.digest:
                self._settings = reloaded(self._settings, settings)
                self._file = self._file._replace(digest=digest)

    def _start(self, member: _ProxyProcess, folder: Path) -> None:
        peers = PeerProcesses(folder, member.number, len(self._members))
        parent_end, child_end = get_context("spawn").Pipe()
        running = get_context("spawn").Process(target=self._child, args=(self._settings, self._file, peers, child_end))
        # It inherits this: a SIGHUP waits until it can handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
        running.start()
        member.began(running, parent_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
        child_end.close()

    def _watch(self, folder: Path) -> int:
        """Watch the processes, and return when all have ended."""
        waiting = len(self._members)  # those that have not listened yet
        while not self._stopping or any(member.running for member in self._members):
            for member in self._members:
                if member.listens():
                    waiting -= 1
                    if waiting == 0:
                        self._started(self._settings.listen.port)
                if member.running is not None and member.running.exitcode is not None:
                    code = member.ended()
                    if waiting > 0 and not self._stopping:
                        return 1  # it has printed the reason
                    if not self._stopping:
                        _log.error("process %d ended with %s and is started again", member.number, code)
                if member.running is None and not self._stopping and time.monotonic() >= member.start_at:
                    self._start(member, folder)
            if time.monotonic() < self._adopt_until:
                self._adopt()
            connection.wait([m.running.sentinel for m in self._members if m.running is not None], timeout=0.05)
        return 0

    def _end(self) -> None:
        """Stop the running processes, and kill those that take too long."""
        settings = self._settings
        until = time.monotonic() + settings.drain_delay_s + settings.shutdown_grace_s + STOP_S_MORE
        for member in self._members:
            member.terminate()
        for member in self._members:
            if member.running is not None:
                member.running.join(max(0.0, until - time.monotonic()))
                member.running.kill()
                member.running.join()


class _ProxyProcess:
    """One process with its restarts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.running: SpawnProcess | None = None
        self.start_at = 0.0
        self._connection: connection.Connection | None = None
        self._began_at = 0.0
        self._delay_s = RESTART_S_MIN
        self._listened = False

    def began(self, running: SpawnProcess, parent_end: connection.Connection) -> None:
        """Record a start; the process sends its port over the connection."""
        self.running, self._connection, self._began_at = running, parent_end, time.monotonic()

    def listens(self) -> bool:
        """True once: when the process listens for the first time."""
        if self._listened or self._connection is None:
            return False
        with suppress(EOFError, OSError):
            self._listened = self._connection.poll() and bool(self._connection.recv())
        return self._listened

    def ended(self) -> int | None:
        """Record the end of the process, and return its exit code."""
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

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.running is not None and self.running.pid is not None and self.running.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.running.pid, number)


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
def _reserved(host: str, port: int) -> Iterator[int]:
    """The port, with a socket on each address that is bound to it and accepts no connection. Raises OSError."""
    with ExitStack() as bound:
        for one in hosts_of(host):
            family = socket.AF_INET6 if ":" in one else socket.AF_INET
            made = bound.enter_context(socket.socket(family, socket.SOCK_STREAM))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind((one, port))
            port = made.getsockname()[1]
        yield port
