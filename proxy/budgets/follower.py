"""Keeps what gates have spent at what the ledger says. Law: what was spent comes from the ledger, in the order in which
it was settled, each entry once; a hold is let go only when its entry is in every sum.

Any number of followers do this at once, on any number of nodes: the store's cursor decides who was first. While the
store or the ledger is away nothing moves, and it goes on where it was.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import CounterState, SpendDelta, SpendTotal
from proxy.budgets.store import BudgetStore, BudgetsUnavailable
from proxy.foundation.outage import Listener, Outage

# An entry counts, and its hold goes, about so long after it was settled.
FOLLOW_S = 1.0
# What `absorb` takes in one step, about.
CHANGES_MAX = 1_000
# From here on it costs less to read sums anew than to read all that was settled since.
BEHIND_US_MAX = 3_600 * 1_000_000

# How often it is looked whether a hold was left behind, and when one is old enough for that.
TIDY_S, OVERDUE_S = 10.0, 5.0
# A sum that is under way from the ledger to the store arrives sooner than this.
ARRIVED_S = 60.0

# How often sums are compared with the ledger, and how many at a time.
MEASURE_S, MEASURED_MAX = 600.0, 2_000
# Comparisons of a gate, of which one at least finds that nothing moves meanwhile, and all that was on its way is there.
TRIES = 3

# Gates whose sums are read in one transaction, and how many such transactions there are at once.
SUMS_MAX, READERS = 100, 2

SeedRequest = tuple[str, float]
"""a gate's id, and since when; Unix seconds"""


class Ledger(Protocol):
    """The ledger, as far as gates are concerned. Every method raises OSError while it is away. Times: its clock, µs."""

    async def time(self) -> int:
        """Up to when everything is settled."""

    async def sums(self, wants: Sequence[SeedRequest]) -> list[SpendTotal]:
        """What was spent at each, all at one moment."""

    async def changes(self, after_us: int, limit: int) -> tuple[list[SpendDelta], int, int]:
        """What was settled after that, about `limit` entries; up to when that is all; and `time`."""

    async def settled(self, exchange_ids: Collection[str], until_us: int) -> set[str]:
        """Those whose terminal entries were settled by then."""


class Observer(Listener, Protocol):
    """Who wants to know: metrics, and the log. Of outages of the store and of the ledger, too."""

    def absorbed(self, entries: int) -> None:
        """So many more are in the sums."""

    def drift(self, nusd: int) -> None:
        """By so much in all do sums differ from the ledger, among those that were compared: 0, or a bug shows."""


