"""Settles the open exchanges of dead nodes from their leases.

Invariants: a node is dead when its beat has not changed for `lease_s` of this sweeper's clock and the registry was read
without a pause in that time: an outage of the registry or of the sweeper declares no node dead. A lease is removed only
when the ledger has its record; any number of sweepers, whenever they crash, settle it once. An unreadable lease stays
in the registry, is reported, and delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from proxy.billing.record import UsageRecord
from proxy.delivery.leases import LeaseParts, LeaseRegistry
from proxy.delivery.observers import SweeperObserver
from proxy.foundation.outage import Outage
from proxy.journal.frames import decode_opened
from proxy.journal.progress import decoded
from proxy.journal.recovery import sweep
from proxy.metering.estimator.estimate import Estimator

LEASE_S = 30.0

# Checks within the time of a lease, and their longest interval: with a long lease, the metric of nodes stays current.
_CHECKS_PER_LEASE = 10
CHECK_S_MAX = 3.0

# Records of one transaction, as in the settler.
RECORDS_MAX = 250


async def _no_reservations(_node: str, _settled: Collection[str]) -> None:
    """No-op, the default of a sweeper without budgets."""


@dataclass(slots=True)
class _NodeState:
    """The last observed state of one node."""

    beat: str
    since: float
    """the time at which this beat was first observed"""
    parked: bool = False
    """True if the node is dead and swept; only unreadable leases are left"""


class Sweeper:
    """`run` it in every worker; `check` is one step of it."""

    def __init__(
        self,
        registry: LeaseRegistry,
        settle: Callable[[Sequence[UsageRecord]], Awaitable[None]],
        estimator: Estimator,
        *,
        lease_s: float = LEASE_S,
        monotonic: Callable[[], float],
        observer: SweeperObserver,
        release: Callable[[str, Collection[str]], Awaitable[None]] = _no_reservations,
    ) -> None:
        """`settle`: returns when the ledger has committed the records, at most RECORDS_MAX a call. `release`: releases
        the budget reservations of a dead node, except for these exchanges, which are settled. Both raise OSError."""
        self._registry = registry
        self._settle = settle
        self._estimator = estimator
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._observer = observer
        self._release = release
        self._states: dict[str, _NodeState] = {}
        self._checked_at = monotonic()
        self._checking, self._sweeping = Outage(observer), Outage(observer)

    async def run(self) -> None:
        """Check periodically until cancelled; no error stops it."""
        while True:
            await self.check()
            await asyncio.sleep(min(self._lease_s / _CHECKS_PER_LEASE, CHECK_S_MAX))

    async def check(self) -> None:
        """Read the beats of all nodes, and sweep dead nodes. Never raises."""
        started_at = self._monotonic()
        try:
            nodes = await self._registry.nodes()
        except Exception as error:  # noqa: BLE001  whatever the error is, the next check tries again
            self._states.clear()
            self._checking.began(error)
            return
        self._checking.over()
        self._observe(nodes)
        self._observer.checked(len(nodes))
        dead = sorted(node for node, state in self._states.items() if self._is_dead(state, started_at))
        if all([await self._swept(node, self._states[node]) for node in dead]):
            self._sweeping.over()

    def _observe(self, nodes: Mapping[str, str]) -> None:
        """Record each node's beat, and the time since which the beat is unchanged."""
        now = self._monotonic()
        if now - self._checked_at > self._lease_s / 2:  # this sweeper or the registry paused: beats may be outdated
            self._states.clear()
        self._checked_at = now
        for node in self._states.keys() - nodes.keys():
            del self._states[node]
        for node, beat in nodes.items():
            state = self._states.get(node)
            if state is None or state.beat != beat:
                self._states[node] = _NodeState(beat, now)

    def _is_dead(self, state: _NodeState, checked_at: float) -> bool:
        return not state.parked and checked_at - state.since >= self._lease_s

    async def _swept(self, node: str, state: _NodeState) -> bool:
        """Sweep a node. False: the sweep failed and is retried; other nodes are still swept."""
        try:
            await self._sweep(node, state)
        except Exception as error:  # noqa: BLE001  the registry or the ledger is down, or a bug
            self._sweeping.began(error)
            return False
        return True

    async def _sweep(self, node: str, state: _NodeState) -> None:
        records: dict[str, UsageRecord] = {}
        damaged: dict[str, str] = {}
        for exchange_id, parts in sorted((await self._registry.of(node)).items()):
            try:
                records[exchange_id] = self._record(exchange_id, parts)
            except Exception as error:  # noqa: BLE001  a lease that triggers a bug must not block the others
                damaged[exchange_id] = _message(error)
        names = list(records)
        for at in range(0, len(names), RECORDS_MAX):
            damaged |= await self._settle_batch([records[name] for name in names[at : at + RECORDS_MAX]])
        settled = [name for name in names if name not in damaged]
        await self._release(node, settled)
        if damaged:
            await self._registry.drop(node, settled)
            state.parked = True
        else:
            await self._registry.dismiss(node, state.beat)
        if settled:
            self._observer.swept(node, [records[name] for name in settled])
        for exchange_id, why in damaged.items():
            self._observer.damaged(node, exchange_id, why)

    async def _settle_batch(self, records: Sequence[UsageRecord]) -> dict[str, str]:
        """Exchange id → reason, for records that cannot be settled. Raises OSError: the ledger is unavailable."""
        try:
            await self._settle(records)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  one of them triggers a bug: settle the others without it
            if len(records) == 1:
                return {records[0].opened.exchange_id: _message(error)}
            alone = [await self._settle_batch([record]) for record in records]
            return {exchange_id: why for one in alone for exchange_id, why in one.items()}
        return {}

    def _record(self, exchange_id: str, parts: LeaseParts) -> UsageRecord:
        """The record of a lease. Raises ValueError, or any error of a bug."""
        opened = decode_opened(parts.opened or b"")
        progress = decoded(parts.progress) if parts.progress else None
        if opened.exchange_id != exchange_id or (progress is not None and progress.exchange_id != exchange_id):
            raise ValueError("the lease belongs to another exchange")
        return sweep(opened, progress, self._estimator)


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
