"""What is promised of holds and sums: one contract, on a file and on Redis, by two nodes on the same store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from msgspec import structs

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import (
    CounterState,
    DenialReason,
    Denied,
    Granted,
    Reservation,
    SpendDelta,
    SpendTotal,
    Unseeded,
    Verdict,
)
from proxy.budgets.redis import store as redis_store
from proxy.budgets.sqlite import file as budget_file
from proxy.budgets.sqlite import store as sqlite_store
from proxy.budgets.store import BudgetStore, OwnReservations
from tests.budgets.stores import NOW, LocalStores, Stores
from tests.support.waiting import until

pytestmark = pytest.mark.io

_T = TypeVar("_T")

SINCE = NOW - 1000
KEY = LimitCounter("key_a", SINCE, nusd_max=1_000)
ORG = LimitCounter("org_a", 0.0, nusd_max=5_000)


def reservation(
    exchange_id: str, *counters: LimitCounter, nusd: int = 0, tokens: int = 0, at: float = 0.0
) -> Reservation:
    return Reservation(exchange_id, counters, nusd, tokens, at)


def ended(one: Reservation, nusd: int, tokens: int = 0) -> Reservation:
    return structs.replace(one, nusd=nusd, tokens=tokens)


def change(exchange_id: str, at_us: int, nusd: int, *counter_ids: str, started_at: float = NOW) -> SpendDelta:
    return SpendDelta(exchange_id, at_us, started_at, nusd, counter_ids)


async def seeded(store: BudgetStore, *counters: LimitCounter, spent: int = 0, as_of_us: int = 100) -> None:
    await store.seed([SpendTotal(counter.counter_id, counter.since, spent, as_of_us) for counter in counters])


async def standing(store: BudgetStore, counter: LimitCounter = KEY) -> CounterState:
    [found] = await store.counter_states([counter.counter_id])
    return found


async def left(store: BudgetStore, counter: LimitCounter = KEY) -> int:
    """nUSD, of what its bound allows."""
    found = await standing(store, counter)
    assert found.spent is not None
    assert counter.nusd_max is not None
    return counter.nusd_max - found.spent - found.reserved


async def reserved(store: BudgetStore, counter: LimitCounter = KEY) -> tuple[int, int, int]:
    """nUSD, exchanges that run, exchanges that ended."""
    found = await store.counter_states([counter.counter_id])
    return (found[0].reserved, found[0].open, found[0].closed) if found else (0, 0, 0)


def owns(
    running: Sequence[Reservation] = (), closed: Sequence[Reservation] = (), asking: Sequence[str] = ()
) -> OwnReservations:
    return OwnReservations(running, closed, frozenset(asking))


def granted(verdict: Verdict) -> bool:
    assert not isinstance(verdict, Unseeded)
    return isinstance(verdict, Granted)


def denied(verdict: Verdict) -> Denied:
    assert isinstance(verdict, Denied)
    return verdict


# -- money


async def test_what_is_not_seeded_is_said_and_nothing_is_held(one: BudgetStore) -> None:
    rated = LimitCounter("proj_a", rpm=5)
    assert await one.reserve(reservation("x", KEY, rated, ORG, nusd=10)) == Unseeded((KEY, ORG))
    await seeded(one, ORG)
    assert await one.reserve(reservation("x", KEY, rated, ORG, nusd=10)) == Unseeded((KEY,))
    assert await reserved(one, ORG) == (0, 0, 0)
    await seeded(one, KEY)
    assert granted(await one.reserve(reservation("x", KEY, rated, ORG, nusd=10)))


async def test_a_counter_is_seeded_for_one_window(one: BudgetStore) -> None:
    await seeded(one, KEY, spent=1_000)
    later = structs.replace(KEY, since=SINCE + 0.1)
    assert await one.reserve(reservation("x", later, nusd=10)) == Unseeded((later,))
    await seeded(one, later)
    assert granted(await one.reserve(reservation("x", later, nusd=10)))


async def test_what_money_does_not_bound_needs_no_seed(one: BudgetStore) -> None:
    assert granted(await one.reserve(reservation("x", LimitCounter("key_r", rpm=5), nusd=10)))
    assert await one.counter_states() == [CounterState("key_r", 0.0, None, 10, 1, 0)]


async def test_spent_and_held_never_pass_the_bound(one: BudgetStore, other: BudgetStore) -> None:
    await seeded(one, KEY, spent=300)
    assert granted(await one.reserve(reservation("x", KEY, nusd=500)))
    refused = denied(await other.reserve(reservation("y", KEY, nusd=201)))
    assert (refused.why, refused.counter_id, refused.retry_after_s) == (DenialReason.MONEY, "key_a", None)
    assert (refused.spent, refused.reserved) == (300, 500)
    assert await left(other) == 200
    assert await other.reserve(reservation("z", KEY, nusd=200)) == Granted()
    assert await left(other) == 0
    assert await reserved(one) == (700, 2, 0)


async def test_requests_of_one_moment_are_decided_one_after_the_other(one: BudgetStore) -> None:
    await seeded(one, KEY, ORG)
    rated = LimitCounter("proj_a", rpm=4, parallel=5)
    reservations = [reservation(f"x{number}", KEY, rated, ORG, nusd=300, tokens=1) for number in range(6)]
    verdicts = await asyncio.gather(*(one.reserve(each) for each in reservations))
    assert sum(map(granted, verdicts)) == 3
    assert [await reserved(one, counter) for counter in (KEY, rated, ORG)] == [(900, 3, 0)] * 3
    verdicts += await asyncio.gather(*(one.reserve(reservation(name, rated)) for name in "yz"))
    assert sum(map(granted, verdicts[6:])) == 1
    assert await reserved(one, rated) == (900, 4, 0)
    assert all(map(granted, await asyncio.gather(*(one.reserve(reservations[0]) for _ in range(3))))) is granted(
        verdicts[0]
    )
    assert await reserved(one) == (900, 3, 0)


async def test_one_that_is_held_already_comes_with_others(one: BudgetStore) -> None:
    await seeded(one, KEY)
    x, y, z = (reservation(name, KEY, nusd=400) for name in "xyz")
    assert granted(await one.reserve(x))
    verdicts = await asyncio.gather(one.reserve(y), one.reserve(x), one.reserve(z), one.reserve(y))
    assert [granted(verdict) for verdict in verdicts] == [True, True, False, True]
    assert await reserved(one) == (800, 2, 0)


async def test_what_does_not_pass_every_counter_is_held_at_none(one: BudgetStore) -> None:
    await seeded(one, KEY, ORG, spent=0)
    rated = LimitCounter("proj_a", rpm=1, tpm=100)
    refused = denied(await one.reserve(reservation("x", ORG, rated, KEY, nusd=1_001, tokens=1)))
    assert refused.counter_id == "key_a"
    assert [level.counter_id for level in refused.levels] == ["proj_a"], "money is not told"
    assert await reserved(one, ORG) == (0, 0, 0)
    assert granted(await one.reserve(reservation("y", rated, tokens=100))), "and counted at none"


async def test_the_first_counter_that_is_not_passed_is_named(one: BudgetStore) -> None:
    await seeded(one, KEY, ORG, spent=5_000)
    assert denied(await one.reserve(reservation("x", ORG, KEY, nusd=1))).counter_id == "org_a"
    rated = LimitCounter("proj_a", parallel=0)
    refused = denied(await one.reserve(reservation("x", rated, ORG, nusd=1)))
    assert (refused.counter_id, refused.spent, refused.reserved) == ("proj_a", None, 0)
    assert denied(await one.reserve(reservation("x", KEY, ORG, nusd=1))).counter_id == "key_a"


async def test_the_same_exchange_is_held_once_and_granted(one: BudgetStore) -> None:
    await seeded(one, KEY)
    tight = LimitCounter("proj_a", rpm=1, tpm=7, parallel=1)
    for _ in range(3):
        verdict = await one.reserve(reservation("x", KEY, tight, nusd=1_000, tokens=7))
        assert isinstance(verdict, Granted)
        assert [level.requests_left for level in verdict.levels] == [0]
    assert await reserved(one) == (1_000, 1, 0)


async def test_money_that_was_paid_in_can_be_spent(one: BudgetStore) -> None:
    credit = LimitCounter("key_a/credit", nusd_max=0)
    await seeded(one, credit, spent=-50)
    assert granted(await one.reserve(reservation("x", credit, nusd=50)))
    refused = denied(await one.reserve(reservation("y", credit, nusd=1)))
    assert (refused.why, refused.spent, refused.reserved) == (DenialReason.MONEY, -50, 50)


async def test_large_amounts_are_exact(one: BudgetStore) -> None:
    most = 10**15
    counter = LimitCounter("key_big", nusd_max=most)
    await seeded(one, counter, spent=most - 7)
    assert denied(await one.reserve(reservation("x", counter, nusd=8))).why is DenialReason.MONEY
    assert granted(await one.reserve(reservation("x", counter, nusd=7)))
    await one.close([ended(reservation("x", counter), 3)])
    assert await one.absorb(100, [change("x", 101, 3, "key_big"), change("y", 101, -8 * 10**15, "key_big")], 102)
    assert (await standing(one, counter)).spent == 3 - 7 - 7 * 10**15


# -- growing and closing


async def test_a_running_exchange_grows_whatever_is_left(one: BudgetStore) -> None:
    await seeded(one, KEY, spent=0)
    await one.reserve(reservation("x", KEY, nusd=900))
    assert await one.grow("x", 1_000)
    assert not await one.grow("x", 1_001)
    assert await reserved(one) == (1_001, 1, 0)
    assert not await one.grow("x", 5), "it holds at least so much: it does not shrink"
    assert await reserved(one) == (1_001, 1, 0)


async def test_what_is_not_known_may_grow(one: BudgetStore) -> None:
    assert await one.grow("nobody", 10**9)
    await seeded(one, KEY)
    await one.reserve(reservation("x", KEY, nusd=900))
    await one.close([ended(reservation("x", KEY), 5)])
    assert await one.grow("x", 10**9)
    assert await reserved(one) == (5, 0, 1)


async def test_an_ended_exchange_is_held_at_its_charge_until_its_entry_comes(
    one: BudgetStore, other: BudgetStore
) -> None:
    await seeded(one, KEY, ORG)
    await one.reserve(reservation("x", KEY, ORG, nusd=900))
    await one.close([ended(reservation("x", KEY, ORG), 250), ended(reservation("nobody", KEY), 9)])
    assert await reserved(one) == await reserved(one, ORG) == (250, 0, 1)
    assert await other.absorb(100, [change("x", 110, 250, "key_a", "org_a")], 110)
    assert await standing(one) == CounterState("key_a", SINCE, 250, 0, 0, 0)
    await one.close([ended(reservation("x", KEY, ORG), 250)])
    assert await standing(one) == CounterState("key_a", SINCE, 250, 0, 0, 0), "once is enough"


async def test_closing_again_changes_nothing(stores: Stores, one: BudgetStore) -> None:
    await seeded(one, KEY)
    await one.reserve(reservation("x", KEY, nusd=900))
    for _ in range(3):
        await one.close([ended(reservation("x", KEY), 250), ended(reservation("x", KEY), 250)])
        stores.clock.now += 10
    assert await reserved(one) == (250, 0, 1)
    assert await one.overdue(25) == ["x"], "it ended when it first did"


async def test_what_is_named_twice_is_released_once(one: BudgetStore) -> None:
    await seeded(one, KEY)
    for name in "xy":
        await one.reserve(reservation(name, KEY, nusd=10))
    await one.release(["x", "x"])
    assert await reserved(one) == (10, 1, 0)


@pytest.mark.parametrize(("nusd", "closed"), [(0, 0), (2_000, 1)], ids=["nothing", "more than the quote"])
async def test_a_charge_is_held_whatever_the_quote_was(one: BudgetStore, nusd: int, closed: int) -> None:
    await seeded(one, KEY)
    await one.reserve(reservation("x", KEY, nusd=900))
    await one.close([ended(reservation("x", KEY), nusd)])
    assert await reserved(one) == (nusd, 0, closed)
    assert await one.overdue(-1) == ["x"] * closed
    assert granted(await one.reserve(reservation("y", KEY, nusd=0))) is (nusd == 0)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth in one script or transaction."""
    for store in (redis_store, sqlite_store):
        monkeypatch.setattr(store, "AT_ONCE", store.AT_ONCE // 10)


@pytest.mark.usefixtures("small_batches")
async def test_many_at_once_are_closed_and_released(one: BudgetStore, exchange_ids: Iterator[str]) -> None:
    counter = LimitCounter("key_many", nusd_max=10**12, rpm=10**6, tpm=10**6)
    await seeded(one, counter)
    many = [reservation(next(exchange_ids), counter, nusd=10, tokens=3) for _ in range(121)]
    for each in many:
        assert granted(await one.reserve(each))
    await one.close([ended(each, 7, 2) for each in many])
    assert await reserved(one, counter) == (7 * 121, 0, 121)
    await one.release([each.exchange_id for each in many[:61]])
    assert await reserved(one, counter) == (7 * 60, 0, 60)
    changes = [change(each.exchange_id, 101, 7, "key_many") for each in many[61:]]
    assert await one.absorb(100, changes, 101)
    assert await standing(one, counter) == CounterState("key_many", 0.0, 7 * 60, 0, 0, 0)


# -- exchanges at once


async def test_so_many_run_at_once(one: BudgetStore, other: BudgetStore) -> None:
    counter = LimitCounter("key_p", parallel=2)
    assert granted(await one.reserve(reservation("x", counter)))
    assert granted(await other.reserve(reservation("y", counter)))
    refused = denied(await one.reserve(reservation("z", counter)))
    assert (refused.why, refused.counter_id, refused.retry_after_s) == (DenialReason.PARALLEL, "key_p", None)
    await other.close([ended(reservation("y", counter), 5)])
    assert granted(await one.reserve(reservation("z", counter))), "what has ended does not run"


# -- rates


async def test_so_many_requests_in_any_minute(stores: Stores, one: BudgetStore, other: BudgetStore) -> None:
    counter = LimitCounter("key_r", rpm=2)
    assert granted(await one.reserve(reservation("a", counter)))
    stores.clock.now += 30
    verdict = await other.reserve(reservation("b", counter))
    assert isinstance(verdict, Granted)
    assert verdict.levels[0].requests_left == 0
    assert verdict.levels[0].requests_reset_s == pytest.approx(60.75), "until both are free"
    refused = denied(await one.reserve(reservation("c", counter)))
    assert (refused.why, refused.counter_id) == (DenialReason.REQUESTS, "key_r")
    assert refused.retry_after_s == pytest.approx(30.75)
    stores.clock.now = NOW + 60
    assert not granted(await one.reserve(reservation("c", counter))), "a minute later is within a minute"
    stores.clock.now = NOW + 30 + 30.75
    assert granted(await one.reserve(reservation("c", counter))), "it said when"
    assert not granted(await one.reserve(reservation("d", counter)))


async def test_the_wait_is_for_as_many_as_there_are_too_many(stores: Stores, one: BudgetStore) -> None:
    counter = LimitCounter("key_t", tpm=100)
    for tokens in (10, 20, 70):
        assert granted(await one.reserve(reservation(f"x{tokens}", counter, tokens=tokens)))
        stores.clock.now += 10
    for tokens, wait_s in ((10, 30.75), (11, 40.75), (30, 40.75), (31, 50.75), (100, 50.75), (101, None)):
        refused = denied(await one.reserve(reservation("y", counter, tokens=tokens)))
        assert refused.why is DenialReason.TOKENS
        assert refused.retry_after_s == (None if wait_s is None else pytest.approx(wait_s)), tokens
        assert refused.levels[0].tokens_left == 0
        assert refused.levels[0].tokens_reset_s == pytest.approx(50.75)


async def test_the_wait_is_for_all_that_time_helps_with(stores: Stores, one: BudgetStore) -> None:
    slow, few = LimitCounter("key_r", rpm=1), LimitCounter("org_r", rpm=2)
    assert granted(await one.reserve(reservation("a", few)))
    stores.clock.now += 20
    assert granted(await one.reserve(reservation("b", few, slow)))
    assert denied(await one.reserve(reservation("c", few, slow))).retry_after_s == pytest.approx(60.75)
    await seeded(one, KEY, spent=1_000)
    assert denied(await one.reserve(reservation("c", few, KEY, nusd=1))).retry_after_s is None, "time alone does not"


async def test_a_refused_request_counts_nowhere(stores: Stores, one: BudgetStore) -> None:
    counter, tight = LimitCounter("key_r", rpm=2, tpm=10), LimitCounter("org_r", parallel=1)
    assert granted(await one.reserve(reservation("a", counter, tight, tokens=1)))
    for number in range(20):
        assert not granted(await one.reserve(reservation(f"b{number}", counter, tight, tokens=1)))
    verdict = await one.reserve(reservation("c", counter, tokens=9))
    assert isinstance(verdict, Granted)
    assert verdict.levels[0].requests_left == verdict.levels[0].tokens_left == 0


async def test_tokens_count_as_they_were_once_that_is_known(stores: Stores, one: BudgetStore) -> None:
    counter = LimitCounter("key_t", tpm=100)
    assert granted(await one.reserve(reservation("a", counter, nusd=1, tokens=100)))
    stores.clock.now += 5
    assert not granted(await one.reserve(reservation("b", counter, tokens=41)))
    await one.close([ended(reservation("a", counter), 1, 60)])
    assert not granted(await one.reserve(reservation("b", counter, tokens=41)))
    assert granted(await one.reserve(reservation("b", counter, tokens=40)))
    await one.close([ended(reservation("b", counter), 0, 45)])
    assert denied(await one.reserve(reservation("c", counter, tokens=0))).why is DenialReason.TOKENS, (
        "more than was thought"
    )
    stores.clock.now = NOW + 60.75
    verdict = await one.reserve(reservation("c", counter, tokens=0))
    assert isinstance(verdict, Granted)
    assert verdict.levels[0].tokens_left == 55, "what was admitted first is free first"


async def test_what_is_corrected_too_late_changes_nothing(stores: Stores, one: BudgetStore) -> None:
    counter = LimitCounter("key_t", tpm=100)
    assert granted(await one.reserve(reservation("a", counter, nusd=1, tokens=10)))
    stores.clock.now += 70
    await one.close([ended(reservation("a", counter), 1, 90)])
    assert granted(await one.reserve(reservation("b", counter, tokens=100)))


async def test_a_clock_that_was_put_back_locks_nobody_out_for_long(stores: Stores, one: BudgetStore) -> None:
    counter = LimitCounter("key_r", rpm=1)
    assert granted(await one.reserve(reservation("a", counter)))
    stores.clock.now -= 3_600
    assert granted(await one.reserve(reservation("b", counter)))


async def test_never_more_than_the_bound_in_any_minute_and_free_within_61_s(stores: Stores, one: BudgetStore) -> None:
    counter = LimitCounter("key_r", rpm=5)
    passed: list[float] = []
    for number in range(400):
        stores.clock.now = NOW + number * 0.7
        if granted(await one.reserve(reservation(f"x{number}", counter))):
            passed.append(stores.clock.now)
        else:
            assert stores.clock.now - passed[-5] < 61
    assert all(later - earlier > 60 for earlier, later in zip(passed, passed[5:], strict=False))


# -- sums


async def test_an_entry_is_counted_once_whoever_brings_it(one: BudgetStore, other: BudgetStore) -> None:
    await seeded(one, KEY, spent=10)
    assert await one.cursor() == 100
    found = [change("x", 101, 5, "key_a"), change("y", 105, -2, "key_a"), change("z", 105, 4, "key_b")]
    assert await one.absorb(100, found, 105)
    assert not await other.absorb(100, found, 105)
    assert await other.cursor() == 105
    assert (await standing(one)).spent == 13
    assert await other.absorb(105, [], 120)
    assert await one.cursor() == 120


async def test_nothing_happens_if_the_cursor_is_elsewhere(one: BudgetStore) -> None:
    assert await one.cursor() is None
    assert not await one.absorb(0, [change("x", 1, 5, "key_a")], 1)
    assert await one.cursor() is None
    await seeded(one, KEY, spent=10)
    await one.reserve(reservation("x", KEY, nusd=100))
    assert not await one.absorb(99, [change("x", 101, 5, "key_a")], 101)
    assert not await one.absorb(101, [change("x", 102, 5, "key_a")], 102)
    assert await standing(one) == CounterState("key_a", SINCE, 10, 100, 1, 0)


async def test_an_empty_ledger_has_a_time_too(one: BudgetStore) -> None:
    await seeded(one, KEY, as_of_us=0)
    assert await one.cursor() == 0
    assert await one.absorb(0, [change("x", 7, 5, "key_a")], 7)
    assert (await standing(one)).spent == 5


async def test_a_seed_older_than_the_cursor_is_passed_over(one: BudgetStore) -> None:
    await seeded(one, KEY, spent=10)
    assert await one.absorb(100, [change("x", 110, 5, "key_a", "org_a")], 110)
    await seeded(one, ORG, KEY, spent=1, as_of_us=109)
    assert (await standing(one)).spent == 15
    assert await one.counter_states(["org_a"]) == []
    await seeded(one, ORG, spent=6, as_of_us=110)
    assert (await standing(one, ORG)).spent == 6


async def test_a_seed_newer_than_the_cursor_knows_what_comes(one: BudgetStore) -> None:
    await seeded(one, KEY, spent=10)
    await seeded(one, ORG, spent=60, as_of_us=150)
    assert await one.cursor() == 100
    entries = [change("x", 150, 5, "key_a", "org_a"), change("y", 151, 7, "key_a", "org_a")]
    assert await one.absorb(100, entries, 151)
    assert ((await standing(one)).spent, (await standing(one, ORG)).spent) == (22, 67)


async def test_of_two_seeds_the_one_that_knows_more_stays(one: BudgetStore) -> None:
    await seeded(one, KEY, spent=10)
    await seeded(one, KEY, spent=30, as_of_us=150)
    await seeded(one, KEY, spent=20, as_of_us=120)
    assert (await standing(one)).spent == 30
    assert await one.absorb(100, [change("x", 120, 10, "key_a"), change("y", 150, 10, "key_a")], 150)
    assert (await standing(one)).spent == 30


async def test_the_first_seeds_begin_with_the_oldest(one: BudgetStore) -> None:
    await one.seed([SpendTotal("key_a", SINCE, 10, 130), SpendTotal("org_a", 0.0, 20, 120)])
    assert await one.cursor() == 120
    assert await one.absorb(120, [change("x", 125, 5, "key_a", "org_a")], 125)
    assert ((await standing(one)).spent, (await standing(one, ORG)).spent) == (10, 25)
    await one.seed([])
    assert await one.cursor() == 125


async def test_an_entry_counts_in_the_window_in_which_its_exchange_began(one: BudgetStore) -> None:
    await seeded(one, KEY, spent=10)
    entries = [
        change("x", 101, 1, "key_a", started_at=SINCE - 0.001),
        change("y", 101, 20, "key_a", started_at=SINCE),
        change("z", 101, 300, "key_a", started_at=SINCE + 0.001),
    ]
    assert await one.absorb(100, entries, 101)
    assert (await standing(one)).spent == 330


async def test_an_entry_releases_its_exchange_where_it_counts_nowhere_too(one: BudgetStore) -> None:
    await seeded(one, KEY, spent=10)
    await one.reserve(reservation("x", KEY, LimitCounter("key_p", parallel=1), nusd=100))
    assert await one.absorb(100, [change("x", 101, 1, "org_a", started_at=0.0)], 101)
    assert await reserved(one) == await reserved(one, LimitCounter("key_p")) == (0, 0, 0)


async def test_forgotten_sums_leave_the_holds_and_the_rates(one: BudgetStore, other: BudgetStore) -> None:
    rated = LimitCounter("key_r", rpm=1)
    await seeded(one, KEY, ORG, spent=10)
    await one.reserve(reservation("x", KEY, nusd=100))
    assert granted(await one.reserve(reservation("w", rated)))
    await one.close([ended(reservation("w", rated), 0)])
    await other.forget_sums()
    assert not granted(await one.reserve(reservation("v", rated)))
    assert await one.cursor() is None
    assert await one.counter_states(["key_a", "org_a"]) == [CounterState("key_a", 0.0, None, 100, 1, 0)]
    assert await one.reserve(reservation("y", KEY, nusd=1)) == Unseeded((KEY,))
    await seeded(one, KEY, spent=20, as_of_us=130)
    assert await one.cursor() == 130
    assert denied(await one.reserve(reservation("y", KEY, nusd=881))).why is DenialReason.MONEY
    assert await left(one) == 880


async def test_what_was_read_before_all_was_forgotten_is_passed_over(
    stores: Stores, one: BudgetStore, other: BudgetStore
) -> None:
    """The money of it: `x` is held no longer, and not yet in a sum that was read before it was settled."""
    await seeded(one, KEY)
    await one.reserve(reservation("x", KEY, nusd=1_000))
    assert await one.absorb(100, [change("x", 110, 1_000, "key_a")], 110)
    await one.forget_sums()
    await one.forget_sums()
    await seeded(other, KEY, spent=0, as_of_us=109)
    assert await one.reserve(reservation("y", KEY, nusd=1)) == Unseeded((KEY,))
    assert await one.cursor() is None
    await seeded(other, KEY, spent=1_000, as_of_us=110)
    assert denied(await one.reserve(reservation("y", KEY, nusd=1))).why is DenialReason.MONEY
    await one.forget_sums()
    stores.clock.now += 61
    await seeded(other, KEY, spent=0, as_of_us=7)
    assert await one.cursor() == 7, "in the end the ledger is right, whatever became of it"


async def test_a_restored_ledger_is_read_at_once(one: BudgetStore, other: BudgetStore) -> None:
    """Its sums are older than what was absorbed of the lost one; older than itself, they are still passed over."""
    await seeded(one, KEY, as_of_us=110)
    await one.forget_sums()
    await seeded(one, KEY, as_of_us=110)
    await one.forget_sums(restored_to_us=90)
    await seeded(other, KEY, spent=0, as_of_us=89)
    assert await one.reserve(reservation("y", KEY, nusd=1)) == Unseeded((KEY,))
    await seeded(other, KEY, spent=7, as_of_us=90)
    assert await one.cursor() == 90
    assert granted(await one.reserve(reservation("y", KEY, nusd=1)))


async def test_the_history_of_the_ledger_is_known_to_all(one: BudgetStore, other: BudgetStore) -> None:
    assert await one.timeline() is None
    await one.set_timeline("00000001/5")
    await other.set_timeline("00000002/5")
    assert (await one.timeline(), await other.timeline()) == ("00000002/5", "00000002/5")


async def test_a_restarted_node_resumes_what_the_store_has_kept(stores: Stores) -> None:
    """However its last process ended; not what the store has lost, and not what was never announced to the end."""
    first = stores.node("again")
    assert not await first.resumes()
    await first.announce(owns)
    await seeded(first, KEY)
    assert granted(await first.reserve(reservation("x", KEY, nusd=600)))
    await first.close([ended(reservation("x", KEY, nusd=600), 600)])
    await first.aclose()
    for crashed in (stores.node("again"), stores.node("again")):
        assert await crashed.resumes()
        assert denied(await crashed.reserve(reservation("y", KEY, nusd=500))).why is DenialReason.MONEY
        assert granted(await crashed.reserve(reservation("z", KEY, nusd=1)))

    async def dies() -> None:
        with pytest.raises(ZeroDivisionError):
            await crashed.announce(lambda: 1 // 0)  # type: ignore[arg-type, return-value]

    if stores.kind == "local":  # on a server, the holds of the announcement before are there all the same
        await dies()
        assert not await stores.node("again").resumes()
    await stores.lose()
    assert not await stores.node("again").resumes()


async def test_counters_stand_in_the_order_of_their_ids(one: BudgetStore) -> None:
    await seeded(one, ORG, KEY, LimitCounter("aaa"), spent=1)
    await one.reserve(reservation("x", LimitCounter("zzz"), LimitCounter("mmm"), nusd=3))
    assert [found.counter_id for found in await one.counter_states()] == ["aaa", "key_a", "mmm", "org_a", "zzz"]
    assert [found.counter_id for found in await one.counter_states(["zzz", "org_a", "nobody"])] == ["org_a", "zzz"]


# -- what is overdue, and who is dead


async def test_what_ended_long_ago_and_is_still_held_is_found(
    stores: Stores, one: BudgetStore, other: BudgetStore
) -> None:
    counter = LimitCounter("key_p")
    for name, store in (("x", one), ("y", other), ("z", one)):
        await store.reserve(reservation(name, counter, nusd=9))
    await one.close([ended(reservation("x", counter), 5)])
    stores.clock.now += 3
    await other.close([ended(reservation("y", counter), 5)])
    assert await one.overdue(3) == []
    stores.clock.now += 1
    assert await other.overdue(3) == ["x"]
    assert await other.overdue(0.5) == ["x", "y"]
    await one.release(["x", "nobody"])
    assert await one.overdue(0.5) == ["y"]
    assert await reserved(one, counter) == (14, 1, 1)


async def test_what_a_dead_node_runs_is_released(one: BudgetStore, other: BudgetStore) -> None:
    await seeded(one, KEY)
    for name, store in (("a", one), ("b", one), ("c", one), ("d", other)):
        await store.reserve(reservation(name, KEY, nusd=100))
    await one.close([ended(reservation("c", KEY), 50)])
    assert await other.abandon("one", {"b", "d"}) == 1
    assert await reserved(one) == (100 + 50 + 100, 1, 2), "what the ledger has ended, at what it held"
    assert await other.abandon("nobody", ()) == await other.abandon("one", ()) == 0
    await one.announce(owns)
    assert await reserved(one) == (100 + 50 + 100, 1, 2)
    assert sorted(await one.overdue(-1)) == ["b", "c"]


async def test_a_node_that_was_taken_for_dead_finds_out(one: BudgetStore, other: BudgetStore) -> None:
    await seeded(one, KEY)
    running = reservation("a", KEY, nusd=100, at=NOW)
    await one.reserve(running)
    await one.announce(lambda: owns([running]))
    assert await one.heartbeat()
    assert await other.abandon("one", ()) == 1
    assert not await one.heartbeat()
    await one.announce(lambda: owns([running]))
    assert await one.heartbeat()
    assert await reserved(other) == (100, 1, 0)


async def test_names_of_nodes_are_not_confused(stores: Stores) -> None:
    first, second = stores.node("n"), stores.node("n:1")
    await first.reserve(reservation("x", LimitCounter("key_p")))
    await second.reserve(reservation("y", LimitCounter("key_p")))
    assert await first.abandon("n:1", ()) == 1
    assert await reserved(first, LimitCounter("key_p")) == (0, 1, 0)


# -- announcing


async def test_a_node_announces_before_it_is_whole(stores: Stores) -> None:
    one, other = stores.node("new"), stores.node("newer")
    assert not await one.heartbeat()
    await one.announce(owns)
    assert await one.heartbeat()
    assert not await other.heartbeat()
    assert granted(await other.reserve(reservation("x", LimitCounter("key_p")))), "it is not kept from working, though"
    assert await one.heartbeat()


async def test_holds_become_what_the_node_knows(one: BudgetStore, other: BudgetStore) -> None:
    await seeded(one, KEY)
    ids = ("kept", "grown", "ended", "nothing", "stranger", "asking", "again")
    each = {name: reservation(name, KEY, nusd=10, at=NOW) for name in ids}
    for one_hold in each.values():
        assert granted(await one.reserve(one_hold))
    await one.close([ended(each["again"], 3)])
    await other.reserve(reservation("theirs", KEY, nusd=1))
    running = [
        each["kept"],
        structs.replace(each["grown"], nusd=600),
        reservation("new", KEY, nusd=200, at=NOW),
        each["again"],
    ]
    closed = [
        ended(each["ended"], 4),
        ended(each["nothing"], 0),
        ended(reservation("late", KEY), 30),
        reservation("void", KEY),
    ]
    await one.announce(lambda: owns(running, closed, ["asking"]))
    nusd = 10 + 600 + 200 + 10 + 4 + 30 + 10 + 1
    assert await reserved(other) == (nusd, 6, 2)
    assert await one.overdue(-1) == ["ended", "late"]
    await one.announce(lambda: owns(running, closed, ["asking"]))
    assert await reserved(other) == (nusd, 6, 2), "again: nothing"
    await one.announce(owns)
    assert await reserved(other) == (4 + 30 + 1, 1, 2), "what ended and is not known any more, the ledger has"
    await one.absorb(100, [change("ended", 101, 4, "key_a"), change("late", 101, 30, "key_a")], 101)
    assert await standing(other) == CounterState("key_a", SINCE, 34, 1, 1, 0)


async def test_it_is_unchecked(one: BudgetStore) -> None:
    await seeded(one, KEY, spent=1_000)
    await one.announce(lambda: owns([reservation("x", KEY, nusd=5_000, at=NOW)]))
    assert await reserved(one) == (5_000, 1, 0)


async def test_what_another_node_ran_is_this_ones_once_it_says_so(one: BudgetStore, other: BudgetStore) -> None:
    counter = LimitCounter("key_p")
    await one.reserve(reservation("x", counter, nusd=10))
    await one.reserve(reservation("y", counter, nusd=10))
    taken = [reservation("x", counter, nusd=10, at=NOW)], [ended(reservation("y", counter), 5)]
    await other.announce(lambda: owns(*taken))
    assert await one.abandon("one", ()) == 0
    assert await reserved(one, counter) == (15, 1, 1)
    assert await one.abandon("other", ()) == 1


async def announced_beside(store: BudgetStore, own: OwnReservations, work: Coroutine[Any, Any, _T]) -> _T:
    """What comes of `work`, which begins while `store` announces its `own` reservations."""
    begun: list[asyncio.Task[_T]] = []

    def begin() -> OwnReservations:
        begun.append(asyncio.get_running_loop().create_task(work))
        return own

    await store.announce(begin)
    return await begun[0]


async def test_what_begins_while_it_announces_is_no_stranger(one: BudgetStore) -> None:
    await seeded(one, KEY)
    assert granted(await announced_beside(one, owns(), one.reserve(reservation("x", KEY, nusd=10))))
    assert await reserved(one) == (10, 1, 0)
    assert await one.heartbeat()


@pytest.mark.usefixtures("small_batches")
async def test_what_ends_while_it_announces_has_ended(one: BudgetStore) -> None:
    await seeded(one, KEY)
    running = [reservation(f"x{number}", KEY, nusd=1, at=NOW) for number in range(60)]
    for each in running:
        assert granted(await one.reserve(each))
    await announced_beside(one, owns(running), one.close([ended(each, 0) for each in running]))
    assert await reserved(one) == (0, 0, 0)


@pytest.mark.usefixtures("small_batches")
async def test_what_the_ledger_brings_while_it_announces_is_not_held_again(
    one: BudgetStore, other: BudgetStore
) -> None:
    await seeded(one, KEY, spent=-100)
    running = [reservation(f"x{number}", KEY, nusd=1, at=NOW) for number in range(110)]
    for each in running:
        assert granted(await one.reserve(each))
    closed = [ended(each, 1) for each in running]
    await one.close(closed)
    changes = [change(each.exchange_id, 101, 1, "key_a") for each in running]
    await asyncio.gather(*[other.heartbeat() for _ in range(5)])  # connections enough: its question is not late
    assert await announced_beside(one, owns((), closed), other.absorb(100, changes, 101))
    assert await standing(one) == CounterState("key_a", SINCE, 10, 0, 0, 0)


# -- losses


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """For others to announce after a loss, on a file: where nobody is late."""
    monkeypatch.setattr(budget_file, "WARM_S", 0.3)


@pytest.mark.usefixtures("short_wait")
async def test_after_a_loss_all_is_as_it_was_once_it_was_announced(
    stores: Stores, one: BudgetStore, other: BudgetStore
) -> None:
    rated = LimitCounter("key_r", rpm=2, parallel=2)
    running, closed = reservation("x", KEY, rated, nusd=700, at=NOW), ended(reservation("y", KEY), 100)
    await seeded(one, KEY, spent=150)
    await one.announce(owns)
    await other.announce(owns)
    await one.reserve(running)
    await other.reserve(reservation("y", KEY, nusd=100))
    await other.close([closed])
    await stores.lose()
    assert not await one.heartbeat()
    assert not await other.heartbeat()
    await one.announce(lambda: owns([running]))
    await other.announce(lambda: owns((), [closed]))
    assert await one.heartbeat()
    assert await other.heartbeat()
    assert await one.cursor() is None
    await seeded(other, KEY, spent=150, as_of_us=200)
    assert await standing(one) == CounterState("key_a", SINCE, 150, 800, 1, 1)
    await stores.warmed()
    assert denied(await one.reserve(reservation("z", KEY, nusd=51))).why is DenialReason.MONEY
    assert granted(await one.reserve(reservation("z", KEY, rated, nusd=50)))
    assert denied(await one.reserve(reservation("w", rated))).why is DenialReason.REQUESTS, "what runs still counts"


async def test_after_a_loss_nothing_is_granted_before_the_others_could_announce(
    stores: Stores, one: BudgetStore, other: BudgetStore
) -> None:
    """The money of it: without the wait, the second thousand would go out as well."""
    await seeded(one, KEY)
    running = reservation("x", KEY, nusd=1_000, at=NOW)
    await one.announce(owns)
    await other.announce(owns)
    assert granted(await other.reserve(running))
    await stores.lose()
    await one.announce(owns)
    await seeded(one, KEY)

    async def announced() -> None:
        await asyncio.sleep(0.2)
        assert not await other.heartbeat()
        await other.announce(lambda: owns([running]))
        await stores.warmed()

    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(one.reserve(reservation("y", KEY, nusd=1)))
        tasks.create_task(announced())
    assert denied(asked.result()).why is DenialReason.MONEY


@pytest.mark.usefixtures("short_wait")
async def test_after_a_loss_what_was_settled_refuses_nobody_for_being_held_too(
    stores: Stores, one: BudgetStore
) -> None:
    """A node announces what it does not know to be settled, and asks the ledger then."""
    settled = ended(reservation("x", KEY, at=NOW), 900)
    await stores.lose()
    await one.announce(lambda: owns((), [settled]))
    await seeded(one, KEY, spent=900)
    asked = asyncio.get_running_loop().create_task(one.reserve(reservation("y", KEY, nusd=100)))
    await asyncio.sleep(0.1)
    assert not asked.done()
    await one.release(["x"])
    await stores.warmed()
    assert granted(await asked)


async def test_after_a_loss_rates_alone_do_not_wait_and_what_runs_is_known(stores: Stores, one: BudgetStore) -> None:
    running = reservation("x", LimitCounter("key_p", parallel=1), at=NOW)
    assert granted(await one.reserve(running))
    await stores.lose()
    await one.announce(lambda: owns([running]))
    async with asyncio.timeout(1):
        assert granted(await one.reserve(reservation("y", LimitCounter("key_r", rpm=1))))
        assert granted(await one.reserve(running)), "the same exchange again"
        assert not granted(await one.reserve(reservation("z", LimitCounter("key_p", parallel=1)))), (
            "more cannot turn up to free it"
        )


@pytest.mark.usefixtures("short_wait")
async def test_after_a_loss_nobody_is_locked_out(stores: Stores, one: BudgetStore) -> None:
    await stores.lose()
    await one.announce(owns)
    asked = asyncio.get_running_loop().create_task(one.reserve(reservation("x", LimitCounter("key_p", parallel=1))))
    await asyncio.sleep(0.05)
    await stores.warmed()
    async with asyncio.timeout(3.5):
        assert granted(await asked)


@pytest.mark.usefixtures("short_wait")
async def test_what_was_being_read_before_a_loss_is_passed_over(stores: Stores, one: BudgetStore) -> None:
    """The money of it: `x` was settled after the ledger was read, and whoever held it has forgotten it."""
    assert await one.reserve(reservation("y", KEY, nusd=1)) == Unseeded((KEY,))
    await stores.lose()
    await one.announce(owns)
    assert await one.reserve(reservation("z", KEY, nusd=1)) == Unseeded((KEY,)), "another waits for the same reading"
    await seeded(one, KEY, spent=0, as_of_us=109)
    assert await one.reserve(reservation("z", KEY, nusd=1)) == Unseeded((KEY,))
    await seeded(one, KEY, spent=1_000, as_of_us=110)
    await stores.warmed()
    assert denied(await one.reserve(reservation("z", KEY, nusd=1))).why is DenialReason.MONEY


@pytest.mark.usefixtures("short_wait")
async def test_a_loss_in_the_middle_of_everything(stores: Stores, one: BudgetStore) -> None:
    """Whatever was lost when: once all is announced and absorbed, nothing is held."""
    reader = stores.node("reader")
    counter = LimitCounter("key_m", parallel=1_000)
    running: dict[str, Reservation] = {}
    losing = isinstance(stores, LocalStores)
    for number in range(60):
        each = reservation(f"x{number}", counter, nusd=number + 1, at=NOW)
        running[each.exchange_id] = each
        if number == 33:
            await stores.lose()
            await stores.warmed() if losing else None
        if not await one.heartbeat():
            await one.announce(lambda: owns(list(running.values())))
            await stores.warmed()
        async with asyncio.timeout(4):
            assert granted(await one.reserve(each))
    assert await reserved(reader, counter) == (sum(range(1, 61)), 60, 0)
    await one.close([ended(each, 0) for each in running.values()])
    assert await reserved(reader, counter) == (0, 0, 0)


async def test_what_ended_before_the_clock_was_set_back_is_overdue(stores: Stores, one: BudgetStore) -> None:
    counter = LimitCounter("key_p")
    await one.reserve(reservation("x", counter, nusd=10))
    await one.close([ended(reservation("x", counter), 7)])
    assert await one.overdue(5) == []
    stores.clock.now -= 3_600
    assert await one.overdue(5) == ["x"]


@pytest.mark.usefixtures("short_wait")
async def test_a_clock_that_is_set_back_after_a_loss_locks_nobody_out(stores: Stores, one: BudgetStore) -> None:
    await stores.lose()
    assert not await one.heartbeat()
    await one.announce(owns)
    stores.clock.now -= 3_600
    await one.cursor()
    await stores.warmed()
    assert granted(await one.reserve(reservation("x", LimitCounter("key_p", parallel=1))))


async def test_one_node_leads_and_another_after_it(one: BudgetStore, other: BudgetStore) -> None:
    assert await one.lead(60.0)
    for _ in range(3):
        assert await one.lead(0.05)
        assert not await other.lead(60.0)
    await one.aclose()
    await until(lambda: other.lead(60.0))
    assert await other.lead(60.0)


async def test_seeded_counters_come_in_pages(one: BudgetStore) -> None:
    seeded = {f"key_{number:04}" for number in range(1_500)}
    await one.seed([SpendTotal(counter_id, 0.0, 1, int(NOW * 1e6)) for counter_id in seeded])
    await one.reserve(Reservation("x", (LimitCounter("key_unseeded", parallel=1),), 0, 0, NOW))
    pages, after = [], None
    while after != "":
        page, after = await one.seeded(after or "", 500)
        pages.append(page)
    assert {counter_id for page in pages for counter_id in page} == seeded
    assert len(pages) > 1
