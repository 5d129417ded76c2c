"""A start that fails leaves nothing behind: no thread, no task, no open file, no lock; the next start succeeds."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Awaitable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from proxy.gateway.upstream.client import UpstreamClient
from proxy.http.server import CannotListenError
from proxy.journal.journal import Journal
from proxy.journal.log import JournalInUse
from proxy.journal.progress import ProgressBroken
from proxy.keys.idempotency import ClaimsUnavailable
from proxy.runtime.proxy.handover import Succession
from proxy.runtime.proxy.peer_processes import PeerProcesses
from proxy.runtime.proxy.process import Proxy
from proxy.runtime.proxy.tokenizers import Tokenizers
from proxy.runtime.worker import Worker
from proxy.settings import Settings, parse
from proxy.storage.database import LedgerUnavailable
from tests.support.sqlite import empty_ledger, with_empty_ledger

pytestmark = pytest.mark.io

NO_SERVER = "redis://127.0.0.1:1"


class Service(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


def settings_in(folder: Path, **more: Any) -> Settings:
    """One proxy with its console, each on a free port."""
    document = {
        "listen": {"port": 0},
        "admin": {"port": 0, "secret": "${ADMIN}"},
        "providers": {"tera": {"base_url": "http://127.0.0.1:1/v1"}},
        "models": {"*": {"provider": "tera", "price": {"input": 1, "output": 1}}},
        "shutdown_grace_s": 0,
        **more,
    }
    env = {"ADMIN": "a-secret-of-0123456789-abcdefghij", "PEPPER": "5e" * 32}
    return parse(yaml.safe_dump(document), env=env, folder=folder)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Threads and open files are as before; a thread that is ending may take a moment."""
    gc.freeze()  # what other tests left is not looked at
    threads, files = set(threading.enumerate()), open_files()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(5.0)
    assert set(threading.enumerate()) - threads == set()
    assert open_files() - files == set()
    gc.collect()  # what is closed only by the collector is a ResourceWarning, and so an error


def open_files() -> set[tuple[str, str]]:
    """Descriptor, and what it leads to; a socket by its inode."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:  # the one that lists the folder
            continue
    return found


async def without_tasks(work: Awaitable[None]) -> None:
    """What it starts has ended with it."""
    try:
        await work
    finally:
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def served(service: Service) -> None:
    await service.start()
    await service.stop()


def fails(service: Service, error: type[Exception], words: str | None = None) -> None:
    """It does not start, and leaves nothing."""
    with nothing_left(), pytest.raises(error, match=words):
        asyncio.run(without_tasks(service.start()))


def starts(service: Service) -> None:
    """It starts and stops, and leaves nothing."""
    with nothing_left():
        asyncio.run(without_tasks(served(service)))


def waits(service: Service) -> None:
    """It has not started after two tries; cancelled, it leaves nothing."""

    async def cancelled() -> None:
        starting = asyncio.get_running_loop().create_task(service.start())
        await asyncio.sleep(1.5)
        assert not starting.done()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    with nothing_left():
        asyncio.run(without_tasks(cancelled()))


@pytest.fixture(autouse=True, scope="module")
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is opened once in a process is open from here on."""
    asyncio.run(served(Proxy(settings_in(tmp_path_factory.mktemp("first")))))


@pytest.mark.parametrize("section", ["listen", "admin"])
def test_a_port_that_is_taken(tmp_path: Path, section: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        admin = {"secret": "${ADMIN}"} if section == "admin" else {}
        traces = {"endpoint": "http://127.0.0.1:1/v1/traces"}
        with_empty_ledger(tmp_path / "data")
        settings = settings_in(tmp_path, traces=traces, **{section: {"port": taken.getsockname()[1], **admin}})
        taken_by = f"{section}.port: another program listens on 127.0.0.1:{taken.getsockname()[1]}: stop it, or "
        fails(Proxy(settings), CannotListenError, taken_by)
    starts(Proxy(settings_in(tmp_path)))


def test_a_journal_that_another_process_has(tmp_path: Path) -> None:
    with_empty_ledger(tmp_path / "data")
    with closing(Journal.open(tmp_path / "data" / "journal", bytes_max=1 << 20)):
        fails(Proxy(settings_in(tmp_path)), JournalInUse)
    starts(Proxy(settings_in(tmp_path)))


@pytest.mark.parametrize(
    ("file", "error"),
    [("progress.table", ProgressBroken), ("ledger.db", LedgerUnavailable), ("pepper", OSError), ("claims.db", OSError)],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, file: str, error: type[Exception]) -> None:
    """There is a folder in its place."""
    place = tmp_path / "data" / file
    place.mkdir(parents=True)
    if file != "ledger.db":
        empty_ledger(tmp_path / "data" / "ledger.db")
    fails(Proxy(settings_in(tmp_path)), error)
    place.rmdir()
    starts(Proxy(settings_in(tmp_path)))


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [("claims.db", "no database" * 100, ClaimsUnavailable), ("pepper", "short", ValueError)],
    ids=["claims.db", "pepper"],
)
def test_a_file_that_is_damaged(tmp_path: Path, file: str, content: str, error: type[Exception]) -> None:
    with_empty_ledger(tmp_path / "data")
    (tmp_path / "data" / file).write_text(content)
    fails(Proxy(settings_in(tmp_path)), error)


