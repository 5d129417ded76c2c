"""Several proxies on one port: `serve --workers N`. Law: each is a process with a journal of its own; one that dies is
started again on the same journal; none outlives the parent by more than its grace time.

The parent relays nothing. It holds the port (SO_REUSEPORT: the kernel spreads new connections), starts, watches, stops.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from proxy.runtime.proxy.peer_processes import PeerProcesses
from proxy.settings import Settings

# A process that dies at once is not started more often than this.
RESTART_S_MIN, RESTART_S_MAX = 0.1, 5.0
# One that has run for this long is well.
WELL_S = 30.0
# Beyond the grace time of the streams: for the last settling.
STOP_S_MORE = 30.0

_log = logging.getLogger(__name__)

Child = Callable[[Settings, PeerProcesses, connection.Connection], None]
"""What a process does: relay until SIGTERM, or until the other end of the connection closes. It sends its port when it
listens. Importable by its name."""


class Supervisor:
    """N processes. `run` returns when all have ended: 0, or 1 if the first start failed."""

    def __init__(self, settings: Settings, workers: int, child: Child, *, started: Callable[[int], None]) -> None:
        """`started` is told the port once every process listens."""
        self._settings = settings
        self._child = child
        self._started = started
        self._members = [_ProxyProcess(number) for number in range(workers)]
        self._stopping = False

    def run(self) -> int:
        """Raises OSError if the port cannot be had."""
        listen = self._settings.listen
        with closing(_held(listen.host, listen.port)) as held, tempfile.TemporaryDirectory(prefix="tw-") as folder:
            self._settings = replace(self._settings, listen=replace(listen, port=held.getsockname()[1]))
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._told)
            for member in self._members:
                self._start(member, Path(folder))
            try:
                return self._watch(Path(folder))
            finally:
                self._end()

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        for member in self._members:
            member.terminate()

    def _start(self, member: _ProxyProcess, folder: Path) -> None:
        siblings = PeerProcesses(folder, member.number, len(self._members))
        ours, theirs = get_context("spawn").Pipe()
        running = get_context("spawn").Process(target=self._child, args=(self._settings, siblings, theirs))
        running.start()
        theirs.close()
        member.began(running, ours)

    def _watch(self, folder: Path) -> int:
        """Until all have ended."""
        waiting = len(self._members)  # for the first word of each
        while not self._stopping or any(member.running for member in self._members):
            for member in self._members:
                if member.listens():
                    waiting -= 1
                    if waiting == 0:
                        self._started(self._settings.listen.port)
                if member.running is not None and member.running.exitcode is not None:
                    code = member.ended()
                    if waiting > 0 and not self._stopping:
                        return 1  # its own words say why
                    if not self._stopping:
                        _log.error("process %d ended with %s and is started again", member.number, code)
                if member.running is None and not self._stopping and time.monotonic() >= member.start_at:
                    self._start(member, folder)
            connection.wait([m.running.sentinel for m in self._members if m.running is not None], timeout=0.05)
        return 0

    def _end(self) -> None:
        """Nobody is left behind."""
        until = time.monotonic() + self._settings.shutdown_grace_s + STOP_S_MORE
        for member in self._members:
            member.terminate()
        for member in self._members:
            if member.running is not None:
                member.running.join(max(0.0, until - time.monotonic()))
                member.running.kill()
                member.running.join()


class _ProxyProcess:
    """One process, and when it may be started again."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.running: SpawnProcess | None = None
        self.start_at = 0.0
        self._line: connection.Connection | None = None
        self._began_at = 0.0
        self._delay_s = RESTART_S_MIN
        self._heard = False

    def began(self, running: SpawnProcess, line: connection.Connection) -> None:
        """It was started."""
        self.running, self._line, self._began_at = running, line, time.monotonic()

    def listens(self) -> bool:
        """True once: when its first start is over."""
        if self._heard or self._line is None:
            return False
        with suppress(EOFError, OSError):
            self._heard = self._line.poll() and bool(self._line.recv())
        return self._heard

    def ended(self) -> int | None:
        """It has ended: its exit code."""
        assert self.running is not None
        assert self._line is not None
        now = time.monotonic()
        self._delay_s = RESTART_S_MIN if now - self._began_at > WELL_S else min(2 * self._delay_s, RESTART_S_MAX)
        self.start_at = now + self._delay_s
        code = self.running.exitcode
        self.running.close()
        self._line.close()
        self.running = self._line = None
        return code

    def terminate(self) -> None:
        """Let it end gracefully."""
        if self.running is not None and self.running.pid is not None and self.running.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.running.pid, signal.SIGTERM)


def _held(host: str, port: int) -> socket.socket:
    """A socket that keeps the port for us, and takes no connection."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held
