"""The list of live processes: workers, which divide the shards among themselves, and proxies, which answer for each
other's running exchanges.

Invariant: correctness does not depend on the list, only speed does. Two workers that settle one shard wait for each
other's transactions and settle each record once; a shard without a worker gets one within LIVE_S.

Live processes are in a sorted set of Redis, by the time of their last sign of life on the server's clock. Workers
divide the shards by their position among the names, without messages to each other.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from proxy.storage.redis_client import QueueUnavailable, RedisClient, map_errors
from proxy.storage.redis_keys import PREFIX, RedisKeys

# One that has died is missed for so long; a claim on a worker's records lasts longer.
LIVE_S, RENEW_S = 5.0, 1.0

_RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""


class Roster:
    """The names of the live processes of one kind."""

    def __init__(self, redis: RedisClient, name: str, *, kind: str, prefix: str = PREFIX) -> None:
        """`name`: this process's, unique among its `kind`."""
        self._redis: Any = redis
        self._key = RedisKeys(prefix).roster(kind).encode()
        self._name = name.encode()
        self._names: list[bytes] = []
        """the sorted names of the live processes"""

    def others(self) -> list[str]:
        """The names of all other live processes."""
        return [name.decode() for name in self._names if name != self._name]

    async def run(self) -> None:
        """Renew until cancelled. During an outage of the queue the list stays unchanged."""
        while True:
            with suppress(QueueUnavailable):
                await self.renew()
            await asyncio.sleep(RENEW_S)

    async def renew(self) -> None:
        """Write a sign of life, and read the list. Raises QueueUnavailable."""
        async with map_errors(self._redis, "renewing a roster"):
            names = await self._redis.eval(_RENEW, 1, self._key, self._name, int(LIVE_S * 1000))
        self._names = sorted(names)

    async def leave(self) -> None:
        """Remove this process from the list at once. Never raises."""
        self._names = []
        with suppress(QueueUnavailable):
            async with map_errors(self._redis, "leaving a roster"):
                await self._redis.zrem(self._key, self._name)


class WorkerRoster(Roster):
    """The workers of a queue."""

    def __init__(self, redis: RedisClient, worker: str, *, shards: int, prefix: str = PREFIX) -> None:
        """`worker`: the unique name of this worker."""
        # Workers with another number of shards divide theirs by themselves, while a deployment changes it.
        super().__init__(redis, worker, kind=f"workers:{shards}", prefix=prefix)
        self._shards = shards

    def settles(self, shard: int) -> bool:
        """True if this worker takes the records of the shard. All workers settle a single shard: while one writes, the
        others prepare."""
        if self._shards == 1:
            return True
        return bool(self._names) and self._names[shard % len(self._names)] == self._name
