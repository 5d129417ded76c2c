"""Followers: the spend of each counter is the ledger's, whichever follower delivers an entry, in whatever order; and no
reservation is released before its entry counts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from proxy.billing.limits import LimitCounter, OnStoreOutage
from proxy.billing.reservation import CounterState, Reservation, SpendDelta, SpendTotal
from proxy.budgets import follower
from proxy.budgets.admission import Admission, ClosedReservations
from proxy.budgets.follower import BEHIND_US_MAX, CHANGES_MAX, Follower, SeedRequest
from proxy.budgets.store import BudgetStore, BudgetsUnavailable, OwnReservations
from proxy.runtime.proxy.admission import AdmissionService
from tests.budgets.recorder import FollowerRecorder
from tests.budgets.stores import NOW, Stores
from tests.support.waiting import beside, until

SECOND_US = 1_000_000
START_US = 1_793_000_000 * SECOND_US


class Ledger:
    """Entries in transactions, and all that followers ask of them."""

    def __init__(self) -> None:
        self.entries: list[SpendDelta] = []
        self.terminal: set[str] = set()
        self.now_us = 0
        self.history = "1"
        self.away = False
        self.reads = 0
        """of sums"""
        self.looks = 0
        """for changes"""
        self.reading = asyncio.Event()
        self.reading.set()

    def settle(self, *exchange_ids: str, counters: Sequence[str] = ("key",), nusd: int = 1, at: float = 100.0) -> None:
        """One transaction."""
        self.now_us = max(self.now_us + 1, START_US)
        for one in exchange_ids:
            self.entries.append(SpendDelta(one, self.now_us, at, nusd, tuple(counters)))
            self.terminal.add(one)

    def spent(self, counter_id: str, since: float = 0.0) -> int:
        return sum(one.nusd for one in self.entries if counter_id in one.counter_ids and one.started_at >= since)

    async def time(self) -> int:
        await self._turn()
        return self.now_us

    async def sums(self, wants: Sequence[SeedRequest]) -> list[SpendTotal]:
        await self._turn()
        self.reads += 1
        found = [
            SpendTotal(counter_id, since, self.spent(counter_id, since), self.now_us) for counter_id, since in wants
        ]
        await self._turn()  # it is on its way
        return found

    async def changes(self, after_us: int, limit: int) -> tuple[list[SpendDelta], int, int]:
        await self._turn()
        self.looks += 1
        later = [one for one in self.entries if one.settled_at_us > after_us]
        until_us, now_us = self.now_us, self.now_us
        if len(later) > limit:
            until_us = later[limit].settled_at_us - 1
        found = [one for one in later if one.settled_at_us <= until_us]
        await self._turn()
        return found, found[-1].settled_at_us if found and until_us != now_us else until_us, now_us

    async def timeline(self) -> str:
        await self._turn()
        return self.history

    async def watched(self, counter_ids: Collection[str] | None, now: float) -> list[SeedRequest]:
        return []

    async def followed(self, counter_ids: Sequence[str]) -> list[str]:
        return list(counter_ids)

    async def settled(self, exchange_ids: Collection[str], until_us: int) -> set[str]:
        await self._turn()
        return {one.exchange_id for one in self.entries if one.settled_at_us <= until_us} & set(exchange_ids)

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        await self.reading.wait()
        if self.away:
            raise OSError("the ledger is away")


@dataclass
class Counter:
    since: float
    spent: int
    as_of_us: int


@dataclass
class Store:
    """A store as its protocol says, as far as followers are concerned."""

    counters: dict[str, Counter] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    """closed exchange → nUSD"""
    at_us: int | None = None
    away: bool = False
    forgotten: int = 0
    restored_to_us: int | None = None
    released: list[str] = field(default_factory=list)
    leads: bool = True
    history: str | None = None

    def time(self) -> float:
        return 0.0

    async def timeline(self) -> str | None:
        await self._turn()
        return self.history

    async def set_timeline(self, timeline: str) -> None:
        await self._turn()
        self.history = timeline

    async def cursor(self) -> int | None:
        await self._turn()
        return self.at_us

    async def seed(self, sums: Sequence[SpendTotal]) -> None:
        await self._turn()
        for one in sums:
            if self.at_us is not None and one.as_of_us < self.at_us:
                continue
            self.at_us = one.as_of_us if self.at_us is None else self.at_us
            self.counters[one.counter_id] = Counter(one.since, one.amount, one.as_of_us)

    async def absorb(self, after_us: int, changes: Sequence[SpendDelta], until_us: int) -> bool:
        await self._turn()
        if self.at_us != after_us:
            return False
        for change in changes:
            for counter_id in change.counter_ids:
                counter = self.counters.get(counter_id)
                if counter and counter.as_of_us < change.settled_at_us and counter.since <= change.started_at:
                    counter.spent += change.nusd
            self.reserved.pop(change.exchange_id, None)
        self.at_us = until_us
        return True

    async def lead(self, for_s: float) -> bool:
        assert for_s == follower.LEAD_S
        await self._turn()
        return self.leads

    async def seeded(self, after: str, limit: int) -> tuple[list[str], str]:
        await self._turn()
        later = sorted(one for one in self.counters if one > after)
        return later[:limit], later[limit - 1] if len(later) > limit else ""

    async def forget_sums(self, restored_to_us: int | None = None) -> None:
        await self._turn()
        self.counters.clear()
        self.at_us = None
        self.forgotten += 1
        self.restored_to_us = restored_to_us

    async def overdue(self, older_than_s: float) -> list[str]:
        assert older_than_s in (follower.OVERDUE_S, 0.0)
        await self._turn()
        return list(self.reserved)

    async def release(self, exchange_ids: Collection[str]) -> None:
        await self._turn()
        for one in exchange_ids:
            self.reserved.pop(one, None)
        self.released += sorted(exchange_ids)

    async def counter_states(self, counter_ids: Collection[str] | None = None) -> list[CounterState]:
        await self._turn()
        return [
            CounterState(counter_id, one.since, one.spent, 0, 0, 0)
            for counter_id, one in sorted(self.counters.items())
            if counter_ids is None or counter_id in counter_ids
        ]

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise BudgetsUnavailable("the store is away")


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def seen() -> FollowerRecorder:
    return FollowerRecorder()


def a_follower(store: Store, ledger: Ledger, seen: FollowerRecorder) -> Follower:
    return Follower(cast("BudgetStore", store), ledger, on_spent=seen.on_spent, observer=seen)


@pytest.fixture
def one(store: Store, ledger: Ledger, seen: FollowerRecorder) -> Follower:
    return a_follower(store, ledger, seen)


@asynccontextmanager
async def following(one: Follower, every_s: float = 0.0) -> AsyncIterator[None]:
    """Within, it runs, without rest if nothing else is said."""
    with patch.object(follower, "FOLLOW_S", every_s):
        async with beside(one.run()):
            yield


def names(count: int, prefix: str = "x") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


# -- following


async def test_it_brings_what_was_settled_since(
    one: Follower, store: Store, ledger: Ledger, seen: FollowerRecorder
) -> None:
    ledger.settle("a", nusd=5)
    await one.seed([LimitCounter("key"), LimitCounter("key/late", since=200.0)])
    store.reserved = {"b": 9}
    ledger.settle("b", nusd=7, counters=("key", "elsewhere", "key/late"))
    await one.follow()
    assert (store.counters["key"].spent, store.counters["key/late"].spent) == (12, 0)
    assert (store.reserved, store.at_us, seen.entries) == ({}, ledger.now_us, 1)
    await one.follow()
    assert (store.counters["key"].spent, seen.entries) == (12, 1)


async def test_where_nothing_is_seeded_nothing_is_read(one: Follower, store: Store, ledger: Ledger) -> None:
    ledger.settle("a")
    await one.follow()
    assert (store.at_us, ledger.looks) == (None, 0)


async def test_it_catches_up_page_after_page(
    one: Follower, store: Store, ledger: Ledger, seen: FollowerRecorder
) -> None:
    await one.seed([LimitCounter("key")])
    for number in range(5):
        ledger.settle(*names(CHANGES_MAX - 1, f"{number}-"))
    await one.follow()
    assert store.counters["key"].spent == seen.entries == 5 * (CHANGES_MAX - 1)


async def test_many_followers_count_each_entry_once(store: Store, ledger: Ledger, seen: FollowerRecorder) -> None:
    everybody = [a_follower(store, ledger, seen) for _ in range(5)]
    await everybody[0].seed([LimitCounter("key")])
    for number in range(20):
        ledger.settle(*names(3, f"{number}-"), nusd=10)
        await asyncio.gather(*(one.follow() for one in everybody))
    assert store.counters["key"].spent == 600
    assert seen.entries == 60


@pytest.fixture
async def behind(one: Follower, ledger: Ledger) -> None:
    """What is seeded is far behind the ledger."""
    await one.seed([LimitCounter("key")])
    ledger.settle(*names(CHANGES_MAX))
    ledger.now_us += BEHIND_US_MAX + 1
    ledger.settle(*names(CHANGES_MAX, "y"))


@pytest.mark.usefixtures("behind")
async def test_far_behind_it_lets_all_be_read_anew(one: Follower, store: Store) -> None:
    await one.follow()
    assert (store.at_us, store.counters, store.forgotten) == (None, {}, 1)


@pytest.mark.usefixtures("behind")
async def test_what_another_has_let_be_read_anew_is_not_forgotten_again(
    one: Follower, store: Store, ledger: Ledger
) -> None:
    changes = ledger.changes

    async def meanwhile(after_us: int, limit: int) -> tuple[list[SpendDelta], int, int]:
        found = await changes(after_us, limit)
        if after_us == 0:
            await store.forget_sums()
            await one.seed([LimitCounter("key")])
        return found

    ledger.changes = meanwhile  # type: ignore[method-assign]
    await one.follow()
    assert (store.forgotten, store.counters["key"].spent) == (1, 2 * CHANGES_MAX)


async def test_a_long_silence_is_not_far_behind(one: Follower, store: Store, ledger: Ledger) -> None:
    ledger.settle("a")
    await one.seed([LimitCounter("key")])
    ledger.now_us += 10 * BEHIND_US_MAX
    ledger.settle("b")
    await one.follow()
    assert (store.counters["key"].spent, store.forgotten) == (2, 0)


async def test_a_ledger_that_was_put_back_is_read_anew(one: Follower, store: Store, ledger: Ledger) -> None:
    ledger.settle("a", "b")
    await one.seed([LimitCounter("key")])
    ledger.settle("c")
    await one.follow()
    ledger.entries = ledger.entries[:1]
    ledger.now_us = START_US
    await one.follow()
    assert (store.at_us, store.forgotten, store.restored_to_us) == (None, 1, START_US)
    await one.seed([LimitCounter("key")])
    assert store.counters["key"].spent == 1


async def test_a_promoted_ledger_is_read_anew_though_its_clock_is_ahead(
    one: Follower, store: Store, ledger: Ledger
) -> None:
    ledger.settle("a")
    await one.seed([LimitCounter("key")])
    ledger.settle("b", "c")
    await one.follow()
    ledger.entries = ledger.entries[:2]
    ledger.history = "2"
    ledger.settle("d")
    await one.follow()
    assert (store.at_us, store.forgotten, store.restored_to_us) == (None, 1, ledger.now_us)
    await one.seed([LimitCounter("key")])
    ledger.settle("c")
    await one.follow()
    assert (store.counters["key"].spent, store.forgotten) == (4, 1)


async def test_an_outage_is_said_once_and_nothing_is_lost(
    one: Follower, store: Store, ledger: Ledger, seen: FollowerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        """In place of the steps whose outages are others: they may be due in between."""

    for step in ("tidy", "measure"):
        monkeypatch.setattr(Follower, step, nothing)
    await one.seed([LimitCounter("key")])
    async with following(one, every_s=0.001):
        for who in (ledger, store):
            who.away = True
            before = len(seen.failures)
            await until(lambda before=before: len(seen.failures) > before)  # type: ignore[misc]
            ledger.settle("a" if who is ledger else "b", nusd=4)
            await asyncio.sleep(0.05)
            assert len(seen.failures) == before + 1
            who.away = False
            await until(lambda: len(seen.healings) == len(seen.failures))
        await until(lambda: store.counters["key"].spent == 8)
    assert [type(error) for error in seen.failures] == [OSError, BudgetsUnavailable]
    assert seen.healings == seen.failures


async def test_an_outage_that_begins_between_election_and_following_is_one_outage(
    one: Follower, store: Store, seen: FollowerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead, elections = store.lead, 0

    async def lead_and_leave(for_s: float) -> bool:
        nonlocal elections
        leads, elections = await lead(for_s), elections + 1
        store.away = store.away or elections == 1
        return leads

    await one.seed([LimitCounter("key")])
    monkeypatch.setattr(store, "lead", lead_and_leave)
    async with following(one, every_s=0.001):
        await until(lambda: seen.failures)
        await asyncio.sleep(0.05)
        assert len(seen.failures) == 1
        store.away = False
        await until(lambda: seen.healings == seen.failures)


# -- seeding


async def test_concurrent_callers_share_a_reading(one: Follower, store: Store, ledger: Ledger) -> None:
    ledger.settle("a", nusd=3)
    counters = [LimitCounter("key"), LimitCounter("key"), LimitCounter("project", since=5.0)]
    await asyncio.gather(*(one.seed(counters) for _ in range(100)))
    assert ledger.reads == 1
    assert store.counters["key"].spent == 3
    await one.seed(counters)
    assert ledger.reads == 2
    await one.seed([])
    assert ledger.reads == 2


async def test_a_start_with_many_keys_reads_them_together(one: Follower, store: Store, ledger: Ledger) -> None:
    await asyncio.gather(*(one.seed([LimitCounter(name), LimitCounter("org")]) for name in names(1_000)))
    assert len(store.counters) == 1_001
    assert ledger.reads < 20


async def test_what_cannot_be_read_is_said_to_all_who_wait(one: Follower, store: Store, ledger: Ledger) -> None:
    ledger.away = True
    results = await asyncio.gather(*(one.seed([LimitCounter("key")]) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [OSError] * 3
    ledger.away = False
    await one.seed([LimitCounter("key")])
    store.away = True
    with pytest.raises(BudgetsUnavailable):
        await one.seed([LimitCounter("other")])


async def test_whoever_gives_up_leaves_the_others_alone(one: Follower, store: Store, ledger: Ledger) -> None:
    ledger.reading.clear()
    hasty = asyncio.get_running_loop().create_task(one.seed([LimitCounter("key")]))
    patient = asyncio.get_running_loop().create_task(one.seed([LimitCounter("key")]))
    await asyncio.sleep(0.01)
    hasty.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hasty
    ledger.reading.set()
    await patient
    assert (ledger.reads, "key" in store.counters) == (1, True)


async def test_it_ends_with_whoever_waits(one: Follower, ledger: Ledger) -> None:
    ledger.reading.clear()
    waiting = [asyncio.get_running_loop().create_task(one.seed([LimitCounter(name)])) for name in names(5)]
    await asyncio.sleep(0.01)
    await one.aclose()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [BudgetsUnavailable] * 5


async def test_what_a_new_sum_counts_is_not_held_as_well(one: Follower, store: Store, ledger: Ledger) -> None:
    """It ended and was settled while nothing was seeded, so that no change will ever bring its entry."""
    ledger.settle("a")
    store.reserved = {"a": 5, "unsettled": 6}
    await one.seed([LimitCounter("key")])
    assert (store.reserved, store.released) == ({"unsettled": 6}, ["a"])


# -- what was left behind


async def test_a_hold_that_was_left_behind_is_let_go(one: Follower, store: Store, ledger: Ledger) -> None:
    ledger.settle("a")
    await one.seed([LimitCounter("key")])
    store.reserved = {"a": 5, "unsettled": 6}
    await one.tidy()
    assert (store.reserved, store.released) == ({"unsettled": 6}, ["a"])


async def test_a_hold_whose_entry_does_not_count_yet_stays(one: Follower, store: Store, ledger: Ledger) -> None:
    ledger.settle("before")
    await one.seed([LimitCounter("key")])
    ledger.settle("a")
    store.reserved = {"a": 5}
    await one.tidy()
    assert store.reserved == {"a": 5}  # the store has not followed to it: somebody could spend it again
    await one.follow()
    assert (store.reserved, store.released, store.counters["key"].spent) == ({}, [], 2)


async def test_where_nothing_is_seeded_holds_go_when_every_sum_under_way_has_arrived(
    one: Follower, store: Store, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.settle("a")
    store.reserved = {"a": 5, "b": 6}
    await one.tidy()
    await one.tidy()
    assert store.reserved == {"a": 5, "b": 6}
    ledger.settle("b")
    monkeypatch.setattr(follower, "ARRIVED_S", 0.0)
    await one.tidy()
    assert store.reserved == {"b": 6}  # a sum that was read before it may be on its way
    await one.tidy()
    assert store.reserved == {}


# -- drift


async def test_at_rest_there_is_no_drift(one: Follower, store: Store, ledger: Ledger) -> None:
    ledger.settle("a", counters=("key", "org"), nusd=5)
    await one.seed([LimitCounter("key"), LimitCounter("org", since=50.0)])
    ledger.settle("b", counters=("key", "org"), nusd=-2)
    assert await one.rebuild() == {"key": 0, "org": 0}
    assert {name: counter.spent for name, counter in store.counters.items()} == {"key": 3, "org": 3}
    assert await one.rebuild() == {"key": 0, "org": 0}


async def test_drift_is_found_and_a_rebuild_mends_it(
    one: Follower, store: Store, ledger: Ledger, seen: FollowerRecorder
) -> None:
    ledger.settle("a", nusd=5)
    await one.seed([LimitCounter("key"), LimitCounter("org")])
    store.counters["key"].spent += 3
    store.counters["org"].spent -= 1
    await one.measure()
    assert seen.drifts == [4]
    assert await one.rebuild() == {"key": 3, "org": -1}
    await one.seed([LimitCounter("key"), LimitCounter("org")])
    await one.measure()
    assert seen.drifts == [4, 0]


async def test_a_seed_that_is_newer_than_the_cursor_is_no_drift(one: Follower, store: Store, ledger: Ledger) -> None:
    await one.seed([LimitCounter("org")])
    ledger.settle("a", counters=("key", "org"))
    ledger.settle("b", "c", counters=("key", "org"))
    cursor = store.at_us
    await one.seed([LimitCounter("key")])
    ledger.settle("d", counters=("key", "org"))
    assert (store.at_us, store.counters["key"].spent, store.counters["org"].spent) == (cursor, 3, 0)
    assert await one._differences(["key", "org"]) == {"key": 0, "org": 0}
    store.counters["key"].spent = 2  # there never was a moment at which it was that
    assert await one._differences(["key", "org"]) == {"key": 2, "org": 0}


async def test_measuring_takes_turns(
    one: Follower, store: Store, ledger: Ledger, seen: FollowerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "MEASURED_MAX", 2)
    await one.seed([LimitCounter(name) for name in names(5)])
    for number, name in enumerate(names(5)):
        store.counters[name].spent = 10**number
    for _ in range(4):
        await one.measure()
    assert seen.drifts == [11, 1_100, 10_000, 11]


@pytest.mark.parametrize("seed", range(20))
async def test_in_motion_sums_are_the_ledgers(store: Store, ledger: Ledger, seen: FollowerRecorder, seed: int) -> None:
    """Followers follow, seed, forget and compare while entries are settled: no drift is seen, and none is there."""
    chance = random.Random(seed)
    everybody = [a_follower(store, ledger, seen) for _ in range(3)]
    counters = {"key": 0.0, "org": 50.0, "project": 150.0}
    drifts: list[int] = []

    async def settle() -> None:
        for number in range(150):
            at, count = chance.choice([40.0, 100.0, 200.0]), chance.randint(0, 3)
            chosen = chance.sample(sorted(counters), chance.randint(1, 3))
            ledger.settle(*names(count, f"{number}-"), counters=chosen, nusd=chance.randint(-5, 50), at=at)
            for _ in range(chance.randint(0, 5)):
                await asyncio.sleep(0)

    async def act(one: Follower) -> None:
        for _ in range(60):
            step = chance.random()
            if step < 0.5:
                await one.follow()
            elif step < 0.8:
                counter_id = chance.choice(sorted(counters))
                await one.seed([LimitCounter(counter_id, since=counters[counter_id])])
            elif step < 0.97:
                drifts.extend((await one._drift(sorted(counters))).values())
            else:
                await store.forget_sums()

    await asyncio.gather(settle(), *map(act, everybody))
    await everybody[0].follow()
    assert {counter_id: one.spent for counter_id, one in store.counters.items()} == {
        counter_id: ledger.spent(counter_id, counters[counter_id]) for counter_id in store.counters
    }
    assert drifts.count(0) > 20
    assert not any(drifts)


# -- who is told


async def test_more_that_was_spent_is_told(one: Follower, ledger: Ledger, seen: FollowerRecorder) -> None:
    ledger.settle("a", nusd=5)
    await one.seed([LimitCounter("key"), LimitCounter("org")])
    await one.follow()
    ledger.settle("b", counters=("key", "elsewhere"), nusd=6)
    await one.follow()
    await one.follow()
    assert seen.spent == [{"key": 5, "org": 0}, {"key": 11}]


async def test_what_could_not_be_told_is_told_again(one: Follower, ledger: Ledger, seen: FollowerRecorder) -> None:
    await one.seed([LimitCounter("key")])
    seen.fails = True
    ledger.settle("a")
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            await one.follow()
    assert seen.entries == 1
    seen.fails = False
    await one.follow()
    assert seen.spent == [{"key": 1}]


async def test_what_somebody_died_over_is_told_by_the_next(
    store: Store, ledger: Ledger, seen: FollowerRecorder
) -> None:
    dying = a_follower(store, ledger, FollowerRecorder(fails=True))
    await dying.seed([LimitCounter("key")])
    ledger.settle("a")
    with suppress(OSError):
        await dying.follow()
    async with following(a_follower(store, ledger, seen)):
        await until(lambda: seen.spent == [{"key": 1}])


async def test_a_new_leader_tells_everything_page_by_page(
    store: Store, ledger: Ledger, seen: FollowerRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "MEASURED_MAX", 2)
    await a_follower(store, ledger, FollowerRecorder()).seed([LimitCounter(name) for name in names(5)])
    async with following(a_follower(store, ledger, seen)):
        await until(lambda: len(seen.spent) == 3)
        await asyncio.sleep(0.05)
    assert [len(one) for one in seen.spent] == [2, 2, 1]


async def test_who_does_not_lead_reads_nothing_but_tells_what_it_seeds(
    one: Follower, store: Store, ledger: Ledger, seen: FollowerRecorder
) -> None:
    store.leads = False
    await one.seed([LimitCounter("key")])
    async with following(one):
        await until(lambda: seen.spent == [{"key": 0}])
        ledger.settle("a")
        await asyncio.sleep(0.1)
        assert (ledger.looks, store.counters["key"].spent) == (0, 0)
        store.leads = True
        await until(lambda: store.counters["key"].spent == 1)


# -- a proxy that starts again

BOUNDED = LimitCounter("key_a", NOW - 1_000, nusd_max=1_000)


@pytest.mark.io
@pytest.mark.parametrize("ledger_is_away", [False, True])
async def test_what_is_settled_before_its_record_is_read_counts(stores: Stores, *, ledger_is_away: bool) -> None:
    """The settler is faster than the start, and the store had not been told of the end of the exchange."""
    ledger, before = Ledger(), stores.node("proxy")
    await before.announce(lambda: OwnReservations((), (), ()))
    ledger.now_us = START_US
    await before.seed([SpendTotal(BOUNDED.counter_id, BOUNDED.since, 0, START_US)])
    await before.reserve(Reservation("exchange", (BOUNDED,), 600, 0, NOW))
    await before.aclose()  # killed
    ledger.settle("exchange", counters=[BOUNDED.counter_id], nusd=500, at=NOW)
    ledger.away = ledger_is_away

    store, seen = stores.node("proxy"), FollowerRecorder()
    follower = Follower(store, ledger, on_spent=seen.on_spent, observer=seen)  # type: ignore[arg-type]
    admission = Admission(
        store, ClosedReservations(), seed=follower.seed, settled=follower.counted, tidy=follower.tidy,
        on_store_outage=OnStoreOutage.FAIL_CLOSED, allowance_nusd=0, observer=seen,  # type: ignore[arg-type]
    )  # fmt: skip
    service: Any = SimpleNamespace(admission=admission, _following=SimpleNamespace(follower=follower))
    journal: Any = SimpleNamespace(pending=lambda *_: [])  # has forgotten it
    await AdmissionService._announce(service, journal)
    assert admission._counted.is_set()
    if not ledger_is_away:
        [found] = await store.counter_states([BOUNDED.counter_id])
        assert (found.spent, found.reserved) == (500, 0)
