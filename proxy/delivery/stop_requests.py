"""Requests of operators to stop a stream, which every proxy reads: one of them runs it.

Invariants: a request is read within READ_S by each proxy that reaches Redis, and is forgotten KEPT_S after the last
one. Stopping an exchange twice, or one that has ended, does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from proxy.storage.redis_client import QueueUnavailable, RedisClient, map_errors, pipelined
from proxy.storage.redis_keys import PREFIX, RedisKeys

READ_S = 1.0
KEPT_S = 15
"""longer than a short outage of the connection to Redis"""


class StopRequests:
    """A hash of Redis whose fields are the ids of exchanges."""

    def __init__(self, redis: RedisClient, *, prefix: str = PREFIX) -> None:
        self._redis: Any = redis
        self._key = RedisKeys(prefix).stops().encode()

    async def send(self, exchange_id: str) -> None:
        """Ask the proxy that runs the exchange to stop it. Raises QueueUnavailable."""
        async with map_errors(self._redis, "asking for the end of a stream"):
            await pipelined(
                self._redis, [("HSET", self._key, exchange_id.encode(), b"1"), ("EXPIRE", self._key, KEPT_S)]
            )

    async def read(self) -> list[str]:
        """The ids of all requests. Raises QueueUnavailable."""
        async with map_errors(self._redis, "reading which streams to stop"):
            return [name.decode() for name in await self._redis.hkeys(self._key)]

    async def follow(self, stop: Callable[[str], object]) -> NoReturn:
        """Call `stop` for the id of each request, until cancelled."""
        while True:
            with suppress(QueueUnavailable):
                for exchange_id in await self.read():
                    stop(exchange_id)
            await asyncio.sleep(READ_S)
