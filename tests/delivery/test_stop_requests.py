"""Requests to stop streams: every proxy reads them, until they are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from proxy.delivery import stop_requests
from proxy.delivery.stop_requests import StopRequests
from proxy.foundation.tasks import Tasks
from proxy.storage.redis_client import RedisClient

pytestmark = pytest.mark.io


@pytest.fixture
def redis(redis_to: Callable[[str], RedisClient], redis_url: str) -> RedisClient:
    return redis_to(redis_url)


async def test_every_proxy_reads_each_request_until_it_is_forgotten(
    redis: RedisClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_requests, "READ_S", 0.01)
    monkeypatch.setattr(stop_requests, "KEPT_S", 1)
    proxies = [StopRequests(redis, prefix=prefix) for _ in range(2)]
    asked: list[list[str]] = [[], []]
    tasks = Tasks()
    for one, ids in zip(proxies, asked, strict=True):
        tasks.start(one.follow(ids.append), name="stops")
    await proxies[0].send("exchange-1")
    async with asyncio.timeout(10):
        while not all(asked):
            await asyncio.sleep(0.01)
        while await proxies[1].read():
            await asyncio.sleep(0.1)
    await tasks.stop()
    assert {name for ids in asked for name in ids} == {"exchange-1"}
