"""A key works from the moment it is made, at every process."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest

from proxy.keys.guesses import GUESSES_MAX
from tests.crash.stage import quick_keys
from tests.distributed.apart import Apart
from tests.support.tokenweir import Tokenweir

pytestmark = pytest.mark.thorough

WORKERS = 2
# More than an address may guess.
KEYS, REQUESTS = 2 * GUESSES_MAX, 5


async def status(session: aiohttp.ClientSession, proxy: Tokenweir, secret: str) -> int:
    """Of a request by a connection of its own: whichever process takes it."""
    headers = {"Authorization": f"Bearer {secret}", "Connection": "close"}
    async with session.get(f"{proxy.url}/v1/models", headers=headers) as answer:
        await answer.read()
        return answer.status


async def test_new_keys_work_at_once_at_every_process(apart: Apart) -> None:
    machines = apart.proxies[0].start(), apart.proxy("--workers", str(WORKERS)).start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=100)) as session:
        made = await asyncio.to_thread(quick_keys, machines[0], KEYS)
        found = Counter(
            await asyncio.gather(
                *(status(session, machines[turn % 2], secret) for turn in range(REQUESTS) for secret in made)
            )
        )
    assert found == {200: KEYS * REQUESTS}
