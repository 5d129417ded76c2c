"""Stores of budgets, each with any number of nodes, under a clock that tests set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from proxy.budgets.redis.store import RedisBudgets
from proxy.budgets.sqlite.store import SqliteBudgets
from proxy.budgets.store import BudgetStore
from proxy.storage.redis_client import open_redis
from tests.support.clock import Clock

NOW = 1_800_000_000.25
# How long a loss waits for a node.
AWAY_S = 30.0


async def warm(store: RedisBudgets) -> None:
    """The wait for nodes that might hold something in what is new to the server is over."""
    await store._redis.hset(store._key("life"), "warm", 0)


class Stores(ABC):
    """One store; each `node` is a handle of its own."""

    kind = ""

    def __init__(self) -> None:
        self.clock = Clock(NOW)
        self.nodes: list[BudgetStore] = []

    def node(self, name: str) -> BudgetStore:
        """A new handle; the fixture closes it."""
        self.nodes.append(one := self._node(name))
        return one

    @abstractmethod
    def _node(self, name: str) -> BudgetStore: ...

    @abstractmethod
    async def lose(self) -> None:
        """All that it has, as if it had never been told."""

    @abstractmethod
    async def warmed(self) -> None:
        """Return when a loss is over."""


class LocalStores(Stores):
    kind = "local"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "budgets.db"

    def _node(self, name: str) -> BudgetStore:
        return SqliteBudgets(self.path, node=name, unix_time=self.clock)

    async def lose(self) -> None:
        for path in self.path.parent.glob("budgets.db*"):
            path.unlink()

    async def warmed(self) -> None:
        pass  # by a clock that tests do not set


class RedisStores(Stores):
    kind = "redis"

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__()
        self.redis: Any = open_redis(url)
        self._prefix = prefix

    def _node(self, name: str) -> BudgetStore:
        return RedisBudgets(self.redis, node=name, prefix=self._prefix, away_s=AWAY_S, unix_time=self.clock)

    async def lose(self) -> None:
        keys = [key async for key in self.redis.scan_iter(f"{{{self._prefix}:budgets}}*", count=10_000)]
        if keys:
            await self.redis.delete(*keys)

    async def warmed(self) -> None:
        for _ in range(4):  # only time in which somebody calls counts
            await self.nodes[0].cursor()
            self.clock.now += 0.5


class OwnTime(RedisStores):
    """The time by which windows begin is that of the test, too."""

    def _node(self, name: str) -> BudgetStore:
        clocks = {"unix_time": self.clock, "own_time": self.clock, "monotonic": self.clock}
        return RedisBudgets(self.redis, node=name, prefix=self._prefix, away_s=AWAY_S, **clocks)
