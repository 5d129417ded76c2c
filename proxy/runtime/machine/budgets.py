"""Budgets in a deployment: who keeps them, how they follow the ledger, and what is noticed on the way.

Law: one store for all who share a ledger; with a queue it is the queue's server, and else a file beside the ledger.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

from redis.exceptions import RedisError
from sqlalchemy import Engine

from proxy.billing.reservation import CounterState, SpendDelta, SpendTotal
from proxy.budgets.follower import Follower, SeedRequest
from proxy.budgets.redis.store import RedisBudgets
from proxy.budgets.sqlite.store import SqliteBudgets
from proxy.budgets.store import BudgetStore
from proxy.budgets.thresholds import Alert, reached, record_new
from proxy.ledger.settling import spend
from proxy.settings import Settings
from proxy.storage.executor import InThread
from proxy.storage.redis_client import RedisClient, open_redis

# Alerts that this process remembers, so as not to ask the ledger about each of them at every look.
KNOWN_MAX = 100_000


def open_budgets(settings: Settings, node: str) -> BudgetStore:
    """The deployment's store, as `node` sees it. Raises BudgetsUnavailable."""
    if settings.queue is None:
        return SqliteBudgets(settings.data_dir / "budgets.db", node=node, unix_time=time.time)
    return _RedisBudgets(open_redis(settings.queue.reveal()), node)


class _RedisBudgets(RedisBudgets):
    """With connections of its own: what records wait for does not hold up admission."""

    def __init__(self, redis: RedisClient, node: str) -> None:
        super().__init__(redis, node=node)
        self._own_client = redis

    async def aclose(self) -> None:
        """Let go of them, too. Never raises."""
        await super().aclose()
        with suppress(RedisError, OSError):
            await self._own_client.aclose()


class FollowedLedger:
    """The ledger as a follower asks it: never on the event loop's thread."""

    def __init__(self, engine: Engine, in_thread: InThread = asyncio.to_thread) -> None:
        self._engine = engine
        self._in_thread = in_thread

    async def time(self) -> int:
        """Up to when everything is settled. Raises LedgerUnavailable, as all of these do."""
        found: int = await self._in_thread(spend.ledger_time, self._engine)
        return found

    async def sums(self, wants: Sequence[SeedRequest]) -> list[SpendTotal]:
        """What was spent at each, all at one moment."""
        found: list[SpendTotal] = await self._in_thread(spend.sums, self._engine, wants)
        return found

    async def changes(self, after_us: int, limit: int) -> tuple[list[SpendDelta], int, int]:
        """What was settled after that."""
        found: tuple[list[SpendDelta], int, int] = await self._in_thread(spend.changes, self._engine, after_us, limit)
        return found

    async def settled(self, exchange_ids: Collection[str], until_us: int | None = None) -> set[str]:
        """Those whose terminal entries were settled by then; None: ever."""
        found: set[str] = await self._in_thread(spend.settled, self._engine, exchange_ids, until_us)
        return found


class AlertObserver(Protocol):
    """Who wants to know: metrics, and the log."""

    def noticed(self, alert: Alert) -> None:
        """So much of a budget is spent; said once by all processes together."""


class Thresholds:
    """Notices when much of a budget is spent."""

    def __init__(
        self,
        engine: Engine,
        *,
        unix_time: Callable[[], float],
        observer: AlertObserver,
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        self._engine = engine
        self._unix_time = unix_time
        self._observer = observer
        self._in_thread = in_thread
        self._known: set[str] = set()

    async def look(self, standings: Sequence[CounterState]) -> None:
        """More was spent at these gates; again is fine. Raises LedgerUnavailable."""
        budgets = [one for one in standings if one.spent and spend.scope_of(one.gate_id) == one.gate_id]
        if budgets:
            for alert in await self._in_thread(self._noticed, budgets, self._unix_time()):
                self._observer.noticed(alert)

    def _noticed(self, standings: Sequence[CounterState], now: float) -> list[Alert]:
        found = [one for one in reached(self._engine, standings, now) if one.alert_id not in self._known]
        new = record_new(self._engine, found) if found else []
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        self._known.update(one.alert_id for one in found)
        return new


async def rebuilt(store: BudgetStore, engine: Engine) -> dict[str, int]:
    """Compare all sums with the ledger, and forget them → gate → by how much it was off, in nUSD. Raises OSError."""
    return await Follower(store, FollowedLedger(engine), on_spent=_nobody, observer=_Nobody()).rebuild()


async def _nobody(_standings: Sequence[CounterState]) -> None:
    """The servers that run notice it."""


class _Nobody:
    """For a command: what fails is raised."""

    def absorbed(self, entries: int) -> None:
        """So many more are in the sums."""

    def drift(self, nusd: int) -> None:
        """The command says it."""

    def failed(self, error: Exception) -> None:
        """It is raised."""

    def healed(self, error: Exception) -> None:
        """Nothing was."""
