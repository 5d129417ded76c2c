"""Records an alert when the spend of a budget passes a threshold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sqlalchemy import Engine

from proxy.billing.limits import scope_of
from proxy.billing.reservation import CounterState
from proxy.budgets.observers import ThresholdObserver
from proxy.budgets.thresholds import Alert, reached, record_new
from proxy.storage.executor import InThread

# Alerts that a process remembers, so that it does not read each of them from the ledger again at every check.
KNOWN_MAX = 100_000


class Thresholds:
    """Checks counters against the thresholds of their budgets."""

    def __init__(
        self,
        engine: Engine,
        *,
        unix_time: Callable[[], float],
        observer: ThresholdObserver,
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        self._engine = engine
        self._unix_time = unix_time
        self._observer = observer
        self._in_thread = in_thread
        self._known: set[str] = set()

    async def check(self, states: Sequence[CounterState]) -> None:
        """Record the alerts of these counters, whose spend has grown. Idempotent. Raises LedgerUnavailable."""
        budgets = [state for state in states if state.spent and scope_of(state.counter_id) == state.counter_id]
        if budgets:
            for alert in await self._in_thread(self._record, budgets, self._unix_time()):
                self._observer.noticed(alert)

    def _record(self, states: Sequence[CounterState], now: float) -> list[Alert]:
        alerts = [alert for alert in reached(self._engine, states, now) if alert.alert_id not in self._known]
        new = record_new(self._engine, alerts) if alerts else []
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        self._known.update(alert.alert_id for alert in alerts)
        return new
