"""The queue that proxies and workers share, as this process uses it. Law: one connection pool for what answers at once,
one for what waits; a server that could lose records by itself is refused at the start."""

from __future__ import annotations

import secrets

from proxy.pipeline.redis_client import check, open_redis
from proxy.pipeline.redis_leases import RedisLeases
from proxy.pipeline.redis_queue import RedisQueue
from proxy.settings import Settings


class Queue:
    """Its streams, one per shard, and the leases of those who feed them."""

    def __init__(self, settings: Settings) -> None:
        assert settings.queue is not None
        self._redis = open_redis(settings.queue.reveal())
        self.consumer = f"worker-{secrets.token_hex(6)}"
        self.shards = [
            RedisQueue(self._redis, shard=shard, consumer=self.consumer, claim_after_ms=int(settings.lease_s * 1000))
            for shard in range(settings.queue_shards)
        ]
        self.leases = RedisLeases(self._redis)
        self.outgoing = self.shards[secrets.randbelow(len(self.shards))]
        """where this process sends: any shard will do"""

    async def check(self) -> None:
        """Raises QueueUnsuitable: with words for the operator; QueueUnavailable."""
        await check(self._redis)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._redis.aclose()
