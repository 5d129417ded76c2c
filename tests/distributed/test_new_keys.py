"""A key works from the moment it is made, at every process, and whoever guesses keys costs nobody anything."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from proxy.keys.guesses import GUESSES_MAX
from proxy.keys.keyring import LOOKUP_S_MAX
from proxy.keys.secrets import new_secret
from proxy.ledger.schema.migrate import migrate
from tests.crash.stage import quick_key, quick_keys
from tests.distributed.apart import Apart
from tests.support.postgres import PostgresServer, own_server
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

pytestmark = pytest.mark.thorough

WORKERS = 2
# More than an address may guess.
KEYS, REQUESTS = 2 * GUESSES_MAX, 5
GUESSES = 5 * GUESSES_MAX


@pytest.fixture
def server(postgres_cluster: Path) -> Iterator[PostgresServer]:
    """A Postgres of the test's own."""
    with own_server(postgres_cluster) as running:
        yield running


@pytest.fixture
def machines(
    tmp_path: Path, provider: ScriptedProvider, server: PostgresServer, queue_url: str
) -> Iterator[Sequence[Tokenweir]]:
    """Two, of which one has two processes."""
    name = server.new_database()
    migrate(server.url(name))
    apart = Apart(tmp_path, provider, server.url(name), queue_url)
    apart.proxies[0].start()
    apart.proxy("--workers", str(WORKERS)).start()
    yield apart.proxies
    apart.close()


async def status(session: aiohttp.ClientSession, proxy: Tokenweir, secret: str) -> int | str:
    """Of a request by a connection of its own: whichever process takes it."""
    headers = {"Authorization": f"Bearer {secret}", "Connection": "close"}
    async with session.get(f"{proxy.url}/v1/models", headers=headers) as answer:
        body = await answer.read()
        return 200 if answer.status == 200 else f"{answer.status} {json.loads(body)['error']['code']}"


async def test_new_keys_work_at_once_at_every_process(machines: Sequence[Tokenweir]) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=100)) as session:
        made = await asyncio.to_thread(quick_keys, machines[0], KEYS)
        found = Counter(
            await asyncio.gather(
                *(status(session, machines[turn % 2], secret) for turn in range(REQUESTS) for secret in made)
            )
        )
    assert found == {200: KEYS * REQUESTS}


@pytest.mark.slow
async def test_a_flood_of_guesses_is_looked_up_a_few_times_and_stops_nobody(machines: Sequence[Tokenweir]) -> None:
    proxy = machines[0]
    known = quick_key(proxy, alias="known")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as session:
        assert await status(session, proxy, known) == 200
        guesses, others = await asyncio.gather(
            asyncio.gather(*(status(session, proxy, new_secret().reveal()) for _ in range(GUESSES))),
            asyncio.gather(*(status(session, proxy, known) for _ in range(GUESSES))),
        )
    assert Counter(guesses) == {
        "401 invalid_api_key": GUESSES_MAX,
        "429 too_many_guesses": GUESSES - GUESSES_MAX,
    }
    assert set(others) == {200}


@pytest.mark.slow
async def test_while_the_ledger_hangs_unknown_keys_are_answered_in_time_and_known_ones_as_ever(
    machines: Sequence[Tokenweir], server: PostgresServer
) -> None:
    proxy = machines[0]
    known = quick_key(proxy, alias="known")
    new = quick_keys(proxy, KEYS)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=100)) as session:
        assert await status(session, proxy, known) == 200
        with server.hanging():
            began = time.monotonic()
            unknown = [new_secret().reveal() for _ in range(2 * GUESSES_MAX)]
            answers = asyncio.gather(*(status(session, proxy, secret) for secret in unknown))
            assert {await status(session, proxy, known) for _ in range(20)} == {200}
            assert set(await answers) == {"503 keys_unavailable"}
            assert time.monotonic() - began < LOOKUP_S_MAX + 5
        assert Counter(await asyncio.gather(*(status(session, proxy, secret) for secret in new))) == {200: len(new)}
