"""The budget store of a deployment.

Invariant: all processes that share a ledger share one store: the queue's server where there is a queue, else a file
beside the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry
from sqlalchemy import Engine

from proxy.billing.reservation import CounterState
from proxy.budgets.followed_ledger import FollowedLedger
from proxy.budgets.follower import Follower
from proxy.budgets.observers import FollowerObserver
from proxy.budgets.sqlite.store import SqliteBudgets
from proxy.budgets.store import BudgetStore
from proxy.settings import Settings
from proxy.telemetry.budget_metrics import BudgetMetrics
from proxy.telemetry.histogram import Series

# After the end of a node's lease its exchanges are settled, and counted, within this time.
SWEPT_S = 10.0


def open_budgets(settings: Settings, node: str, known_nodes: Path | None = None) -> BudgetStore:
    """Open the budget store for `node`; the store connects at its first call. `known_nodes`: see KnownNodes."""
    if settings.queue is None:
        return SqliteBudgets(settings.data_dir / "budgets.db", node=node, unix_time=time.time)
    # Redis is loaded only where there is a queue.
    from proxy.budgets.redis.own_client import connected

    return connected(settings.queue.reveal(), node, away_s=settings.lease_s + SWEPT_S, known_nodes=known_nodes)


async def rebuilt(store: BudgetStore, engine: Engine) -> dict[str, int]:
    """Compare all spend totals with the ledger, and read them again. Returns counter id → store minus ledger, in nUSD.
    Raises OSError."""
    observer = FollowerObserver(BudgetMetrics(Series(CollectorRegistry())))  # the command prints the drift itself
    return await Follower(store, FollowedLedger(engine), on_spent=_ignore, observer=observer).rebuild()


async def _ignore(_states: Sequence[CounterState]) -> None:
    """Skip the thresholds, which the running servers check."""
