"""A Redis that golden data are loaded into."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from proxy.storage.redis_client import open_redis
from tests.support.valkey import Valkey


@pytest.fixture
async def plain(valkey: Valkey) -> AsyncIterator[Any]:
    """A server of the test's own: names are those of a deployment."""
    client: Any = Redis.from_url(valkey.url)
    yield client
    await client.aclose()


@pytest.fixture
async def client(valkey: Valkey) -> AsyncIterator[Any]:
    """The same server, as the proxy reaches it."""
    client = open_redis(valkey.url)
    yield client
    await client.aclose()
