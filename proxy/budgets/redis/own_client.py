"""The Redis store of one process. Invariant: the store has separate connections, so that admission does not wait behind
records."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from redis.exceptions import RedisError

from proxy.budgets.redis.known_nodes import KnownNodes
from proxy.budgets.redis.store import RedisBudgets
from proxy.budgets.store import BudgetStore
from proxy.storage.redis_client import RedisClient, open_redis


def connected(url: str, node: str, *, away_s: float, known_nodes: Path | None) -> BudgetStore:
    """The store for `node` on the server at `url`. It connects at its first call. `away_s`: see RedisBudgets;
    `known_nodes`: see KnownNodes."""
    return _Connected(open_redis(url), node, away_s, KnownNodes(known_nodes))


class _Connected(RedisBudgets):
    def __init__(self, redis: RedisClient, node: str, away_s: float, known_nodes: KnownNodes) -> None:
        super().__init__(redis, node=node, away_s=away_s, known_nodes=known_nodes)
        self._own_client = redis

    async def aclose(self) -> None:
        """Close the connections, too. Never raises."""
        await super().aclose()
        with suppress(RedisError, OSError):
            await self._own_client.aclose()
