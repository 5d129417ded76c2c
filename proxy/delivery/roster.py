"""Which worker settles which shard.

Invariant: nothing depends on this but speed. Two workers that settle one shard wait for each other's transactions and
settle each record once, as ever; a shard that nobody settles gets its worker within LIVE_S.

Every worker that lives is in a sorted set of Redis, by the time of its last sign of life on the server's clock. They
divide the shards by their place among the names, so no worker has to ask another.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from proxy.storage.redis_client import QueueUnavailable, RedisClient, map_errors

# A worker that has died is missed for so long; a claim on its records lasts longer.
LIVE_S, RENEW_S = 5.0, 1.0

_RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""


class WorkerRoster:
    """The workers of a queue, as one of them sees them."""

    def __init__(self, redis: RedisClient, worker: str, *, shards: int, prefix: str = "tokenweir") -> None:
        """`worker`: its unique name."""
        self._redis: Any = redis
        # Workers with another number of shards divide theirs by themselves, while a deployment changes it.
        self._key = f"{{{prefix}}}:workers:{shards}".encode()
        self._worker = worker.encode()
        self._shards = shards
        self._workers: list[bytes] = []
        """those that live, in order of their names"""

    def settles(self, shard: int) -> bool:
        """Whether this worker takes the records of the shard. A single shard is settled by all workers: while one
        writes, the others prepare."""
        if self._shards == 1:
            return True
        return bool(self._workers) and self._workers[shard % len(self._workers)] == self._worker

    async def run(self) -> None:
        """Renew until cancelled. During an outage of the queue nothing changes."""
        while True:
            with suppress(QueueUnavailable):
                await self.renew()
            await asyncio.sleep(RENEW_S)

    async def renew(self) -> None:
        """Give a sign of life, and see who else lives. Raises QueueUnavailable."""
        async with map_errors(self._redis, "renewing the roster of workers"):
            names = await self._redis.eval(_RENEW, 1, self._key, self._worker, int(LIVE_S * 1000))
        self._workers = sorted(names)

    async def leave(self) -> None:
        """Let the others settle all shards from now on. Never raises."""
        self._workers = []
        with suppress(QueueUnavailable):
            async with map_errors(self._redis, "leaving the roster of workers"):
                await self._redis.zrem(self._key, self._worker)