class Follower:
    """One node's. `run` it; `seed` is for admission; `aclose` ends what `seed` began."""

    def __init__(
        self,
        store: BudgetStore,
        ledger: Ledger,
        *,
        on_spent: Callable[[Sequence[CounterState]], Awaitable[None]],
        observer: Observer,
        on_settled: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        """`on_spent`: more was spent at these gates (again is fine); what raises OSError is told again. `on_settled`:
        the ledger has these exchanges; where others follow, too, not all are told here."""
        self._store = store
        self._ledger = ledger
        self._on_spent = on_spent
        self._on_settled = on_settled
        self._observer = observer
        self._outages: defaultdict[str, Outage] = defaultdict(lambda: Outage(observer))
        """of each step"""
        self._untold: set[str] = set()
        """gates at which more was spent"""
        self._measured_to = ""
        self._unseeded: tuple[float, int] | None = None
        """nothing is seeded: when that was seen, in the event loop's time, and the ledger's time then"""
        self._seeding: dict[SeedRequest, asyncio.Future[None]] = {}
        self._queue: list[SeedRequest] = []
        """those of them that no reader has taken yet"""
        self._readers: set[asyncio.Task[None]] = set()

    # -- what was spent, as it comes

    async def run(self) -> None:
        """For ever. Ends by being cancelled."""
        time = asyncio.get_running_loop().time
        tidy_at = measure_at = time()
        while True:
            well = await self._tried(self.follow)
            if well and time() >= tidy_at:
                tidy_at = time() + TIDY_S
                await self._tried(self.tidy)
            if well and time() >= measure_at:
                measure_at = time() + (MEASURE_S if await self._tried(self.measure) else TIDY_S)
            await asyncio.sleep(FOLLOW_S)

    async def follow(self) -> None:
        """Bring all sums up to what the ledger says now, and tell where more was spent. Raises OSError."""
        while (cursor := await self._store.cursor()) is not None:
            changes, until_us, ledger_us = await self._ledger.changes(cursor, CHANGES_MAX)
            if self._on_settled is not None:
                self._on_settled([one.exchange_id for one in changes])
            if until_us < cursor or ledger_us - until_us > BEHIND_US_MAX:  # before: the ledger was put back
                await self._forget(cursor)
            elif until_us > cursor and await self._store.absorb(cursor, changes, until_us):
                self._observer.absorbed(len(changes))
                self._untold.update(*[one.gate_ids for one in changes])
            if until_us == ledger_us:
                break
        await self._tell()

    async def _forget(self, cursor: int) -> None:
        """Unless another follower has done it, and gates are seeded anew."""
        if await self._store.cursor() == cursor:
            await self._store.forget_sums()

    async def _tell(self) -> None:
        telling, self._untold = self._untold, set()
        if telling:
            try:
                await self._on_spent(
                    [one for one in await self._store.counter_states(telling) if one.spent is not None]
                )
            except BaseException:
                self._untold |= telling
                raise

    async def _tried(self, step: Callable[[], Awaitable[None]]) -> bool:
        """False if it failed; that is said once, until it works again."""
        outage = self._outages[step.__name__]
        try:
            await step()
        except Exception as error:  # noqa: BLE001  whatever is wrong, there will be another try
            outage.began(error)
            return False
        outage.over()
        return True

    # -- what was held, and is left behind

    async def tidy(self, older_than_s: float = OVERDUE_S) -> None:
        """Let go of the holds whose entries are in every sum already, whatever came between. Raises OSError."""
        overdue = await self._store.overdue(older_than_s)
        until_us = await self._counted_until()  # after those were seen: what comes later is brought by `absorb`
        if overdue and until_us is not None:
            settled = await self._ledger.settled(overdue, until_us)
            if settled:
                await self._store.release(settled)

    async def _counted_until(self) -> int | None:
        """What was settled by then is in every sum that there is, or will be; None: nobody knows yet."""
        cursor = await self._store.cursor()
        if cursor is not None:
            self._unseeded = None
            return cursor
        now = asyncio.get_running_loop().time()
        if self._unseeded is None or now - self._unseeded[0] >= ARRIVED_S:
            before, self._unseeded = self._unseeded, (now, await self._ledger.time())
            return None if before is None else before[1]
        return None

    # -- sums of gates that are new

    async def seed(self, gates: Sequence[LimitCounter]) -> None:
        """Read from the ledger what was spent there, and tell the store. Whoever asks for the same meanwhile shares it.

        Raises OSError.
        """
        loop = asyncio.get_running_loop()
        waiting = []
        for want in dict.fromkeys((gate.gate_id, gate.since) for gate in gates):
            if want not in self._seeding:
                self._seeding[want] = loop.create_future()
                self._queue.append(want)
            waiting.append(self._seeding[want])
        if self._queue and len(self._readers) < READERS:
            reader = loop.create_task(self._read(), name="seeding")
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        if waiting:
            await asyncio.wait(waiting)  # whoever gives up waiting leaves the others what they wait for
        for one in waiting:
            one.result()

    async def _read(self) -> None:
        while self._queue:
            wants, self._queue = self._queue[:SUMS_MAX], self._queue[SUMS_MAX:]
            try:
                await self._store.seed(await self._ledger.sums(wants))
                await self.tidy(0.0)  # what had ended by then may be in these sums and held, too
            except Exception as error:  # noqa: BLE001  it is for those who wait
                self._seeded(wants, error)
            else:
                self._untold.update(gate_id for gate_id, _ in wants)
                self._seeded(wants, None)

    def _seeded(self, wants: Iterable[SeedRequest], error: Exception | None) -> None:
        for want in wants:
            waiting = self._seeding.pop(want)
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)
                waiting.exception()  # it has been seen, also if nobody waits any more

    async def aclose(self) -> None:
        """End what is being read; whoever waits for it learns that. Never raises."""
        readers = list(self._readers)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        self._queue.clear()
        self._seeded(list(self._seeding), BudgetsUnavailable("it is being shut down"))

    # -- are the sums right?

    async def measure(self) -> None:
        """Compare some of the sums with the ledger, others the next time; and tell of all what was spent, in case
        somebody died who should have told it. Raises OSError."""
        gate_ids = await self._seeded_gates()
        self._untold.update(gate_ids)
        rest = [one for one in gate_ids if one > self._measured_to] or gate_ids
        drift = await self._drift(rest[:MEASURED_MAX])
        self._measured_to = rest[MEASURED_MAX - 1] if len(rest) > MEASURED_MAX else ""
        self._observer.drift(sum(map(abs, drift.values())))

    async def rebuild(self) -> dict[str, int]:
        """Compare all sums with the ledger, and forget them: each is read anew as soon as somebody needs it. → gate →
        by how much the store had more than the ledger, in nUSD; a gate that never stood still is left out.

        Raises OSError.
        """
        drift = await self._drift(await self._seeded_gates())
        await self._store.forget_sums()
        return drift

    async def _seeded_gates(self) -> list[str]:
        return [one.gate_id for one in await self._store.counter_states() if one.spent is not None]

    async def _drift(self, gate_ids: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for at in range(0, len(gate_ids), SUMS_MAX):
            found |= await self._compared(gate_ids[at : at + SUMS_MAX])
        return found

    async def _compared(self, gate_ids: Sequence[str]) -> dict[str, int]:
        """What differs is compared again, after all that was on its way has arrived."""
        right: dict[str, int] = {}
        wrong: dict[str, int] = {}
        for _ in range(TRIES):
            await self.follow()
            found = await self._differences(gate_ids)
            if found is None:
                continue
            right |= {gate_id: 0 for gate_id, nusd in found.items() if not nusd}
            wrong = {gate_id: nusd for gate_id, nusd in found.items() if nusd}
            gate_ids = list(wrong)
            if not gate_ids:
                break
        return right | wrong

    async def _differences(self, gate_ids: Sequence[str]) -> dict[str, int] | None:
        """Gate → what the store has, less what the ledger says up to the store's cursor. None: that moved meanwhile."""
        cursor = await self._store.cursor()
        standings = [one for one in await self._store.counter_states(gate_ids) if one.spent is not None]
        if cursor is None or not standings:
            return {}
        if await self._store.cursor() != cursor:
            return None
        sums = await self._ledger.sums([(one.gate_id, one.since) for one in standings])
        later = await self._changes(cursor, sums[0].as_of_us)
        return {
            standing.gate_id: _off(standing.spent or 0, one, later)
            for standing, one in zip(standings, sums, strict=True)
        }

    async def _changes(self, after_us: int, until_us: int) -> list[SpendDelta]:
        """All that was settled in between."""
        found: list[SpendDelta] = []
        while after_us < until_us:
            changes, reached_us, _ = await self._ledger.changes(after_us, CHANGES_MAX)
            found += [one for one in changes if one.settled_at_us <= until_us]
            after_us = max(reached_us, after_us + 1)  # a ledger that was put back reaches nothing
        return found


def _off(spent: int, sum_: SpendTotal, later: Sequence[SpendDelta]) -> int:
    """By how much `spent` is more than the ledger says, in nUSD: at the store's cursor, or at any transaction of those
    later ones, which are in `sum_`; a gate that was seeded after the cursor is ahead of it."""
    counting = [one for one in later if sum_.gate_id in one.gate_ids and one.started_at >= sum_.since]
    off = spent - sum_.nusd + sum(one.nusd for one in counting)
    ahead = 0
    for _, transaction in groupby(counting, key=attrgetter("settled_at_us")):
        ahead += sum(one.nusd for one in transaction)
        if off == ahead:
            return 0
    return off
