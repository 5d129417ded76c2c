"""The queue between proxies and workers, as one process uses it.

Invariants: the queue's calls share one connection pool, budgets have another. A server that could lose records is
refused at the start.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from proxy.delivery.redis_leases import RedisLeases
from proxy.delivery.redis_queue import ReclaimLock, RedisQueue
from proxy.delivery.roster import WorkerRoster
from proxy.delivery.sharded_queue import ShardedQueue
from proxy.delivery.stop_requests import StopRequests
from proxy.runtime.machine.waiting import Waiting, until_there
from proxy.settings import Settings
from proxy.storage.redis_client import QueueUnavailable, check, open_redis, refusal

# Batches at work in one process, at least: while the ledger writes one, the next is taken, read and priced. More of one
# shard would only wait for its clock.
LANES = 2
# Interval of the checks of the rights in Redis: each takes some milliseconds, in small parts.
RIGHTS_S = 5.0

_log = logging.getLogger(__name__)


class Queue:
    """The queue's streams, each with at least one lane to take records from it, and the lease registry."""

    def __init__(self, settings: Settings) -> None:
        assert settings.queue is not None
        self.redis = open_redis(settings.queue.reveal())
        """the client for calls that do not block"""
        name = f"worker-{secrets.token_hex(6)}"
        claim_after_ms, reclaim = int(settings.lease_s * 1000), ReclaimLock()
        self.roster = WorkerRoster(self.redis, name, shards=settings.queue_shards)
        """the live workers; only workers use this list"""
        self.lanes = [
            RedisQueue(
                self.redis,
                shard=shard,
                consumer=f"{name}-{lane}",
                claim_after_ms=claim_after_ms,
                reclaim=reclaim,
                settles=partial(self.roster.settles, shard),
            )
            for lane in range(max(1, LANES // settings.queue_shards))
            for shard in range(settings.queue_shards)
        ]
        """the receiving ends of the streams; only workers use them"""
        self.shards = self.lanes[: settings.queue_shards]
        """one lane of each stream"""
        self.refusal: str | None = None
        """why the server refuses this process, which is not ready then, as last seen; None: it does not"""
        self.leases = RedisLeases(self.redis)
        self.stops = StopRequests(self.redis)
        """requests to stop streams of other machines; only proxies use it"""
        self.outgoing = ShardedQueue(self.shards)
        """the sending end of all streams; only proxies use it"""

    async def check(self) -> None:
        """Check the server. Raises QueueUnsuitable, whose message is for the operator; QueueUnavailable."""
        await check(self.redis)

    async def watch_rights(self) -> None:
        """Keep `refusal` up to date, and log its changes, until cancelled. It stays as it is during an outage."""
        while True:
            await asyncio.sleep(RIGHTS_S)
            with suppress(QueueUnavailable):
                self._note(await refusal(self.redis))

    def _note(self, reason: str | None) -> None:
        if reason is not None and reason != self.refusal:
            _log.error("%s (not ready until then)", reason)
        elif reason is None and self.refusal is not None:
            _log.warning("the queue's Redis gives all rights again")
        self.refusal = reason

    async def close(self) -> None:
        """Close the connections."""
        await self.redis.aclose()


@asynccontextmanager
async def open_queue(settings: Settings, waiting: Waiting) -> AsyncIterator[Queue]:
    """Open and check the queue of a server, as soon as it can be reached. Raises QueueUnsuitable."""
    queue = Queue(settings)
    try:
        await until_there(queue.check, waiting, absent=(QueueUnavailable,), what="the queue's Redis")
        yield queue
    finally:
        await queue.close()
