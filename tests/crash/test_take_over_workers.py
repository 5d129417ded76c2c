"""`serve --take-over` where the running proxy, the new one, or both are several processes."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from proxy.runtime.machine.configuration_file import running_status
from proxy.runtime.proxy import handover
from proxy.runtime.proxy.handover import Succession, shared_out
from tests.crash.generations import SHORT, SLOW, UNREACHABLE, Generation, Start, Traffic, ended, taken_over
from tests.crash.stage import Stage, members, quick_key, until
from tests.support import sse
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

ASKED = 20
"""requests that are answered between two steps"""


class Deployment:
    """A fleet under steady traffic, which is replaced again and again."""

    def __init__(self, first: Tokenweir, provider: ScriptedProvider, key: str, stage: Stage) -> None:
        self.generations = [first]
        self.streams: list[tuple[Any, Any]] = []
        self._slow = provider.script("slow", SLOW)
        self.traffic = Traffic(first, key, provider.script("short", SHORT))
        self._stage = stage

    @property
    def last(self) -> Tokenweir:
        return self.generations[-1]

    async def begin(self, count: int = 6) -> None:
        """Begin streams, and let some requests be answered."""
        self.streams += [await self._stage.begin(self._slow) for _ in range(count)]
        await self.answered()

    async def answered(self) -> None:
        seen = self.traffic.answered
        await until(lambda: self.traffic.answered > seen + ASKED)

    async def replace(self, workers: int) -> None:
        self.generations.append(await taken_over(self.last, workers))

    async def finish(self) -> None:
        """Every stream is whole, and everything is in the ledger once."""
        await self.answered()
        self.traffic.stopping = True
        for client, response in self.streams:
            assert sse.done((await client.read_body(response, timeout_s=40)).body)

    def check(self, outcomes: frozenset[str] = frozenset({"served"})) -> None:
        total = self.traffic.answered + len(self.streams)
        entries = self.last.entries(total, timeout_s=40)
        assert len({one["exchange_id"] for one in entries}) == len(entries) == total
        assert {one["outcome"] for one in entries} == outcomes
        assert self.last.unreconciled() == []
        assert self.last.stop() == 0


@asynccontextmanager
async def under_traffic(first: Tokenweir, provider: ScriptedProvider) -> Any:
    key = quick_key(first)
    async with Stage(first, key) as stage, asyncio.TaskGroup() as clients:
        deployment = Deployment(first, provider, key, stage)
        for work in (deployment.traffic.on_new_connections, deployment.traffic.on_kept_connections):
            for _ in range(3):
                clients.create_task(work())
        try:
            yield deployment
        finally:
            deployment.traffic.stopping = True


def fleet_of(tokenweir: Start, workers: int, **settings: Any) -> Tokenweir:
    return tokenweir(options=("--workers", str(workers)) if workers > 1 else (), **settings)


@pytest.mark.thorough
@pytest.mark.parametrize("numbers", [(2, 2, 2), (2, 3, 1), (1, 2, 1), (3, 2, 2, 2)], ids=str)
async def test_no_request_is_refused_and_no_stream_is_cut(
    tokenweir: Start, provider: ScriptedProvider, numbers: tuple[int, ...]
) -> None:
    console = {"port": 0, "secret": secrets.token_hex(32)}
    first = fleet_of(tokenweir, numbers[0], admin=console, allow_literal_secrets=True)
    async with under_traffic(first, provider) as deployment:
        for workers in numbers[1:]:
            await deployment.begin()
            await deployment.replace(workers)
            if workers > 1:
                assert len(members(deployment.last)) == workers
        await deployment.finish()
    for one in deployment.generations[:-1]:
        await ended(one)
    status = running_status(deployment.last.folder / "data")
    assert status is not None
    assert (status.pid, status.processes) == (deployment.last.child.pid, numbers[-1])
    await asyncio.to_thread(deployment.check)


@pytest.mark.thorough
async def test_one_that_dies_while_it_is_replaced_is_started_again(
    tokenweir: Start, provider: ScriptedProvider
) -> None:
    """On the sockets that it had: the new proxy has these."""
    first = fleet_of(tokenweir, 2)
    right = first.config.read_text()
    async with under_traffic(first, provider) as deployment:
        deployment.traffic.stopping = True
        first.config.write_text(yaml.safe_dump({**yaml.safe_load(right), **UNREACHABLE}))
        waits = Generation(first, 3)
        waits.launch()  # it has the sockets, and waits for Postgres
        await until(lambda: first.log.read_text().count("waiting for the ledger") >= 3)
        first.config.write_text(right)
        [victim, other] = members(first)
        victim.kill()
        await until(lambda: victim.pid not in {one.pid for one in members(first)} and len(members(first)) == 2)
        assert other.is_running()
        key = quick_key(first, alias="later")
        async with Stage(first, key) as stage:
            for _ in range(20):
                assert (await stage.whole(provider.script("later", SHORT))).status == 200
        for child in members(waits):
            child.kill()
        waits.kill()
        async with Stage(first, key) as stage:
            for _ in range(20):
                assert (await stage.whole(provider.script("later", SHORT))).status == 200
        await deployment.replace(2)
        async with Stage(first, key) as stage:
            for _ in range(20):
                assert (await stage.whole(provider.script("later", SHORT))).status == 200
    await ended(first)
    assert deployment.last.stop() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("who", ["the old parent", "an old process", "a new process"])
async def test_a_kill_after_the_handover_leaves_a_server_that_answers(
    tokenweir: Start, provider: ScriptedProvider, who: str
) -> None:
    first = fleet_of(tokenweir, 2)
    key, slow, short = quick_key(first), provider.script("slow", SLOW), provider.script("short", SHORT)
    async with Stage(first, key) as stage:
        for _ in range(6):
            await stage.begin(slow)
        second = await taken_over(first, 2)
        if who == "the old parent":
            first.kill()
        else:
            victim = members(first if who == "an old process" else second)[0]
            victim.kill()
            if who == "a new process":
                await until(lambda: len(members(second)) == 2 and victim.pid not in {m.pid for m in members(second)})
        for _ in range(10):
            assert (await stage.whole(short)).status == 200
        entries = await asyncio.to_thread(second.entries, 16, timeout_s=40)
    assert len({one["exchange_id"] for one in entries}) == len(entries) == 16
    assert {one["outcome"] for one in entries} <= {"served", "crashed", "shut_down"}
    if who != "the old parent":
        await ended(first)
    assert second.unreconciled() == []
    assert second.stop() == 0


@pytest.mark.thorough
async def test_the_new_parent_dies_before_it_serves(tokenweir: Start, provider: ScriptedProvider) -> None:
    first = fleet_of(tokenweir, 2)
    right = first.config.read_text()
    async with under_traffic(first, provider) as deployment:
        await deployment.begin()
        first.config.write_text(yaml.safe_dump({**yaml.safe_load(right), **UNREACHABLE}))
        waits = Generation(first, 2)
        waits.launch()
        await until(lambda: first.log.read_text().count("waiting for the ledger") >= 2)
        waits.kill()
        await deployment.answered()
        waits = Generation(first, 2)
        waits.launch()
        await until(lambda: first.log.read_text().count("waiting for the ledger") >= 4)
        waits.signal(signal.SIGTERM)
        await ended(waits)
        first.config.write_text(right)
        await deployment.answered()
        status = running_status(first.folder / "data")
        assert status is not None
        assert status.pid == first.child.pid  # type: ignore[union-attr]
        await deployment.replace(2)
        await deployment.finish()
    await ended(first)
    await asyncio.to_thread(deployment.check)


@pytest.mark.thorough
async def test_one_that_cannot_start_changes_nothing(tokenweir: Start, provider: ScriptedProvider) -> None:
    """The second process of the new proxy fails, after the first one serves already."""
    first = fleet_of(tokenweir, 2)
    async with under_traffic(first, provider) as deployment:
        await deployment.begin()
        (first.folder / "data" / "worker-3").write_text("no folder")
        second = Generation(first, 2)
        with pytest.raises(AssertionError, match="it did not start"):
            await asyncio.to_thread(second.start)
        assert second._wait() == 1
        await deployment.answered()
        (first.folder / "data" / "worker-3").unlink()
        code, printed = await asyncio.to_thread(first.found, "reload")
        assert (code, printed.count("reloaded")) == (0, 2)
        await deployment.replace(2)
        await deployment.finish()
    await ended(first)
    await asyncio.to_thread(deployment.check)


@pytest.mark.thorough
async def test_without_the_option_a_second_fleet_is_refused(tokenweir: Start) -> None:
    first = fleet_of(tokenweir, 2)
    second = Generation(first, 2)
    document = yaml.safe_load(first.config.read_text())
    document["listen"]["port"] = first.port
    second._arguments = (*first._arguments[:3], "--workers", "2", "--port", str(first.port))
    with pytest.raises(AssertionError, match="another program listens on"):
        second.start()
    assert second._wait() == 1
    assert first.stop() == 0


@pytest.fixture
def pairs() -> Any:
    """Sockets on one port, each with a second one on another address."""
    made: list[socket.socket] = []

    def listening(count: int) -> list[socket.socket]:
        port = 0
        for _ in range(count):
            for host in ("127.0.0.1", "127.0.0.2"):
                one = socket.socket()
                made.append(one)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.bind((host, port))
                port = one.getsockname()[1]
                one.listen()
        return made

    yield listening
    for one in made:
        one.close()


@pytest.mark.io
@pytest.mark.parametrize(
    ("before", "now", "shares"),
    [
        (2, 2, [{0}, {1}]),
        (2, 3, [{0}, {1}, set()]),
        (3, 1, [{0, 1, 2}]),
        (3, 2, [{0, 2}, {1, 2}]),
        (0, 2, [set(), set()]),
    ],
)
def test_every_socket_has_a_process(
    pairs: Callable[[int], list[socket.socket]], before: int, now: int, shares: list[set[int]]
) -> None:
    sockets = pairs(before)
    number = {id(one): place // 2 for place, one in enumerate(sockets)}
    found = shared_out(Succession({"listen": sockets, "admin": ["console"]}, is_beside=True), now)
    for share, expected in zip(found, shares, strict=True):
        assert {number[id(one)] for one in share["listen"]} == expected
        assert len(share["listen"]) == 2 * len(expected), "at both addresses"
    assert [share.get("admin") for share in found] == [["console"], *[None] * (now - 1)]
    activated = shared_out(Succession({"listen": sockets}), now)
    assert [len(share["listen"]) for share in activated] == [len(sockets)] * now


@pytest.mark.io
def test_a_socket_that_is_received_twice_is_one(pairs: Callable[[int], list[socket.socket]]) -> None:
    sockets = pairs(1)
    here, there = socket.socketpair()
    with here, there, sockets[0].dup() as again:
        handover.send_listeners(here, {"listen": [*sockets, again]})
        _pid, found = handover.receive_listeners(there)
    assert [one.getsockname() for one in found["listen"]] == [one.getsockname() for one in sockets]
    for one in found["listen"]:
        one.close()
