"""Keeps the spend totals of limit counters equal to the ledger.

Invariants: Spend comes from the ledger, in the order of settlement, each entry once. A reservation is released only
when its entry is in all spend totals.

One follower of all nodes leads: it follows the ledger, and the others stand by. If several lead at the same time, the
store's cursor decides which of them writes. During an outage of the store or of the ledger nothing changes; afterwards
following continues at the cursor.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import CounterState, SpendDelta, SpendTotal
from proxy.budgets.followed_ledger import FollowedLedger, SeedRequest
from proxy.budgets.observers import FollowerObserver
from proxy.budgets.store import BudgetStore, BudgetsUnavailable
from proxy.foundation.outage import Outage
from proxy.ledger.settling.spend import batches

# Without a sign of life for so long, another follower leads.
LEAD_S = 5.0
# An entry counts, and its reservation is released, about this long after its settlement.
FOLLOW_S = 1.0
# Entries in one call of `absorb`, about.
CHANGES_MAX = 1_000
# Beyond this it is cheaper to read spend totals again than to read all later entries.
BEHIND_US_MAX = 3_600 * 1_000_000

# Interval of the search for reservations that were never released, and their least age.
TIDY_S, OVERDUE_S = 10.0, 5.0
# A spend total takes less time from the ledger to the store.
ARRIVED_S = 60.0

# Interval of the comparison of spend totals with the ledger, and how many are compared at a time.
MEASURE_S, MEASURED_MAX = 600.0, 2_000
# Comparisons of a counter; at least one should run without concurrent changes.
TRIES = 3

# Counters whose spend totals are read in one transaction, and the number of concurrent transactions.
SUMS_MAX, READERS = 100, 2


class Follower:
    """The follower of one node. `run` follows the ledger; admission calls `seed`; `aclose` cancels running seeds."""

    def __init__(
        self,
        store: BudgetStore,
        ledger: FollowedLedger,
        *,
        on_spent: Callable[[Sequence[CounterState]], Awaitable[None]],
        observer: FollowerObserver,
        on_settled: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        """`on_spent`: called with counters whose spend changed, sometimes repeatedly; after an OSError, called again.
        `on_settled`: called with exchanges that are in all spend totals; not with all if other followers run."""
        self._store = store
        self._ledger = ledger
        self._on_spent = on_spent
        self._on_settled = on_settled
        self._observer = observer
        self._outages: defaultdict[str, Outage] = defaultdict(lambda: Outage(observer))
        """outages by the name of the step that fails"""
        self._unreported: set[str] = set()
        """counters whose spend changed, for `on_spent`"""
        self._leads = False
        self._measured_to = ""
        """the page at which the next comparison begins; empty: the first page"""
        self._reported_to: str | None = None
        """the page at which a new leader's report of all counters continues; None: the report is complete"""
        self._unseeded: tuple[float, int] | None = None
        """the event loop's time and the ledger's time when no counter was seeded; None: not observed since a counter
        was seeded"""
        self._seeding: dict[SeedRequest, asyncio.Future[None]] = {}
        self._queue: list[SeedRequest] = []
        """seed requests that no reader has taken yet"""
        self._readers: set[asyncio.Task[None]] = set()

    # -- following the ledger

    async def run(self) -> None:
        """Follow the ledger while this node leads; until cancelled."""
        time = asyncio.get_running_loop().time
        tidy_at = measure_at = time()
        while True:
            followed = await self._attempt(self._elect_and_follow) and self._leads
            if followed and self._reported_to is not None:
                await self._attempt(self._report_more)
            if followed and time() >= tidy_at:
                tidy_at = time() + TIDY_S
                await self._attempt(self.tidy)
            if followed and time() >= measure_at:
                measure_at = time() + (MEASURE_S if await self._attempt(self.measure) else TIDY_S)
            await asyncio.sleep(FOLLOW_S)

    async def _elect_and_follow(self) -> None:
        """Follow if this node leads; otherwise report the counters that this node has seeded."""
        # One step: an outage that begins between the two is one outage.
        led, self._leads = self._leads, await self._store.lead(LEAD_S)
        if self._leads and not led:
            self._reported_to = ""  # the previous leader may have crashed before its report
        await (self.follow() if self._leads else self._report())

    async def _report_more(self) -> None:
        """Report the next page of all counters."""
        counter_ids, after = await self._store.seeded(self._reported_to or "", MEASURED_MAX)
        self._unreported.update(counter_ids)
        self._reported_to = after or None

    async def follow(self) -> None:
        """Bring all spend totals up to date with the ledger, and report the changed ones. Raises OSError.

        If the ledger's clock went back, or its server began another history, the ledger may lack counted entries, and
        they may be settled again at any time: all spend totals are dropped.
        """
        if await self._store.cursor() is None:
            await self._seed_watched(None)
        while (cursor := await self._store.cursor()) is not None:
            changes, until_us, ledger_us = await self._ledger.changes(cursor, CHANGES_MAX)
            timeline = await self._ledger.timeline()  # after `changes`: if it is the known one, they are of it
            known = await self._store.timeline()
            if until_us < cursor or known not in (None, timeline):
                await self._forget(cursor, restored_to_us=ledger_us)
            elif ledger_us - until_us > BEHIND_US_MAX:
                await self._forget(cursor)
            elif until_us > cursor and await self._store.absorb(cursor, changes, until_us):
                self._observer.absorbed(len(changes))
                if self._on_settled is not None:
                    self._on_settled([one.exchange_id for one in changes])
                self._unreported.update(*[one.counter_ids for one in changes])
            if known != timeline:  # last: a crash before repeats the rest
                await self._store.set_timeline(timeline)
            if until_us == ledger_us:
                break
        await self._report()

    async def _forget(self, cursor: int, restored_to_us: int | None = None) -> None:
        """Drop the spend totals, unless another follower has done so and counters were seeded since."""
        if await self._store.cursor() == cursor:
            await self._store.forget_sums(restored_to_us)

    async def _report(self) -> None:
        reporting, self._unreported = self._unreported, set()
        if reporting:
            try:
                await self._seed_watched(reporting)
                await self._on_spent(
                    [one for one in await self._store.counter_states(reporting) if one.spent is not None]
                )
            except BaseException:
                self._unreported |= reporting
                raise

    async def _seed_watched(self, counter_ids: Collection[str] | None) -> None:
        """Write the ledger's spend of the counters that no request seeds, because their rules only alert. None: of one
        counter for each such rule, so that the ledger is followed."""
        watched = await self._ledger.watched(counter_ids, self._store.time())
        if watched:
            states = await self._store.counter_states([counter_id for counter_id, _ in watched])
            seeded = {(one.counter_id, one.since) for one in states if one.spent is not None}
            for some in batches([one for one in watched if one not in seeded], SUMS_MAX):
                await self._store.seed(await self._ledger.sums(some))

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> bool:
        """False if the step failed; reported once per outage."""
        outage = self._outages[step.__name__]
        try:
            await step()
        except Exception as error:  # noqa: BLE001  whatever the error, the step is retried
            outage.began(error)
            return False
        outage.over()
        return True

    # -- reservations that were never released

    async def tidy(self, older_than_s: float = OVERDUE_S) -> None:
        """Release closed reservations whose entries are in all spend totals already. Raises OSError."""
        # What is read after `overdue`: later entries come by `absorb`.
        if counted := await self.counted(await self._store.overdue(older_than_s)):
            await self._store.release(counted)

    async def counted(self, exchange_ids: Collection[str]) -> set[str]:
        """The exchanges whose entries are in all spend totals, current and future. Raises OSError."""
        until_us = await self._counted_until()
        if until_us is None or not exchange_ids:
            return set()
        return await self._ledger.settled(exchange_ids, until_us)

    async def _counted_until(self) -> int | None:
        """Entries settled by this time are in every current and future spend total; None: not known yet."""
        cursor = await self._store.cursor()
        if cursor is not None:
            self._unseeded = None
            return cursor
        now = asyncio.get_running_loop().time()
        if self._unseeded is None or now - self._unseeded[0] >= ARRIVED_S:
            before, self._unseeded = self._unseeded, (now, await self._ledger.time())
            return None if before is None else before[1]
        return None

    # -- seeding new counters

    async def seed(self, counters: Sequence[LimitCounter]) -> None:
        """Write the ledger's spend of these counters to the store. Concurrent calls for one counter share a read.

        Raises OSError.
        """
        loop = asyncio.get_running_loop()
        waiting = []
        for request in dict.fromkeys((counter.counter_id, counter.since) for counter in counters):
            if request not in self._seeding:
                self._seeding[request] = loop.create_future()
                self._queue.append(request)
            waiting.append(self._seeding[request])
        if self._queue and len(self._readers) < READERS:
            reader = loop.create_task(self._read(), name="seeding")
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        if waiting:
            await asyncio.wait(waiting)  # unlike gather, a cancelled caller does not cancel the shared futures
        for one in waiting:
            one.result()

    async def _read(self) -> None:
        while self._queue:
            requests, self._queue = self._queue[:SUMS_MAX], self._queue[SUMS_MAX:]
            try:
                await self._store.seed(await self._ledger.sums(requests))
                await self.tidy(0.0)  # exchanges that ended before may be in these totals and reserved, too
            except Exception as error:  # noqa: BLE001  raised to the waiting callers
                self._finish_seeding(requests, error)
            else:
                self._unreported.update(counter_id for counter_id, _ in requests)
                self._finish_seeding(requests, None)

    def _finish_seeding(self, requests: Iterable[SeedRequest], error: Exception | None) -> None:
        for request in requests:
            waiting = self._seeding.pop(request)
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)
                waiting.exception()  # marks it as retrieved, in case no caller waits any more

    async def aclose(self) -> None:
        """Cancel running reads; their callers get BudgetsUnavailable. Never raises."""
        readers = list(self._readers)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        self._queue.clear()
        self._finish_seeding(list(self._seeding), BudgetsUnavailable("budgets: shutting down"))

    # -- comparing spend totals with the ledger

    async def measure(self) -> None:
        """Compare the next page of spend totals with the ledger, and report them: a changed budget may have reached a
        threshold without new spend. Raises OSError."""
        counter_ids, after = await self._page(self._measured_to)
        self._unreported.update(counter_ids)
        drift = await self._drift(counter_ids)
        self._measured_to = after
        self._observer.drift(sum(map(abs, drift.values())))

    async def rebuild(self) -> dict[str, int]:
        """Compare all spend totals with the ledger, drop them, and read them again.

        Returns counter id → store minus ledger (nUSD; of a quota, what it measures), without counters that changed
        during every comparison. Raises OSError.
        """
        drift: dict[str, int] = {}
        windows: list[SeedRequest] = []
        after = None
        while after != "":
            counter_ids, after = await self._page(after or "")
            drift |= await self._drift(counter_ids)
            states = await self._store.counter_states(counter_ids)
            windows += [(one.counter_id, one.since) for one in states if one.spent is not None]
        await self._store.forget_sums()
        for some in batches(windows, SUMS_MAX):
            await self._store.seed(await self._ledger.sums(some))
        return drift

    async def _drift(self, counter_ids: Sequence[str]) -> dict[str, int]:
        drift: dict[str, int] = {}
        for some in batches(counter_ids, SUMS_MAX):
            drift |= await self._compare(some)
        return drift

    async def _page(self, after: str) -> tuple[list[str], str]:
        """A page of counters to compare, like that of `BudgetStore.seeded`."""
        counter_ids, after = await self._store.seeded(after, MEASURED_MAX)
        return await self._ledger.followed(counter_ids), after

    async def _compare(self, counter_ids: Sequence[str]) -> dict[str, int]:
        """Compare counters; those that differ are compared again after following the ledger."""
        equal: dict[str, int] = {}
        different: dict[str, int] = {}
        for _ in range(TRIES):
            await self.follow()
            differences = await self._differences(counter_ids)
            if differences is None:
                continue
            equal |= {counter_id: 0 for counter_id, nusd in differences.items() if not nusd}
            different = {counter_id: nusd for counter_id, nusd in differences.items() if nusd}
            counter_ids = list(different)
            if not counter_ids:
                break
        return equal | different

    async def _differences(self, counter_ids: Sequence[str]) -> dict[str, int] | None:
        """Counter id → store minus ledger up to the store's cursor. None: the cursor changed meanwhile."""
        cursor = await self._store.cursor()
        states = [one for one in await self._store.counter_states(counter_ids) if one.spent is not None]
        if cursor is None or not states:
            return {}
        if await self._store.cursor() != cursor:
            return None
        sums = await self._ledger.sums([(one.counter_id, one.since) for one in states])
        later = await self._changes(cursor, sums[0].as_of_us)
        return {
            state.counter_id: _difference(state.spent or 0, total, later)
            for state, total in zip(states, sums, strict=True)
        }

    async def _changes(self, after_us: int, until_us: int) -> list[SpendDelta]:
        """All entries settled after `after_us`, until `until_us`."""
        entries: list[SpendDelta] = []
        while after_us < until_us:
            changes, reached_us, _ = await self._ledger.changes(after_us, CHANGES_MAX)
            entries += [one for one in changes if one.settled_at_us <= until_us]
            after_us = max(reached_us, after_us + 1)  # a restored ledger makes no progress here
        return entries


def _difference(spent: int, total: SpendTotal, later: Sequence[SpendDelta]) -> int:
    """`spent` minus the ledger's spend at the store's cursor. `later`: the entries after the cursor, which
    `total` includes. Also 0 if `spent` equals the ledger's spend after one of the later transactions: a counter that
    was seeded after the cursor is ahead of it."""
    counted = [one for one in later if one.started_at >= total.since]
    difference = spent - total.amount + sum(one.amount_at(total.counter_id) for one in counted)
    ahead = 0
    for _, transaction in groupby(counted, key=attrgetter("settled_at_us")):
        ahead += sum(one.amount_at(total.counter_id) for one in transaction)
        if difference == ahead:
            return 0
    return difference
