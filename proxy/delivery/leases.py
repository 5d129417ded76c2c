"""Leases on the running exchanges of each node: if the node dies, a sweeper settles its exchanges from them.

Invariants: an exchange is in the lease registry from one tick after its beginning until its record is in the queue,
with a progress that is at most `renew_s` old while the registry is reachable. Nothing waits for the registry: it may be
unreachable, slow, or lose all data; lost leases are announced again. The cost to an exchange is one dict operation at
its beginning and one at its end.

A beat is `epoch.count` and changes at each renewal: a node is alive while its beat changes. No clocks are compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import islice
from math import ceil
from typing import Protocol

import msgspec

from proxy.billing.record import Opened
from proxy.foundation.outage import Outage, OutageListener
from proxy.journal.frames import opened_payload
from proxy.journal.progress import ProgressTable, name_of

# A shorter exchange is never announced: most errors, and answers from a cache.
ANNOUNCE_S = 0.25

# Tokens that a dead machine delivered after its last renewal are not billed: about 200 a stream in 3 s. Renewing
# 10,000 streams sends 3 MB.
RENEW_S = 3.0

# Leases of each kind in one write: 200 new ones block the event loop for 1 ms, 200 renewals for 0.4 ms.
SLICE = 200

# Bound on the last write of a node that stops. Without that write, a sweeper later finds nothing left to settle.
LEAVE_S = 5.0


class LeaseParts(msgspec.Struct, frozen=True):
    """The stored parts of a lease."""

    opened: bytes | None
    """the `Opened` as JSON; None in a renewal: unchanged"""
    progress: bytes
    """the bytes of the exchange's progress slot; empty: unknown"""


class LeaseCount(msgspec.Struct, frozen=True, gc=False):
    """The registry's data of a node after a renewal."""

    leases: int
    """the number of leases; -1: some are incomplete"""
    beat: str | None
    """the node's beat before this renewal; None: there was none"""


class LeaseRegistry(Protocol):
    """Stores the leases of all nodes. Every method raises QueueUnavailable (an OSError)."""

    async def renew(
        self, node: str, beat: str, changed: Mapping[str, LeaseParts], ended: Collection[str]
    ) -> LeaseCount:
        """Store the beat and the new or changed leases, remove the ended ones. If it raises, all or part was done."""

    async def nodes(self) -> Mapping[str, str]:
        """Every node → its last beat. Raises also if the registry can be read but not written."""

    async def ids(self, node: str) -> set[str]:
        """The exchanges with a lease, complete or not."""

    async def counts(self, nodes: Collection[str]) -> Mapping[str, int]:
        """The approximate number of leases of each node."""

    async def of(self, node: str) -> Mapping[str, LeaseParts]:
        """The announced leases of a node, complete, at one instant."""

    async def opened(self, exchange_id: str) -> bytes | None:
        """The announced `Opened` of an exchange of any node; None: never announced, or ended."""

    async def drop(self, node: str, exchange_ids: Collection[str]) -> None:
        """Remove these leases: their exchanges are settled."""

    async def dismiss(self, node: str, beat: str) -> None:
        """Remove the node and all its leases, unless its beat has changed."""


class _Lease:
    """One exchange, as last written to the registry."""

    __slots__ = ("_name", "opened", "progress")

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.progress = b""
        self._name = name_of(opened.exchange_id)

    def update(self, table: ProgressTable) -> bool:
        """Read the slot: True if the progress has changed. After the exchange's end, another exchange may have its
        slot."""
        current = table.raw(self.opened.slot)
        if current == self.progress or not current.startswith(self._name):
            return False
        self.progress = current
        return True


