"""Finds prepaid balances that become low.

Invariant: while a balance is low, `budget_alerts` has one row for it, whichever process finds it and however often; the
row is deleted when the balance is no longer low. So there is one alert each time a balance becomes low.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import structs
from sqlalchemy import Connection, Engine, delete, insert, select

from proxy.billing.limits import credit_counter_id, scope_of
from proxy.billing.money import Nusd
from proxy.billing.reservation import CounterState
from proxy.budgets.observers import ThresholdObserver
from proxy.budgets.thresholds import LOW_BALANCE, OPEN, Alert, subjects
from proxy.ledger.schema.account_tables import budget_alerts
from proxy.ledger.settling.spend import IDS_MAX, batches
from proxy.storage.database import Lock, hold, reading, writing
from proxy.storage.executor import InThread

# Balances that a process remembers, so that it does not read each of them from the ledger at every check.
KNOWN_MAX = 100_000

_COLUMNS = budget_alerts.c


class LowBalances:
    """Checks the balances of prepaid keys and accounts."""

    def __init__(
        self,
        engine: Engine,
        *,
        low_nusd: Nusd | None,
        unix_time: Callable[[], float],
        observer: ThresholdObserver,
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        """`low_nusd`: a balance below this amount is low; None: no balance is low."""
        self._engine, self._unix_time = engine, unix_time
        self._observer, self._in_thread = observer, in_thread
        self._low_nusd = low_nusd
        self._known: dict[str, bool] = {}
        """scope id → whether its balance was low at the last check"""

    def use(self, low_nusd: Nusd | None) -> None:
        """Set another limit for low balances."""
        self._low_nusd = low_nusd
        self._known.clear()

    async def check(self, states: Sequence[CounterState]) -> None:
        """Record the alerts of these counters, whose spend has changed. Reserved amounts are not spent. Idempotent.
        Raises LedgerUnavailable."""
        if (low_nusd := self._low_nusd) is None:
            return
        left = {
            scope_of(one.counter_id): -one.spent
            for one in states
            if one.spent is not None and credit_counter_id(scope_of(one.counter_id)) == one.counter_id
        }
        changed = {one: nusd for one, nusd in left.items() if self._known.get(one) is not (nusd < low_nusd)}
        if changed:
            for alert in await self._in_thread(record, self._engine, changed, low_nusd, self._unix_time()):
                self._observer.noticed(alert)
            if len(self._known) > KNOWN_MAX:
                self._known.clear()
            self._known.update({one: nusd < low_nusd for one, nusd in changed.items()})


def record(engine: Engine, left: Mapping[str, int], low_nusd: Nusd, now: float) -> list[Alert]:
    """Record which of these balances are low. `left`: scope id → nUSD. Returns the new alerts. Raises
    LedgerUnavailable."""
    prepaid = {one.scope_id for one in subjects(engine, left).values() if one.limits.prepaid}
    low = {one for one in prepaid if left[one] < low_nusd}
    with reading(engine) as connection:
        if _recorded(connection, left) == low:
            return []
    with writing(engine) as connection:
        hold(connection, Lock.KEYS)  # one process at a time
        recorded = _recorded(connection, left)
        for ids in batches(recorded - low, IDS_MAX):
            of_scopes = (_COLUMNS.threshold == LOW_BALANCE) & _COLUMNS.scope_id.in_(ids)
            connection.execute(delete(budget_alerts).where(of_scopes))
        alerts = [_alert(one, left[one], low_nusd, now) for one in sorted(low - recorded)]
        if alerts:
            connection.execute(insert(budget_alerts), list(map(structs.asdict, alerts)))
    return alerts


def _recorded(connection: Connection, scope_ids: Iterable[str]) -> set[str]:
    query = select(_COLUMNS.scope_id).where(_COLUMNS.threshold == LOW_BALANCE)

    def among(ids: Collection[str]) -> Iterable[str]:
        return connection.execute(query.where(_COLUMNS.scope_id.in_(ids))).scalars()

    return {one for ids in batches(scope_ids, IDS_MAX) for one in among(ids)}


def _alert(scope_id: str, left: int, low_nusd: Nusd, now: float) -> Alert:
    name = hashlib.sha256(f"{scope_id}\n{now!r}\nbalance.low".encode()).hexdigest()[:32]
    return Alert(
        alert_id=f"alert_{name}",
        scope_id=scope_id,
        threshold=LOW_BALANCE,
        since=now,
        spent_nusd=Nusd(-left),
        budget_nusd=low_nusd,
        created_at=now,
        state=OPEN,
        tries=0,
        next_at=now,
        last_error=None,
    )
