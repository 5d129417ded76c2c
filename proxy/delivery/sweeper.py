"""Settles what nobody closed: the exchanges of a machine that does not come back.

Law: a node is dead when its beat has not changed for `lease_s` of this sweeper's own clock, and the board was seen
without a pause in that time: an outage of the board, or of the sweeper, declares nobody dead. A lease leaves the board
only when the ledger has its record; any number of sweepers, dying anywhere in between, settle it once. What cannot be
read here stays on the board, is said, and holds up nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.billing.record import UsageRecord
from proxy.delivery.leases import LeaseParts, LeaseRegistry
from proxy.foundation.outage import Listener, Outage
from proxy.journal.frames import decode_opened
from proxy.journal.progress import decoded
from proxy.journal.recovery import Estimator, sweep

LEASE_S = 30.0

# So many looks in the time of a lease; and not less often than this, so that a long lease shows who lives.
_LOOKS_PER_LEASE = 10
LOOK_S_MAX = 3.0

# Records of one transaction, as the settler's.
RECORDS_MAX = 250


async def _nothing_held(_node: str, _spared: Collection[str]) -> None:
    """Where there are no budgets."""


class FixedEstimator(Estimator, Protocol):
    """An estimator that has learned nothing, and never will: every sweeper must say the same of the same lease."""

    @property
    def VERSION(self) -> str: ...  # noqa: N802  as proxy.metering.estimator.estimate names it


class Observer(Listener, Protocol):
    """Who wants to know how it goes: metrics, and the log. Of outages of the board and of the ledger, too."""

    def looked(self, nodes: int) -> None:
        """The board was read; so many nodes are on it."""

    def swept(self, node: str, records: Sequence[UsageRecord]) -> None:
        """The node is dead, and the ledger has these. (Some of them it may have had before.)"""

    def damaged(self, node: str, exchange_id: str, why: str) -> None:
        """A lease of a dead node that cannot be read here: an alarm. It stays on the board, for a version that can."""


@dataclass(slots=True)
class _Watch:
    """One node, as it was seen."""

    beat: str
    since: float
    """when this beat was first seen"""
    parked: bool = False
    """it is dead and swept; what is left could not be read"""


class Sweeper:
    """`run` it in every worker; `look` is one step of it."""

    def __init__(
        self,
        board: LeaseRegistry,
        settle: Callable[[Sequence[UsageRecord]], Awaitable[None]],
        estimator: FixedEstimator,
        *,
        lease_s: float = LEASE_S,
        monotonic: Callable[[], float],
        observer: Observer,
        release: Callable[[str, Collection[str]], Awaitable[None]] = _nothing_held,
    ) -> None:
        """`settle`: returns when the ledger has them for good, at most RECORDS_MAX at a time. `release`: lets go of
        what a dead node holds of budgets, but for these exchanges, which the ledger has now. Both raise OSError."""
        self._board = board
        self._settle = settle
        self._estimator = estimator
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._observer = observer
        self._release = release
        self._watches: dict[str, _Watch] = {}
        self._seen_at = monotonic()
        self._looking, self._sweeping = Outage(observer), Outage(observer)

    async def run(self) -> None:
        """Until it is cancelled; nothing else stops it."""
        while True:
            await self.look()
            await asyncio.sleep(min(self._lease_s / _LOOKS_PER_LEASE, LOOK_S_MAX))

    async def look(self) -> None:
        """See who lives, and sweep after the dead. Never raises."""
        asked_at = self._monotonic()
        try:
            nodes = await self._board.nodes()
        except Exception as error:  # noqa: BLE001  whatever is wrong with the board, there will be another look
            self._watches.clear()
            self._looking.began(error)
            return
        self._looking.over()
        self._watch(nodes)
        self._observer.looked(len(nodes))
        dead = sorted(node for node, watch in self._watches.items() if self._is_dead(watch, asked_at))
        if all([await self._swept(node, self._watches[node]) for node in dead]):
            self._sweeping.over()

    def _watch(self, nodes: Mapping[str, str]) -> None:
        """Remember who was seen, and since when with this beat."""
        now = self._monotonic()
        if now - self._seen_at > self._lease_s / 2:  # we were away, or the board answered late: so may the nodes be
            self._watches.clear()
        self._seen_at = now
        for node in self._watches.keys() - nodes.keys():
            del self._watches[node]
        for node, beat in nodes.items():
            watch = self._watches.get(node)
            if watch is None or watch.beat != beat:
                self._watches[node] = _Watch(beat, now)

    def _is_dead(self, watch: _Watch, asked_at: float) -> bool:
        return not watch.parked and asked_at - watch.since >= self._lease_s

    async def _swept(self, node: str, watch: _Watch) -> bool:
        """Sweep after it. False: it must be tried again; that keeps no other from being swept."""
        try:
            await self._sweep(node, watch)
        except Exception as error:  # noqa: BLE001  the board or the ledger is away, or a bug
            self._sweeping.began(error)
            return False
        return True

    async def _sweep(self, node: str, watch: _Watch) -> None:
        records: dict[str, UsageRecord] = {}
        damaged: dict[str, str] = {}
        for exchange_id, parts in sorted((await self._board.of(node)).items()):
            try:
                records[exchange_id] = self._record(exchange_id, parts)
            except Exception as error:  # noqa: BLE001  a lease that trips a bug must not lose the others
                damaged[exchange_id] = _words(error)
        names = list(records)
        for at in range(0, len(names), RECORDS_MAX):
            damaged |= await self._settle_batch([records[name] for name in names[at : at + RECORDS_MAX]])
        settled = [name for name in names if name not in damaged]
        await self._release(node, settled)
        if damaged:
            await self._board.drop(node, settled)
            watch.parked = True
        else:
            await self._board.dismiss(node, watch.beat)
        if settled:
            self._observer.swept(node, [records[name] for name in settled])
        for exchange_id, why in damaged.items():
            self._observer.damaged(node, exchange_id, why)

    async def _settle_batch(self, records: Sequence[UsageRecord]) -> dict[str, str]:
        """Those that cannot be settled, and why. Raises OSError: the ledger is away."""
        try:
            await self._settle(records)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  one of them trips a bug: the others go without it
            if len(records) == 1:
                return {records[0].opened.exchange_id: _words(error)}
            alone = [await self._settle_batch([record]) for record in records]
            return {exchange_id: why for one in alone for exchange_id, why in one.items()}
        return {}

    def _record(self, exchange_id: str, parts: LeaseParts) -> UsageRecord:
        """What a lease comes to. Raises ValueError, or what a bug raises."""
        opened = decode_opened(parts.opened or b"")
        progress = decoded(parts.progress) if parts.progress else None
        if opened.exchange_id != exchange_id or (progress is not None and progress.exchange_id != exchange_id):
            raise ValueError("it is another exchange's")
        return sweep(opened, progress, self._estimator, estimator_version=self._estimator.VERSION)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