SHARED = {"ledger": "postgresql://nobody@127.0.0.1:1/none", "key_pepper": "${PEPPER}", "queue": NO_SERVER}


def test_a_queue_that_is_away(tmp_path: Path) -> None:
    with_empty_ledger(tmp_path / "data")
    waits(Proxy(settings_in(tmp_path, **SHARED)))
    starts(Proxy(settings_in(tmp_path)))


def test_the_folder_of_the_processes_of_one_port_is_gone(tmp_path: Path) -> None:
    with_empty_ledger(tmp_path / "data")
    fails(Proxy(settings_in(tmp_path), PeerProcesses(tmp_path / "gone", 0, 1)), FileNotFoundError)


def test_the_connections_to_providers_are_closed_however_late_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchanges of the last run that continue have asked for their answers by then."""
    closed: list[UpstreamClient] = []
    close = UpstreamClient.close

    async def recorded(client: UpstreamClient) -> None:
        closed.append(client)
        await close(client)

    def failing(_tokenizers: Tokenizers) -> None:
        raise OSError("no vocabulary")

    monkeypatch.setattr(UpstreamClient, "close", recorded)
    monkeypatch.setattr(Tokenizers, "start", failing)
    with_empty_ledger(tmp_path / "data")
    fails(Proxy(settings_in(tmp_path)), OSError, "no vocabulary")
    assert len(closed) == 1


async def _cancelled_after(steps: int, service: Service) -> bool:
    """Cancel its start after so many iterations of the event loop, each of which waits for threads that run. False: it
    had started before, and is stopped."""
    loop = asyncio.get_running_loop()
    starting = loop.create_task(service.start())
    for _ in range(steps):
        await asyncio.sleep(0.002)
    if not starting.cancel():
        await starting
        await service.stop()
        return False
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return True


def test_a_start_that_is_cancelled(tmp_path: Path) -> None:
    with_empty_ledger(tmp_path / "data")
    steps = 0
    cancelled = True
    while cancelled:
        with nothing_left():
            cancelled = asyncio.run(_cancelled_after(steps, Proxy(settings_in(tmp_path))))
        steps = 2 * steps + 1
    assert steps > 3, "it starts at once"


async def _answered_while_it_stops(proxy: Proxy) -> list[int]:
    """The status of two requests without a key on one connection: one before it stops, one during its stop."""
    await proxy.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)

    async def status() -> int:
        writer.write(b"GET /v1/key HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        return int(head.split(b" ")[1])

    before = await status()
    stopping = asyncio.get_running_loop().create_task(proxy.stop())
    await asyncio.sleep(0)
    during = await status()
    writer.close()
    await stopping
    return [before, during]


def test_one_that_stops_before_it_takes_over_answers_whom_it_has_accepted(tmp_path: Path) -> None:
    """The process that it would have replaced serves: the client has no reason to see a proxy that shuts down."""
    with_empty_ledger(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        succession = Succession({"listen": [listener]}, is_beside=True, is_served=True)
        proxy = Proxy(settings_in(tmp_path, shutdown_grace_s=5), succession=succession)
        assert asyncio.run(_answered_while_it_stops(proxy)) == [401, 401]


def test_a_worker_whose_queue_is_away(tmp_path: Path) -> None:
    waits(Worker(settings_in(tmp_path, **SHARED)))
