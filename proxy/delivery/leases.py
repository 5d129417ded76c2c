"""What runs on each machine, told to the others: should it never come back, a sweeper settles from this.

Law: an exchange is on the board from a tick after it began until its record is in the queue, with a progress that is
at most `renew_s` old while the board can be reached. Nothing waits for the board: it may be away, slow, or forget
everything; what it lost is announced again. The running streams pay one dict operation at each end of an exchange.

A beat is `epoch.count`, another one at each renewal: a node is alive while its beat changes. No clocks are compared.
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
from proxy.foundation.outage import Listener, Outage
from proxy.journal.frames import opened_payload
from proxy.journal.progress import name_of

# An exchange that is over sooner than this is never announced: most errors, and answers from a cache.
ANNOUNCE_S = 0.25

# What a dead machine had delivered since its last renewal is not billed: 3 s are some 200 tokens of a stream. Each
# renewal of 10,000 streams is 3 MB.
RENEW_S = 3.0

# Leases of each kind in one write: 200 new ones hold the loop for 1 ms, 200 that moved for 0.4 ms.
SLICE = 200

# The last words of a node that stops; without them a sweeper looks after it in vain, and that is all.
LEAVE_S = 5.0


class LeaseParts(msgspec.Struct, frozen=True):
    """A lease in writing."""

    opened: bytes | None
    """the `Opened` as JSON; None in a renewal: as it was announced"""
    progress: bytes
    """the bytes of its progress slot; empty: not known"""


class LeaseCount(msgspec.Struct, frozen=True, gc=False):
    """How a node stands on the board."""

    leases: int
    """so many are there now; -1: of some there is only a part"""
    beat: str | None
    """what was its beat before; None: the board did not know the node"""


class LeaseRegistry(Protocol):
    """Where nodes announce what they run. Every method raises QueueUnavailable (an OSError)."""

    async def renew(
        self, node: str, beat: str, changed: Mapping[str, LeaseParts], ended: Collection[str]
    ) -> LeaseCount:
        """The node is alive, these leases are new or have moved, these are over. If it raises, all or part was done."""

    async def nodes(self) -> Mapping[str, str]:
        """Every node → its last beat. Raises also while beats could be read, but not be written."""

    async def ids(self, node: str) -> set[str]:
        """The exchanges of which anything is there."""

    async def counts(self, nodes: Collection[str]) -> Mapping[str, int]:
        """How many leases each of these has, give or take a few."""

    async def of(self, node: str) -> Mapping[str, LeaseParts]:
        """The leases that were announced, each whole, as they were at one instant."""

    async def opened(self, exchange_id: str) -> bytes | None:
        """What was announced of it, by whichever node; None: nothing, or it is over."""

    async def drop(self, node: str, exchange_ids: Collection[str]) -> None:
        """These leases are settled."""

    async def dismiss(self, node: str, beat: str) -> None:
        """The node with all its leases is no more; nothing happens if it has had another beat since."""


class Slots(Protocol):
    """The progress table."""

    def raw(self, index: int) -> bytes: ...


class _Lease:
    """One exchange, as it was last written to the board."""

    __slots__ = ("_name", "opened", "progress")

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.progress = b""
        self._name = name_of(opened.exchange_id)

    def moved(self, slots: Slots) -> bool:
        """Look at the slot: True if it says something new. It may be somebody else's once the exchange has ended."""
        now = slots.raw(self.opened.slot)
        if now == self.progress or not now.startswith(self._name):
            return False
        self.progress = now
        return True


