"""Checks the Redis between proxies and workers. Invariants: the check only reads, on its own connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

from redis.asyncio import RedisCluster

from proxy.doctor.clocks import clock_finding
from proxy.doctor.finding import CheckedDeployment, Finding, error, ok, warning
from proxy.runtime.machine.queue import Queue
from proxy.storage.redis_client import RedisClient, map_errors, refusal
from proxy.storage.redis_client import check as require_suitable

# Above this share of its memory, a ledger outage soon fills the queue; records then stay in the journals.
_FULL_SHARE = 0.8


def check(case: CheckedDeployment) -> list[Finding]:
    """Check that Redis gives its user all rights, is suitable, a primary, persistent, below its memory limit, and
    drained by workers. Raises QueueUnsuitable, QueueUnavailable."""
    return asyncio.run(_findings(case))


async def _findings(case: CheckedDeployment) -> list[Finding]:
    queue = Queue(case.settings)
    try:
        if reason := await refusal(queue.redis):
            return [error("queue", reason, "all rights that it needs: docs/how-to/use-several-machines.md")]
        await require_suitable(queue.redis)
        servers = await _server_details(queue.redis)
        age_s = max([await shard.oldest_age_s() for shard in queue.shards])
        found = [finding for server in servers for finding in _server(server)]
        return [*found, await _clock(queue.redis), _drained(age_s, case.settings.lease_s)]
    finally:
        await queue.close()


async def _server_details(redis: RedisClient) -> list[Mapping[str, Any]]:
    async with map_errors(redis, "reading the INFO of the queue's Redis"):
        if isinstance(redis, RedisCluster):
            return [await redis.info(target_nodes=node) for node in redis.get_primaries()]
        return [await redis.info()]


async def _clock(redis: RedisClient) -> Finding:
    async with map_errors(redis, "reading the clock of the queue's Redis"):
        before = time.time()
        if isinstance(redis, RedisCluster):
            seconds, micros = await redis.time(target_nodes=redis.get_primaries()[0])
        else:
            seconds, micros = await redis.time()
    return clock_finding("queue", "Redis's", seconds + micros / 1e6, before, time.time())


def _server(server: Mapping[str, Any]) -> Iterator[Finding]:
    kind = "Valkey" if "valkey_version" in server else "Redis"
    version = server.get("valkey_version", server.get("redis_version"))
    yield ok("queue", f"{kind} {version}, which evicts no records")
    yield from _persistence(server)
    limit = int(server.get("maxmemory") or 0)
    if limit and int(server.get("used_memory", 0)) > limit * _FULL_SHARE:
        yield warning("queue", "its memory is nearly full; then records stay in the journals", "add memory or workers")


def _persistence(server: Mapping[str, Any]) -> Iterator[Finding]:
    """Check Redis's persistence: journals send lost records again, but leases of dead machines exist only in Redis."""
    broken = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status")
        if server.get(name, "ok") not in ("ok", b"ok")
    ]
    if broken:
        yield error("queue", f"it cannot write to its disk ({', '.join(broken)})", "check its log and its disk")
    if not int(server.get("aof_enabled", 0)):
        yield warning(
            "queue",
            "it has no append-only file: a restart loses leases, idempotency claims and queued records",
            "set `appendonly yes` (the journals send lost records again in any case)",
        )


def _drained(age_s: float, lease_s: float) -> Finding:
    if age_s > lease_s:
        message = f"the oldest record has waited for {age_s:.0f} s"
        return error("queue", message, "check that a `tokenweir worker` runs and can reach the ledger")
    return ok("queue", "no record waits for long")
