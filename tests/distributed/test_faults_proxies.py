"""kill -9 of proxies under a hundred live streams each, apart from their workers: each exchange is billed once, for
what its provider and its client saw of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from proxy.storage.database import open_engine
from tests.crash.chaos import Chaos, Instant
from tests.distributed.apart import Apart
from tests.distributed.books import wrong_books
from tests.support.examples import SEED
from tests.support.postgres import Server
from tests.support.provider import ScriptedProvider
from tests.support.valkey import Valkey

pytestmark = pytest.mark.thorough

KILLS, STREAMS = 200, 100
# Of `make test`.
FEW_STREAMS = 25
WORKERS = 2
# Nobody who is started again at once is to be taken for dead.
LEASE_S = 30.0


class ProxyWithWorkers:
    """A proxy and two workers, with servers and a provider of their own, and the rounds on them."""

    def __init__(self, folder: Path, number: int, postgres: Server, migrated: str, streams: int) -> None:
        """`migrated`: the name of a migrated database."""
        self._postgres = postgres
        self._name = postgres.new_database(migrated)
        self._valkey = Valkey(folder / f"valkey-{number}").start()
        self._provider = ScriptedProvider()
        self._url = postgres.url(self._name)
        self._apart = Apart(folder / f"apart-{number}", self._provider, self._url, self._valkey.url, lease_s=LEASE_S)
        proxy = self._apart.proxies[0].start()
        for _ in range(WORKERS):
            self._apart.worker()
        rng = Random(f"{SEED} proxies {number}")
        self.chaos = Chaos(proxy, self._provider, self._apart.key, rng, streams=streams)
        self._rng = rng

    async def kill(self, times: int) -> list[str]:
        """So many rounds. What is wrong."""
        wrong: list[str] = []
        for number in range(times):
            instant = self._rng.choice(list(Instant))
            wrong += [f"round {number} ({instant}): {what}" for what in await self.chaos.round(instant)]
        engine = open_engine(self._url)
        wrong += wrong_books(engine)
        engine.dispose()
        return wrong

    def close(self) -> None:
        self.chaos.close()
        self._apart.close()
        self._provider.close()
        self._valkey.close()
        self._postgres.drop_database(self._name)


@pytest.fixture
def deployments(
    tmp_path: Path, postgres: Server, migrated: str, request: pytest.FixtureRequest
) -> Iterator[list[ProxyWithWorkers]]:
    """As many as the test asks for, each under so many streams."""
    count, streams = request.param
    made: list[ProxyWithWorkers] = []
    try:
        for number in range(count):
            made.append(ProxyWithWorkers(tmp_path, number, postgres, migrated, streams))  # noqa: PERF401  those that are made must be ended
        yield made
    finally:
        for one in made:
            one.close()


@pytest.mark.parametrize("deployments", [(1, FEW_STREAMS)], indirect=True)
async def test_a_kill_under_live_streams(deployments: list[ProxyWithWorkers]) -> None:
    [one] = deployments
    assert await one.kill(1) == []
    assert one.chaos.exchanges >= FEW_STREAMS


@pytest.mark.slow
@pytest.mark.parametrize("deployments", [(2, STREAMS)], indirect=True)
async def test_two_hundred_kills(deployments: list[ProxyWithWorkers], capsys: pytest.CaptureFixture[str]) -> None:
    """Two deployments at a time: while one starts again, the other has its streams."""
    began = time.monotonic()
    with capsys.disabled():
        print(f"\nseed {SEED}")
        found = await asyncio.gather(*(one.kill(KILLS // len(deployments)) for one in deployments))
        wrong = [what for part in found for what in part]
        more = sum(one.chaos.kills_in_recovery for one in deployments)
        print(
            f"proxies: {KILLS} kills under {STREAMS} streams each, and {more} more in recovery, {len(wrong)} violations"
            f" ({sum(one.chaos.exchanges for one in deployments)} exchanges; {time.monotonic() - began:.0f} s)"
        )
    assert not wrong, wrong