class LeaseKeeper:
    """Keeps this node's leases on the board. `run` it; `opened` and `ended` are the hot path; `leave` at the end."""

    def __init__(
        self,
        board: LeaseRegistry,
        slots: Slots,
        *,
        node: str,
        epoch: int,
        caught_up: Callable[[], bool],
        observer: Listener,
        renew_s: float = RENEW_S,
        announce_s: float = ANNOUNCE_S,
    ) -> None:
        """`caught_up`: True once the ledger has all that was left to do when this run began, so that leases of an
        earlier run are over. `observer`: told of outages of the board."""
        self._board = board
        self._slots = slots
        self._node = node
        self._epoch = epoch
        self._caught_up = caught_up
        self._away = Outage(observer)
        self._ticking = asyncio.Lock()
        self._renew_s = renew_s
        self._announce_s = announce_s
        self._new: dict[str, Opened] = {}
        """not announced yet"""
        self._held: dict[str, _Lease] = {}
        """announced, or tried to"""
        self._unsure: dict[str, None] = {}
        """those of `_held` to announce again: a write failed, or the board forgot"""
        self._over: set[str] = set()
        """to be taken off the board"""
        self._strangers: set[str] = set()
        """on the board, but not of this run, or their end was lost on the way"""
        self._turn: list[str] = []
        """whose progress is looked at next; a round takes `renew_s`"""
        self._share = SLICE
        """so many of a round at each tick"""
        self._beats = 0
        self._known: int | None = None
        """the last beat that the board is known to have had; None: nothing is known"""
        self._forgot = True
        self._due_at = self._round_at = self._stock_at = 0.0

    def opened(self, opened: Opened) -> None:
        """An exchange began, or goes on with another provider: then it is announced again. Hot path."""
        lease = self._held.get(opened.exchange_id)
        if lease is None:
            self._new[opened.exchange_id] = opened
        else:
            lease.opened = opened
            self._unsure[opened.exchange_id] = None

    def ended(self, exchange_id: str) -> None:
        """Its record is in the queue. Hot path; also for exchanges of an earlier run."""
        if self._new.pop(exchange_id, None) is None:
            self._over.add(exchange_id)

    @property
    def held(self) -> int:
        """Leases that the board has, or should have."""
        return len(self._held)

    async def run(self) -> None:
        """Until it is cancelled."""
        pause_s = self._announce_s
        while True:
            try:
                await self.tick()
            except Exception as error:  # noqa: BLE001  the board is away, or a bug: to be seen, not to end all leases
                self._away.began(error)
                pause_s = min(2 * pause_s, self._renew_s)
            else:
                self._away.over()
                pause_s = self._announce_s
            await asyncio.sleep(pause_s)

    async def leave(self) -> None:
        """A clean stop, after `run` was cancelled. Unless something is left to settle, the node is no more.

        Never raises: what it cannot say, a sweeper finds out.
        """
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                self._due_at = 0.0  # a beat that is known to have arrived
                await self.tick()
                if not self._new and not self._held and self._caught_up():
                    await self._board.dismiss(self._node, self._beat)

    async def tick(self) -> None:
        """Write what has changed, and a beat at least every `renew_s`. Raises QueueUnavailable: the rest waits."""
        async with self._ticking:  # `leave` comes while the last one is still being cancelled
            await self._tick()

    async def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._forgot and now >= self._stock_at:
            self._stock_at = now + self._renew_s  # a board that is never as it should be is not told all at each tick
            await self._take_stock()
        if self._strangers and self._caught_up():
            self._over |= self._strangers
        looks = self._looks(now)
        while self._over or self._new or self._unsure or looks or now >= self._due_at:
            await self._write(looks[:SLICE])
            del looks[:SLICE]
            self._due_at = now + self._renew_s

    def _looks(self, now: float) -> list[str]:
        """Whose progress to look at in this tick: a share of them all, so that nothing comes in bursts."""
        if not self._turn and now >= self._round_at:
            self._round_at = now + self._renew_s
            self._turn = list(self._held)
            self._share = max(SLICE, ceil(len(self._turn) * self._announce_s / self._renew_s))
        looks = self._turn[-self._share :]
        del self._turn[-self._share :]
        return looks

    async def _take_stock(self) -> None:
        """Find out what the board has, and announce everything again."""
        there = await self._board.ids(self._node)
        self._strangers = there - self._held.keys()
        self._unsure = dict.fromkeys(self._held)
        self._known = None
        self._forgot = False

    async def _write(self, looks: list[str]) -> None:
        """One slice: up to SLICE leases that are over, SLICE that are announced, and these looks."""
        over = list(islice(self._over, SLICE))
        for exchange_id in over:
            self._held.pop(exchange_id, None)
            self._unsure.pop(exchange_id, None)
            self._strangers.discard(exchange_id)
        changed = {**self._moved(looks), **self._announced()}
        self._beats += 1
        try:
            standing = await self._board.renew(self._node, self._beat, changed, over)
        except BaseException:  # cancelled too: what the board has of this is not known
            self._unsure.update(dict.fromkeys(changed))
            raise
        self._over.difference_update(over)
        for exchange_id in changed:
            self._unsure.pop(exchange_id, None)
        self._compare(standing)

    def _announced(self) -> dict[str, LeaseParts]:
        """Up to SLICE leases, whole: those that must be announced again, then new ones."""
        for exchange_id in list(islice(self._new, max(0, SLICE - len(self._unsure)))):
            self._held[exchange_id] = _Lease(self._new.pop(exchange_id))
            self._unsure[exchange_id] = None
        whole: dict[str, LeaseParts] = {}
        for exchange_id in islice(self._unsure, SLICE):
            lease = self._held[exchange_id]
            lease.moved(self._slots)
            whole[exchange_id] = LeaseParts(opened_payload(lease.opened), lease.progress)
        return whole

    def _moved(self, looks: list[str]) -> dict[str, LeaseParts]:
        leases = ((exchange_id, self._held.get(exchange_id)) for exchange_id in looks)
        return {
            exchange_id: LeaseParts(None, lease.progress)
            for exchange_id, lease in leases
            if lease is not None and lease.moved(self._slots)
        }

    def _compare(self, standing: LeaseCount) -> None:
        """Does the board have what we believe? A failover may undo the last writes, and FLUSHALL all of them."""
        undone = self._known is not None and not self._is_ours(standing.beat)
        uneven = not self._unsure and standing.leases != len(self._held) + len(self._strangers)
        self._forgot = self._forgot or undone or uneven
        self._known = self._beats

    @property
    def _beat(self) -> str:
        return f"{self._epoch}.{self._beats}"

    def _is_ours(self, beat: str | None) -> bool:
        """True for the last beat that is known to have arrived, and for later ones of which the answer was lost."""
        epoch, _, count = (beat or "").partition(".")
        assert self._known is not None
        return epoch == str(self._epoch) and count.isdecimal() and self._known <= int(count) < self._beats


