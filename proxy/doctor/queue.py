"""The Redis between proxies and workers. Law: read only, over connections of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

from redis.asyncio import RedisCluster

from proxy.doctor.clocks import judged
from proxy.doctor.finding import Case, Finding, error, ok, warning
from proxy.runtime.machine.queue import Queue
from proxy.storage.redis_client import RedisClient, check, map_errors

# Beyond this share of its memory an outage of the ledger soon stops the queue (the journals then hold what comes).
_FULL_SHARE = 0.8


def look(case: Case) -> list[Finding]:
    """Suitable, primary, keeping what it has, with room; and emptied by somebody. Raises QueueUnsuitable,
    QueueUnavailable."""
    return asyncio.run(_look(case))


async def _look(case: Case) -> list[Finding]:
    queue = Queue(case.settings)
    try:
        await check(queue.redis)
        servers = await _answers(queue.redis)
        age_s = max([await shard.oldest_age_s() for shard in queue.shards])
        found = [finding for server in servers for finding in _server(server, case)]
        return [*found, await _clock(queue.redis), _drained(age_s, case.settings.lease_s)]
    finally:
        await queue.close()


async def _answers(redis: RedisClient) -> list[Mapping[str, Any]]:
    async with map_errors(redis, "asking the queue's server how it is"):
        if isinstance(redis, RedisCluster):
            return [await redis.info(target_nodes=node) for node in redis.get_primaries()]
        return [await redis.info()]


async def _clock(redis: RedisClient) -> Finding:
    async with map_errors(redis, "asking the queue's server for the time"):
        before = time.time()
        if isinstance(redis, RedisCluster):
            seconds, micros = await redis.time(target_nodes=redis.get_primaries()[0])
        else:
            seconds, micros = await redis.time()
    return judged("queue", "Redis's", seconds + micros / 1e6, before, time.time())


def _server(answer: Mapping[str, Any], case: Case) -> Iterator[Finding]:
    kind = "Valkey" if "valkey_version" in answer else "Redis"
    version = answer.get("valkey_version", answer.get("redis_version"))
    yield ok("queue", f"{kind} {version}, which throws no records away")
    if answer.get("role") not in (None, "master"):
        yield error(
            "queue", "it is a replica: it takes no records", "let the URL lead to the primary, or name Sentinel"
        )
    yield from _kept(answer)
    full = int(answer.get("maxmemory") or 0)
    if full and int(answer.get("used_memory", 0)) > full * _FULL_SHARE:
        yield warning(
            "queue", "its memory is nearly full: journals will hold what comes", "more memory, or more workers"
        )


def _kept(answer: Mapping[str, Any]) -> Iterator[Finding]:
    """What Redis loses of the records, the journals send again; what runs on machines that are gone, only it knows."""
    broken = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status")
        if answer.get(name, "ok") not in ("ok", b"ok")
    ]
    if broken:
        yield error("queue", f"it cannot write to its disk ({', '.join(broken)})", "see its log, and its disk")
    if not int(answer.get("aof_enabled", 0)):
        yield warning(
            "queue",
            "it keeps no append-only file: a restart forgets what runs, claims of repeats, and what is on its way",
            "appendonly yes (records are sent again from the journals in any case)",
        )


def _drained(age_s: float, lease_s: float) -> Finding:
    if age_s > lease_s:
        said = f"the oldest record has waited for {age_s:.0f} s"
        return error("queue", said, "is a `tokenweir worker` running, and can it reach the ledger?")
    return ok("queue", "nothing waits for long")