class LeaseKeeper:
    """Keeps this node's leases in the registry. `run` it; `opened` and `ended` are the hot path; `leave` at the end."""

    def __init__(
        self,
        registry: LeaseRegistry,
        table: ProgressTable,
        *,
        node: str,
        epoch: int,
        caught_up: Callable[[], bool],
        observer: OutageListener,
        renew_s: float = RENEW_S,
        announce_s: float = ANNOUNCE_S,
        resumed: Collection[Opened] = (),
    ) -> None:
        """`caught_up`: True once the ledger has all records of earlier runs, so that their leases have ended.

        `observer`: receives outages of the registry. `resumed`: exchanges of an earlier run that continue.
        """
        self._registry = registry
        self._table = table
        self._node = node
        self._epoch = epoch
        self._caught_up = caught_up
        self._outage = Outage(observer)
        self._ticking = asyncio.Lock()
        self._renew_s = renew_s
        self._announce_s = announce_s
        self._new: dict[str, Opened] = {}
        """exchanges that are not announced yet"""
        self._leases = {opened.exchange_id: _Lease(opened) for opened in resumed}
        """leases of exchanges that were announced, or whose announcement failed"""
        self._unsure: dict[str, None] = {}
        """leases to announce again, because a write failed or the registry lost data"""
        self._ended: set[str] = set()
        """ended exchanges whose leases are to be removed from the registry"""
        self._stale: set[str] = set()
        """leases in the registry that are of an earlier run, or whose removal failed"""
        self._round: list[str] = []
        """exchanges whose progress is still to be checked in this round, which takes `renew_s`"""
        self._share = SLICE
        """number of exchanges of a round that each tick checks"""
        self._beats = 0
        self._known: int | None = None
        """the last beat that the registry has confirmed; None: none"""
        self._lost = True
        """True if the registry may lack leases: compare with it, and announce all again"""
        self._due_at = self._round_at = self._resync_at = 0.0

    def opened(self, opened: Opened) -> None:
        """Announce an exchange that began, or that moved to another provider. Hot path."""
        lease = self._leases.get(opened.exchange_id)
        if lease is None:
            self._new[opened.exchange_id] = opened
        else:
            lease.opened = opened
            self._unsure[opened.exchange_id] = None

    def ended(self, exchange_id: str) -> None:
        """End the lease of an exchange whose record is in the queue, also of an earlier run. Hot path."""
        if self._new.pop(exchange_id, None) is None:
            self._ended.add(exchange_id)

    @property
    def count(self) -> int:
        """The number of leases that the registry has or should have."""
        return len(self._leases)

    async def run(self) -> None:
        """Renew leases until cancelled."""
        pause_s = self._announce_s
        while True:
            try:
                await self.tick()
            except Exception as error:  # noqa: BLE001  the registry is down, or a bug: report it, keep renewing
                self._outage.began(error)
                pause_s = min(2 * pause_s, self._renew_s)
            else:
                self._outage.over()
                pause_s = self._announce_s
            await asyncio.sleep(pause_s)

    async def leave(self) -> None:
        """Dismiss the node after `run` was cancelled, unless a record is left to settle. Never raises: a sweeper
        settles what remains."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                self._due_at = 0.0  # write a beat, which `dismiss` compares
                await self.tick()
                if not self._new and not self._leases and self._caught_up():
                    await self._registry.dismiss(self._node, self._beat)

    async def tick(self) -> None:
        """Write all changes, and a beat at least every `renew_s`. Raises QueueUnavailable: the rest waits."""
        async with self._ticking:  # `leave` may run while the last tick is being cancelled
            await self._tick()

    async def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._lost and now >= self._resync_at:
            self._resync_at = now + self._renew_s  # bounds the work if the registry's counts never match
            await self._resync()
        if self._stale and self._caught_up():
            self._ended |= self._stale
        to_check = self._to_check(now)
        while self._ended or self._new or self._unsure or to_check or now >= self._due_at:
            await self._write(to_check[:SLICE])
            del to_check[:SLICE]
            self._due_at = now + self._renew_s

    def _to_check(self, now: float) -> list[str]:
        """The exchanges whose progress this tick checks: a share of the round, to spread the load."""
        if not self._round and now >= self._round_at:
            self._round_at = now + self._renew_s
            self._round = list(self._leases)
            self._share = max(SLICE, ceil(len(self._round) * self._announce_s / self._renew_s))
        to_check = self._round[-self._share :]
        del self._round[-self._share :]
        return to_check

    async def _resync(self) -> None:
        """Read the node's lease ids from the registry, and announce all leases again."""
        there = await self._registry.ids(self._node)
        self._stale = there - self._leases.keys()
        self._unsure = dict.fromkeys(self._leases)
        self._known = None
        self._lost = False

    async def _write(self, to_check: list[str]) -> None:
        """Write one slice: up to SLICE ended leases, SLICE announcements, and the changed ones of `to_check`."""
        ended = list(islice(self._ended, SLICE))
        for exchange_id in ended:
            self._leases.pop(exchange_id, None)
            self._unsure.pop(exchange_id, None)
            self._stale.discard(exchange_id)
        changed = {**self._renewed(to_check), **self._announced()}
        self._beats += 1
        try:
            count = await self._registry.renew(self._node, self._beat, changed, ended)
        except BaseException:  # cancelled too: the registry may have applied all, part or nothing
            self._unsure.update(dict.fromkeys(changed))
            raise
        self._ended.difference_update(ended)
        for exchange_id in changed:
            self._unsure.pop(exchange_id, None)
        self._compare(count)

    def _announced(self) -> dict[str, LeaseParts]:
        """Up to SLICE complete leases: leases to announce again, then new ones."""
        for exchange_id in list(islice(self._new, max(0, SLICE - len(self._unsure)))):
            self._leases[exchange_id] = _Lease(self._new.pop(exchange_id))
            self._unsure[exchange_id] = None
        whole: dict[str, LeaseParts] = {}
        for exchange_id in islice(self._unsure, SLICE):
            lease = self._leases[exchange_id]
            lease.update(self._table)
            whole[exchange_id] = LeaseParts(opened_payload(lease.opened), lease.progress)
        return whole

    def _renewed(self, to_check: list[str]) -> dict[str, LeaseParts]:
        leases = ((exchange_id, self._leases.get(exchange_id)) for exchange_id in to_check)
        return {
            exchange_id: LeaseParts(None, lease.progress)
            for exchange_id, lease in leases
            if lease is not None and lease.update(self._table)
        }

    def _compare(self, count: LeaseCount) -> None:
        """Detect lost data: a failover may undo the last writes, and FLUSHALL all of them."""
        undone = self._known is not None and not self._is_ours(count.beat)
        uneven = not self._unsure and count.leases != len(self._leases) + len(self._stale)
        self._lost = self._lost or undone or uneven
        self._known = self._beats

    @property
    def _beat(self) -> str:
        return f"{self._epoch}.{self._beats}"

    def _is_ours(self, beat: str | None) -> bool:
        """True for the last confirmed beat, and for later beats whose answer was lost."""
        epoch, _, count = (beat or "").partition(".")
        assert self._known is not None
        return epoch == str(self._epoch) and count.isdecimal() and self._known <= int(count) < self._beats
