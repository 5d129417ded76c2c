"""Idempotency claims and owners of responses of all proxies, in Redis: each is a hash or a string that expires.

Invariants: see ClaimStore and OwnerStore. If the reply to a claim is lost, the claim may exist; its own exchange can
claim again.
"""

from __future__ import annotations

from typing import Any

from proxy.keys.idempotency import ClaimsUnavailable, IdempotencyRecord
from proxy.keys.response_owners import OWNERS_S
from proxy.storage.redis_client import RedisClient, map_errors
from proxy.storage.redis_keys import PREFIX, RedisKeys

_CLAIM = """
local there = redis.call("HMGET", KEYS[1], "x", "b", "e", "r")
if there[1] then return there end
redis.call("HSET", KEYS[1], "x", ARGV[1], "b", ARGV[2], "e", "0")
redis.call("PEXPIRE", KEYS[1], ARGV[3])
return {}
"""
_END = """
if redis.call("HGET", KEYS[1], "x") ~= ARGV[1] then return 0 end
redis.call("HSET", KEYS[1], "e", "1")
if ARGV[2] ~= "" then redis.call("HSET", KEYS[1], "r", ARGV[2]) end
return 1
"""
_RELEASE = """
if redis.call("HGET", KEYS[1], "x") ~= ARGV[1] then return 0 end
return redis.call("DEL", KEYS[1])
"""


class RedisClaims:
    """A ClaimStore and an OwnerStore on Redis."""

    def __init__(
        self, redis: RedisClient, *, retention_s: float, owners_s: float = OWNERS_S, prefix: str = PREFIX
    ) -> None:
        """`redis` is shared: `aclose` does not close it. `owners_s`: how long owners are remembered."""
        self._redis: Any = redis
        self._retention_ms = int(retention_s * 1000)
        self._owners_ms = int(owners_s * 1000)
        self._keys = RedisKeys(prefix)

    async def claim(self, name: str, body: str, exchange_id: str) -> IdempotencyRecord | None:
        async with map_errors(self._redis, "claiming an Idempotency-Key", ClaimsUnavailable):
            there = await self._redis.eval(_CLAIM, 1, self._keys.claim(name), exchange_id, body, self._retention_ms)
        if not there or there[0].decode() == exchange_id:
            return None
        return IdempotencyRecord(there[0].decode(), there[1].decode() == body, there[2] == b"1", there[3])

    async def end(self, name: str, exchange_id: str, answer: bytes | None) -> None:
        async with map_errors(self._redis, "ending a claim", ClaimsUnavailable):
            await self._redis.eval(_END, 1, self._keys.claim(name), exchange_id, answer or b"")

    async def release(self, name: str, exchange_id: str) -> None:
        async with map_errors(self._redis, "releasing a claim", ClaimsUnavailable):
            await self._redis.eval(_RELEASE, 1, self._keys.claim(name), exchange_id)

    async def remember(self, name: str, owner: bytes) -> None:
        async with map_errors(self._redis, "storing the owner of a response", ClaimsUnavailable):
            await self._redis.set(self._keys.owner(name), owner, px=self._owners_ms)

    async def recall(self, name: str) -> bytes | None:
        async with map_errors(self._redis, "looking up the owner of a response", ClaimsUnavailable):
            owner: bytes | None = await self._redis.get(self._keys.owner(name))
        return owner

    async def forget(self, name: str) -> None:
        async with map_errors(self._redis, "deleting the owner of a response", ClaimsUnavailable):
            await self._redis.delete(self._keys.owner(name))

    async def aclose(self) -> None:
        """No-op: the owner of `redis` closes it."""
