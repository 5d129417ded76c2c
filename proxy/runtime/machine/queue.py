"""The queue that proxies and workers share, as this process uses it. Law: one connection pool for what answers at once,
one for what waits; a server that could lose records by itself is refused at the start."""

from __future__ import annotations

import secrets

from proxy.delivery.redis_leases import RedisLeases
from proxy.delivery.redis_queue import ReclaimLock, RedisQueue
from proxy.settings import Settings
from proxy.storage.redis_client import check, open_redis

# Batches at work in one process: while the ledger writes one, the next is taken, read and priced. More would only wait
# for the ledger's lock.
LANES = 2


class Queue:
    """Its streams, each with a lane or more to take from it, and the leases of those who feed them."""

    def __init__(self, settings: Settings) -> None:
        assert settings.queue is not None
        self.redis = open_redis(settings.queue.reveal())
        """for whatever answers at once"""
        name = f"worker-{secrets.token_hex(6)}"
        claim_after_ms, turn = int(settings.lease_s * 1000), ReclaimLock()
        self.lanes = [
            RedisQueue(self.redis, shard=shard, consumer=f"{name}-{lane}", claim_after_ms=claim_after_ms, reclaim=turn)
            for lane in range(max(1, LANES // settings.queue_shards))
            for shard in range(settings.queue_shards)
        ]
        """for workers"""
        self.shards = self.lanes[: settings.queue_shards]
        """each stream once"""
        self.leases = RedisLeases(self.redis)
        self.outgoing = secrets.choice(self.shards)
        """where this process sends: any shard will do"""

    async def check(self) -> None:
        """Raises QueueUnsuitable: with words for the operator; QueueUnavailable."""
        await check(self.redis)

    async def close(self) -> None:
        """Let go of the connections."""
        await self.redis.aclose()
