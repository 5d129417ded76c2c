"""Looks up the value ids of dimension values, and creates those of new ones.

Invariants: the event loop never waits for the database. A request waits at most `WAIT_S` for its ids; a value without
an id by then is an overflow, and while the ledger does not answer no other request waits. A key creates a bounded
number of values an hour, in each process; of these, a branch of narrowed keys creates at most as many as it leaves to
others, so that the holder of one key cannot use them up. Memory does not grow with the number of
values. An id is looked up again within `KEPT_S`, so that an erased value gets a new one. The cap of a run is kept
together with its id; another process may have lowered it within the last `KEPT_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from functools import partial
from typing import NamedTuple, Protocol

from proxy.billing.dimensions import OVERFLOW, RUN, Dimensions, SentDimensions
from proxy.billing.keys import ApiKey, KeyCap
from proxy.billing.money import Nusd
from proxy.ledger.dimensions.values import DimensionValue
from proxy.ledger.run_caps import RunOfKey
from proxy.storage.executor import BoundedExecutor

WAIT_S = 1.0
# A process that was stopped wakes up after its deadlines. Its sleep uses up one of these parts at most, so that an
# answer that is on its way still counts.
WAIT_PARTS = 4
# After a failure or a timeout.
PAUSE_S = 5.0
KEPT_S = 300.0
# Each of the two halves of the cache; a value takes some 300 bytes.
HALF_MAX = 16_384
# In one call; more that wait are an overflow.
BATCH_MAX = 1_000


class Overflow(StrEnum):
    """The reason of an overflow."""

    NEW_VALUES = "new_values"
    """the key has had as many new values as it may within an hour"""
    UNAVAILABLE = "unavailable"
    """the ledger did not answer in time"""


class ValueStore(Protocol):
    """The used methods of `DimensionValues`, and the caps of runs. Each method raises LedgerUnavailable."""

    def caps(self, value_ids: Collection[str]) -> Mapping[RunOfKey, Nusd]:
        """The caps of the runs with these value ids, of all keys."""

    def lower_cap(self, run: RunOfKey, cap_nusd: Nusd) -> Nusd:
        """Set or lower the cap of a run. Returns the cap that applies."""

    def ids(
        self, wanted: Iterable[DimensionValue], may_create: Callable[[DimensionValue], bool]
    ) -> Mapping[DimensionValue, str]: ...


class Sender(NamedTuple):
    """Who sends a value."""

    key_id: str
    branch_ids: tuple[str, ...] = ()
    """see `ApiKey`"""


class _Batch:
    """Values whose ids are looked up in one call."""

    def __init__(self) -> None:
        self.wanted: dict[DimensionValue, dict[Sender, None]] = {}
        """value → those who sent it, in order"""
        self.ids: Mapping[DimensionValue, str] = {}
        """value → its id; OVERFLOW: it may not be created. Empty: the call failed"""
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class DimensionIds:
    """The value ids of requests. `close` it before the process ends."""

    def __init__(
        self,
        values: ValueStore,
        overflowed: Callable[[Overflow], None],
        *,
        new_values_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`overflowed`: called for each overflow. `clock`: seconds."""
        self.new_values_max = new_values_max
        """limit of new values of a key within an hour"""
        self._values = values
        self._overflowed = overflowed
        self._clock = clock
        self._threads = BoundedExecutor(1, name="dimensions")
        self._young: dict[DimensionValue, str] = {}
        self._old: dict[DimensionValue, str] = {}
        """the two halves of the cache: of the current half of KEPT_S and of the half before; shorter times if they are
        full"""
        self._refused: dict[tuple[Sender, DimensionValue], None] = {}
        """in this half: new values that their sender may not create"""
        self._caps: dict[RunOfKey, Nusd] = {}
        """the caps of runs whose ids are in the cache"""
        self._old_caps: dict[RunOfKey, Nusd] = {}
        """those before the cache was emptied: for requests whose ids had just been looked up"""
        self._half = 0
        """the number of this half since the clock's zero"""
        self._next: _Batch | None = None
        self._running: _Batch | None = None
        self._is_late = False
        """a request has waited WAIT_S for the running call without a result"""
        self._paused_until = float("-inf")
        self._created: Counter[str] = Counter()
        """id of a key or a branch → its new values in this hour, with those of all branches in it; used by the thread
        only"""
        self._hour = 0

    async def of(self, key: ApiKey, sent: SentDimensions) -> Dimensions:
        """The value ids of these values. Never raises for an outage."""
        self._forget_old()
        wanted = {name: DimensionValue(key.project_id, name, value) for name, value in sent.items()}
        sender = Sender(key.key_id, key.branch_ids)
        known = {one: found for one in wanted.values() if (found := self._known(sender, one))}
        if missing := [one for one in wanted.values() if one not in known]:
            known |= await self._asked(sender, missing)
        ids = {name: known.get(one) for name, one in wanted.items()}
        for value_id in ids.values():
            if value_id is None:
                self._overflowed(Overflow.UNAVAILABLE)
            elif value_id == OVERFLOW:
                self._overflowed(Overflow.NEW_VALUES)
        return {name: value_id or OVERFLOW for name, value_id in ids.items()}

    def _known(self, sender: Sender, value: DimensionValue) -> str | None:
        found = self._young.get(value) or self._old.get(value)
        return OVERFLOW if found is None and (sender, value) in self._refused else found

    def cap(self, run: RunOfKey) -> Nusd | None:
        """The cap of a run whose id was just returned."""
        known = self._caps.get(run)
        return self._old_caps.get(run) if known is None else known

    async def lower_cap(self, run: RunOfKey, cap_nusd: Nusd) -> None:
        """Set the cap of a run, or lower it. Raises OSError: the ledger does not answer in time."""
        known = self.cap(run)
        if known is not None and known <= cap_nusd:
            return
        if run[1] == OVERFLOW or self._is_late or self._clock() < self._paused_until:
            raise OSError("dimensions: the cap of a run cannot be kept")
        async with asyncio.timeout(WAIT_S):  # a TimeoutError is an OSError
            lowered = await self._threads.run(self._values.lower_cap, run, cap_nusd)
        self._keep({run: lowered})

    async def keep_cap(self, key: ApiKey, of_key: KeyCap) -> None:
        """Store a cap of a narrowed key, by which the ledger counts its entries. Raises OSError: the ledger does not
        answer in time, or the key has had too many new values within an hour."""
        cap = key.key_id, of_key.value_id
        if cap in self._caps:
            return
        if self._is_late or self._clock() < self._paused_until:
            raise OSError("dimensions: the cap of a narrowed key cannot be stored")
        async with asyncio.timeout(WAIT_S):
            if not await self._threads.run(self._store_cap, Sender(key.key_id, key.branch_ids), of_key):
                self._overflowed(Overflow.NEW_VALUES)
                raise OSError("dimensions: too many new caps of narrowed keys")
        self._keep({cap: of_key.nusd})

    def _store_cap(self, sender: Sender, of_key: KeyCap) -> bool:
        """(In the thread.) False: it is one too many."""
        cap = sender.key_id, of_key.value_id
        if cap not in self._values.caps([of_key.value_id]) and not self._may_create(sender):
            return False
        self._values.lower_cap(cap, of_key.nusd)
        return True

    def _keep(self, caps: Mapping[RunOfKey, Nusd]) -> None:
        """Keep caps that were read or stored. A cap is never raised."""
        if len(self._caps) >= 2 * HALF_MAX:
            self._young, self._old = {}, {}  # their caps are read with them again
            self._caps, self._old_caps = {}, self._caps
        for cap, nusd in caps.items():
            known = self.cap(cap)
            self._caps[cap] = nusd if known is None else min(nusd, known)

    def close(self) -> None:
        """Wait for the running call."""
        self._threads.close()

    async def _asked(self, sender: Sender, missing: Iterable[DimensionValue]) -> Mapping[DimensionValue, str]:
        if self._is_late or self._clock() < self._paused_until:
            return {}
        batch = self._next = self._next or _Batch()
        if len(batch.wanted) >= BATCH_MAX:
            return {}
        for one in missing:
            batch.wanted.setdefault(one, {})[sender] = None
        if self._running is None:
            self._ask()
        for _ in range(WAIT_PARTS):
            if not batch.answered.done():
                await asyncio.wait([batch.answered], timeout=WAIT_S / WAIT_PARTS)
        if not batch.answered.done():
            self._is_late = self._running is not None
        return batch.ids

    def _ask(self) -> None:
        """Look up the ids of the next batch, if there is one. To be called while no call is running."""
        batch, self._next, self._running, self._is_late = self._next, None, self._next, False
        if batch is not None:
            self._threads.run(self._read, batch).add_done_callback(partial(self._learn, batch))

    def _read(self, batch: _Batch) -> tuple[dict[DimensionValue, str], Mapping[RunOfKey, Nusd]]:
        """(In the thread.) The ids of all values of a batch, and the caps of its runs."""
        new = set[DimensionValue]()

        def may_create(value: DimensionValue) -> bool:
            new.add(value)
            return any(map(self._may_create, batch.wanted[value]))

        found = self._values.ids(list(batch.wanted), may_create)
        ids = {value: found.get(value, OVERFLOW) for value in batch.wanted}
        runs = [value_id for value, value_id in ids.items() if value.dimension == RUN and value not in new]
        return ids, self._values.caps(runs) if runs else {}

    def _may_create(self, sender: Sender) -> bool:
        hour = int(self._clock() // 3600)
        if hour != self._hour:
            self._created.clear()
            self._hour = hour
        left = self.new_values_max - self._created[sender.key_id]
        if left <= 0:
            return False
        for branch_id in sender.branch_ids:
            if self._created[branch_id] >= left:
                return False
            left -= self._created[branch_id]
        self._created.update({sender.key_id, *sender.branch_ids})
        return True

    def _learn(
        self, batch: _Batch, reading: asyncio.Future[tuple[dict[DimensionValue, str], Mapping[RunOfKey, Nusd]]]
    ) -> None:
        try:
            if reading.cancelled():  # closed
                return
            batch.ids, caps = reading.result()
            self._forget_old()
            self._keep(caps)
            if len(self._young) >= HALF_MAX:
                self._young, self._old = {}, self._young
            self._young.update((value, found) for value, found in batch.ids.items() if found != OVERFLOW)
            if len(self._refused) >= HALF_MAX:
                self._refused = {}
            of_senders = ((value, senders) for value, senders in batch.wanted.items() if batch.ids[value] == OVERFLOW)
            self._refused.update(((one, value), None) for value, senders in of_senders for one in senders)
        except OSError:
            self._paused_until = self._clock() + PAUSE_S
        finally:
            if not batch.answered.done():
                batch.answered.set_result(None)
            self._ask()

    def _forget_old(self) -> None:
        half = int(self._clock() // (KEPT_S / 2))
        if half != self._half:
            self._young, self._old = {}, self._young if half == self._half + 1 else {}
            self._half, self._refused = half, {}