class LocalLeases:
    """A board in memory, for proxies and sweepers on one event loop."""

    def __init__(self) -> None:
        self._beats: dict[str, str] = {}
        self._leases: dict[str, dict[str, LeaseParts]] = {}

    async def renew(
        self, node: str, beat: str, changed: Mapping[str, LeaseParts], ended: Collection[str]
    ) -> LeaseCount:
        """See LeaseBoard."""
        before = self._beats.get(node)
        self._beats[node] = beat
        leases = self._leases.setdefault(node, {})
        for exchange_id in ended:
            leases.pop(exchange_id, None)
        for exchange_id, parts in changed.items():
            known = leases.get(exchange_id)
            opened = parts.opened if parts.opened is not None or known is None else known.opened
            leases[exchange_id] = LeaseParts(opened, parts.progress)
        whole = all(parts.opened is not None for parts in leases.values())
        return LeaseCount(len(leases) if whole else -1, before)

    async def nodes(self) -> Mapping[str, str]:
        """See LeaseBoard."""
        return dict(self._beats)

    async def ids(self, node: str) -> set[str]:
        """See LeaseBoard."""
        return set(self._leases.get(node, ()))

    async def counts(self, nodes: Collection[str]) -> Mapping[str, int]:
        """See LeaseBoard."""
        return {node: len(self._leases.get(node, ())) for node in nodes}

    async def of(self, node: str) -> Mapping[str, LeaseParts]:
        """See LeaseBoard."""
        leases = self._leases.get(node, {})
        return {exchange_id: parts for exchange_id, parts in leases.items() if parts.opened is not None}

    async def opened(self, exchange_id: str) -> bytes | None:
        """See LeaseBoard."""
        found = (leases[exchange_id].opened for leases in self._leases.values() if exchange_id in leases)
        return next((one for one in found if one is not None), None)

    async def drop(self, node: str, exchange_ids: Collection[str]) -> None:
        """See LeaseBoard."""
        for exchange_id in exchange_ids:
            self._leases.get(node, {}).pop(exchange_id, None)

    async def dismiss(self, node: str, beat: str) -> None:
        """See LeaseBoard."""
        if self._beats.get(node) == beat:
            del self._beats[node]
            self._leases.pop(node, None)
