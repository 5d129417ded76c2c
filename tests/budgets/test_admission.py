"""Admission, on a real store: what it does when the store fails, forgets, or the ledger is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proxy.billing.keys import ApiKey
from proxy.billing.limits import LimitCounter, Limits, Measure, OnStoreOutage, Scope, measured
from proxy.billing.reservation import DenialReason, Denied, Granted, Reservation, SpendTotal
from proxy.budgets import admission as under_test
from proxy.budgets import outage_allowance
from proxy.budgets.admission import FORGET_S, Admission, ClosedReservations, OpenReservation
from proxy.budgets.sqlite.store import SqliteBudgets
from proxy.budgets.store import BudgetStore, BudgetsUnavailable, OwnReservations
from tests.budgets.recorder import AdmissionRecorder
from tests.support.waiting import beside, until

pytestmark = pytest.mark.io

NOW = 1_790_000_000.0
ALLOWANCE = 1_000
KEY = ApiKey("key_a", "a", b"d" * 32, "h", models=None, created_at=NOW, expires_at=None, revoked_at=None, revision=1)
OPEN = replace(KEY, on_store_outage=OnStoreOutage.FAIL_OPEN)
BUDGET = Scope("key_a", Limits(budget_nusd=1_000, budget_window="none"), NOW)
RATE = Scope("key_a", Limits(rpm=5), NOW)


class Flaky:
    """A store that can be away."""

    def __init__(self, store: BudgetStore) -> None:
        self._store = store
        self.away = False
        self.lost = False
        self.now = NOW
        self.announced: list[OwnReservations] = []

    def time(self) -> float:
        return self.now

    def close_soon(self, ended: Sequence[Reservation], otherwise: Callable[[Sequence[Reservation]], None]) -> None:
        if self.away:
            otherwise(ended)
        else:
            self._store.close_soon(ended, otherwise)

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._store, name)

        async def call(*arguments: Any, **more: Any) -> Any:
            if self.away:
                raise BudgetsUnavailable("it is away")
            if name == "heartbeat" and self.lost:
                return False
            if name == "announce":
                self.announced.append(arguments[0]())
                self.lost = False
            return await inner(*arguments, **more)

        return call


class Plant:
    def __init__(self, folder: Path, on_store_outage: OnStoreOutage = OnStoreOutage.FAIL_CLOSED) -> None:
        self.local = SqliteBudgets(folder / "budgets.db", node="n", unix_time=lambda: NOW)
        self.store = Flaky(self.local)
        self.seen = AdmissionRecorder()
        self.spent = 0
        self.settled: set[str] = set()
        self.ledger_away = False
        self.ledger_hangs = asyncio.Event()
        self.ledger_asked = asyncio.Event()
        self.ended = ClosedReservations()
        self.admission = Admission(
            self.store, self.ended, seed=self._seed, settled=self._settled, tidy=self._tidy,
            on_store_outage=on_store_outage, allowance_nusd=ALLOWANCE, observer=self.seen,
        )  # fmt: skip

    async def admit(
        self, name: str, nusd: int, *, scope: Scope = BUDGET, key: ApiKey = KEY
    ) -> OpenReservation | Denied:
        return await self.admission.admit(key, (scope,), name, nusd=nusd, tokens=10)

    async def admitted(self, name: str, nusd: int, **options: Any) -> OpenReservation:
        one = await self.admit(name, nusd, **options)
        assert isinstance(one, OpenReservation), name
        return one

    async def denied(self, name: str, nusd: int, **options: Any) -> DenialReason:
        """Why."""
        one = await self.admit(name, nusd, **options)
        assert isinstance(one, Denied), name
        return one.why

    async def closed(self, name: str, nusd: int, charge_nusd: int, **options: Any) -> None:
        """Admitted, and ended."""
        one = await self.admitted(name, nusd, **options)
        one.close(charge_nusd, 10)

    async def reserved(self) -> int:
        return sum(one.reserved for one in await self.local.counter_states(["key_a"]))

    async def until_reserved(self, nusd: int) -> None:
        async def is_reserved() -> bool:
            return await self.reserved() == nusd

        await until(is_reserved)

    async def _seed(self, counters: Sequence[LimitCounter]) -> None:
        if self.ledger_away:
            raise OSError("the ledger is away")
        await self.local.seed([SpendTotal(counter.counter_id, counter.since, self.spent, 1) for counter in counters])

    async def _settled(self, exchange_ids: Sequence[str]) -> Collection[str]:
        await self._asked()
        return self.settled & set(exchange_ids)

    async def _tidy(self) -> None:
        """Nothing is in both."""
        await self._asked()

    async def _asked(self) -> None:
        """A database that hangs: its connections stay, and it never answers."""
        if self.ledger_hangs.is_set():
            self.ledger_asked.set()
            await asyncio.Event().wait()


@pytest.fixture
async def plant(tmp_path: Path) -> AsyncIterator[Plant]:
    made = Plant(tmp_path)
    await made.admission.announce()
    made.store.announced.clear()
    yield made
    made.store.away = False
    await made.admission.aclose()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "CHECK_S", 0.02)


async def test_it_holds_and_lets_go(plant: Plant) -> None:
    async with beside(plant.admission.run()):
        first = await plant.admitted("x1", 600)
        assert plant.admission.reserved_nusd == 600
        assert isinstance(await plant.admit("x2", 600), Denied)
        first.close(0, 0)
        assert plant.admission.reserved_nusd == 0
        await plant.until_reserved(0)
        assert isinstance(await plant.admit("x3", 1_000), OpenReservation)
    assert plant.seen == AdmissionRecorder(denials=["money"])


async def test_a_refusal_of_credit_says_when_the_next_grant_begins(plant: Plant) -> None:
    asked: list[str] = []

    async def next_grant(scope_id: str) -> float:
        asked.append(scope_id)
        return NOW + 60

    plant.admission._next_grant = next_grant
    prepaid = Scope(KEY.key_id, Limits(prepaid=True), BUDGET.created_at)
    refused = await plant.admit("x1", 600, scope=prepaid)
    assert isinstance(refused, Denied)
    assert (refused.next_grant_at, asked) == (NOW + 60, [KEY.key_id])
    await plant.denied("x2", 10**12)
    assert asked == [KEY.key_id], "a budget has no grants"


async def test_what_is_not_limited_asks_nobody(plant: Plant) -> None:
    plant.store.away = True
    found = await plant.admission.admit(KEY, (), "x1", nusd=10**12, tokens=10**9)
    assert isinstance(found, OpenReservation)
    found.grow(10**15)
    found.close(10**15, 1)
    assert plant.seen == AdmissionRecorder()


async def test_a_charge_is_held_until_the_ledger_has_it(plant: Plant) -> None:
    async with beside(plant.admission.run()):
        await plant.closed("x1", 600, 500)
        await plant.until_reserved(500)
        plant.store.lost = True
        await until(lambda: plant.store.announced)
        assert [reserved.nusd for reserved in plant.store.announced[-1].closed] == [500]
        plant.settled.add("x1")
        plant.store.now += FORGET_S

        async def forgotten() -> bool:
            plant.store.lost = True
            return plant.store.announced[-1].closed == []

        await until(forgotten)


async def test_who_follows_the_ledger_says_at_once_what_it_has(plant: Plant) -> None:
    async with beside(plant.admission.run()):
        for name in ("x1", "x2"):
            await plant.closed(name, 300, 250)
        await plant.until_reserved(500)
        plant.ended.forget(["x1", "of another node"])
        plant.store.lost = True
        await until(lambda: plant.store.announced)
        assert [reserved.exchange_id for reserved in plant.store.announced[-1].closed] == ["x2"]


@pytest.mark.parametrize("turns", range(4))
async def test_a_request_that_is_given_up_while_it_is_being_held_holds_nothing(plant: Plant, turns: int) -> None:
    async with beside(plant.admission.run()):
        await plant.admit("seeds", 1)
        asked = asyncio.get_running_loop().create_task(plant.admit("x1", 600))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not asked.cancel():
            asked.result().close(0, 0)
        with suppress(asyncio.CancelledError):
            await asked
        await plant.until_reserved(1)


async def test_a_store_that_is_away_refuses_keys_with_budgets_and_nobody_else(plant: Plant) -> None:
    assert isinstance(await plant.admit("x0", 1), OpenReservation)
    plant.store.away = True
    assert await plant.denied("x1", 1) is DenialReason.STORE_UNAVAILABLE
    assert isinstance(await plant.admit("x2", 1, scope=RATE), OpenReservation)
    assert [str(error) for error in plant.seen.failures] == ["it is away"]
    assert plant.seen.denials == ["store_unavailable"]


async def test_a_key_may_be_let_through_within_the_allowance(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant.store.away = True
    admitted = [isinstance(await plant.admit(f"x{n}", 300, key=OPEN), OpenReservation) for n in range(5)]
    assert admitted == [True, True, True, False, False]
    plant.store.away = False
    async with beside(plant.admission.run()):
        await until(lambda: plant.seen.healings)
    plant.store.away = True
    assert isinstance(await plant.admit("x8", 300, key=OPEN), Denied), "a store that flaps is one outage"
    plant.store.away = False
    assert isinstance(await plant.admit("x9", 1, key=OPEN), OpenReservation)
    monkeypatch.setattr(outage_allowance, "APART_S", 0.0)
    plant.store.away = True
    assert isinstance(await plant.admit("x10", 300, key=OPEN), OpenReservation), "another outage has another allowance"


async def test_the_policy_may_change_during_an_outage(plant: Plant) -> None:
    plant.store.away = True
    assert isinstance(await plant.admit("x1", 300), Denied)
    for number, allowance in enumerate((500, 700)):
        plant.admission.use_outage_policy(OnStoreOutage.FAIL_OPEN, allowance)
        assert isinstance(await plant.admit(f"x{number}2", 300), OpenReservation), "what was used stays used"
        assert isinstance(await plant.admit(f"x{number}3", 300), Denied)
    plant.admission.use_outage_policy(OnStoreOutage.FAIL_CLOSED, 10_000)
    assert isinstance(await plant.admit("x4", 1), Denied)


async def test_what_an_exchange_did_not_use_of_the_allowance_is_given_back(plant: Plant) -> None:
    plant.store.away = True
    for name in ("x1", "x2", "x3", "x4", "x5", "x6"):
        await plant.closed(name, 900, 10, key=OPEN)
    await plant.closed("x7", 900, 960, key=OPEN)  # more than it was quoted
    assert isinstance(await plant.admit("x8", 1, key=OPEN), Denied)


@pytest.mark.parametrize("policy", [None, OnStoreOutage.FAIL_OPEN])
async def test_keys_without_a_budget_use_nothing_of_the_allowance(plant: Plant, policy: OnStoreOutage | None) -> None:
    unlimited = replace(KEY, on_store_outage=policy)
    plant.store.away = True
    for number in range(20):
        assert isinstance(await plant.admit(f"x{number}", 300, scope=RATE, key=unlimited), OpenReservation)
    assert isinstance(await plant.admit("y", 1_000, key=OPEN), OpenReservation), "all of it is left"


async def test_an_outage_of_the_ledger_gives_a_fresh_allowance_once_it_is_over(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant.ledger_away = True
    assert isinstance(await plant.admit("x1", 900, key=OPEN), OpenReservation)
    assert isinstance(await plant.admit("x2", 900, key=OPEN), Denied)
    monkeypatch.setattr(outage_allowance, "APART_S", 0.0)
    assert isinstance(await plant.admit("x3", 900, key=OPEN), Denied), "it lasts"
    plant.ledger_away = False
    async with beside(plant.admission.run()):  # what was admitted without the store is announced, and counts there
        await plant.until_reserved(900)
    assert isinstance(await plant.admit("x4", 50, key=OPEN), OpenReservation)
    plant.ledger_away = True
    await plant.local.forget_sums()
    assert isinstance(await plant.admit("x5", 900, key=OPEN), OpenReservation)


async def test_windows_begin_by_the_clock_of_the_store(plant: Plant) -> None:
    """Seen from the code: at a month's start, two proxies with skewed clocks read the ledger again in turn."""
    monthly = Scope("key_a", Limits(budget_nusd=1_000, budget_window="calendar_month"), NOW)
    plant.store.now = december = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    one = await plant.admitted("x", 1, scope=monthly)
    assert (one.reserved.counters[0].since, one.reserved.at) == (december, december)


async def test_a_key_that_was_made_by_a_clock_that_is_ahead(plant: Plant) -> None:
    """Its first window has not begun: an exchange that began before it would never count."""
    ahead = Scope("key_a", Limits(budget_nusd=1_000, budget_window="30d"), NOW + 3_600)
    one = await plant.admitted("x", 1, scope=ahead)
    assert one.reserved.at >= one.reserved.counters[0].since


async def test_a_ledger_that_hangs_delays_no_release(plant: Plant) -> None:
    async with beside(plant.admission.run()):
        await plant.closed("x1", 300, 200)
        await plant.until_reserved(200)
        plant.store.now += FORGET_S
        plant.ledger_hangs.set()
        await asyncio.wait_for(plant.ledger_asked.wait(), 5)
        for number in range(5):
            one = await plant.admitted(f"y{number}", 800)
            plant.store.away = True  # its end is told by the task, not at once
            one.close(0, 0)
            await asyncio.sleep(0)
            plant.store.away = False
            await plant.until_reserved(200)


async def test_a_ledger_that_hangs_delays_no_announcement(plant: Plant) -> None:
    async with beside(plant.admission.run()):
        plant.ledger_hangs.set()
        assert isinstance(await plant.admit("x1", 300), OpenReservation)
        for _ in range(3):
            plant.store.announced.clear()
            plant.store.lost = True
            await until(lambda: plant.store.announced)


async def test_a_deployment_may_let_all_keys_through(tmp_path: Path) -> None:
    plant = Plant(tmp_path, OnStoreOutage.FAIL_OPEN)
    await plant.admission.announce()
    plant.store.away = True
    assert isinstance(await plant.admit("x1", 300), OpenReservation)
    closed = replace(KEY, on_store_outage=OnStoreOutage.FAIL_CLOSED)
    assert isinstance(await plant.admit("x2", 300, key=closed), Denied)
    plant.store.away = False
    await plant.admission.aclose()


async def test_a_ledger_that_is_away_is_a_store_that_is_away(plant: Plant) -> None:
    plant.ledger_away = True
    assert await plant.denied("x1", 1) is DenialReason.STORE_UNAVAILABLE
    plant.ledger_away = False
    assert isinstance(await plant.admit("x2", 1), OpenReservation)


async def test_what_ended_during_an_outage_is_told_afterwards(plant: Plant) -> None:
    one = await plant.admitted("x1", 600)
    plant.store.away = True
    async with beside(plant.admission.run()):
        one.close(0, 0)
        await until(lambda: plant.seen.failures)
        plant.store.away = False
        await plant.until_reserved(0)


async def test_a_stream_grows_and_is_told_when_nothing_is_left(plant: Plant) -> None:
    one = await plant.admitted("x1", 400)
    short: list[bool] = []
    one.on_short = lambda: short.append(True)
    one.grow(400)
    assert await plant.reserved() == 400
    one.grow(600)
    await plant.until_reserved(750)
    assert short == []
    one.grow(900)
    await until(lambda: short == [True])
    one.grow(5_000)
    await plant.until_reserved(6_250)
    assert short == [True], "once"


async def test_what_is_to_be_cut_is_looked_at_again_when_its_node_was_away(plant: Plant, tmp_path: Path) -> None:
    """Its money was granted to another meanwhile."""
    short: list[str] = []
    for name in ("cut", "finish"):
        one = await plant.admitted(name, 450)
        if name == "cut":
            one.on_short = lambda: short.append("cut")
    other = SqliteBudgets(tmp_path / "budgets.db", node="other", unix_time=lambda: NOW)
    assert await other.abandon("n", ()) == 2
    counters = (LimitCounter("key_a", 0.0, 1_000),)
    assert isinstance(await other.reserve(Reservation("theirs", counters, 200, 0)), Granted)
    async with beside(plant.admission.run()):
        await until(lambda: short == ["cut"])
    assert await plant.reserved() == 1_100, "what runs goes on, and counts"
    await other.aclose()


@pytest.mark.parametrize("forgot", [True, False])
async def test_what_was_admitted_without_the_store_is_announced_and_counts(plant: Plant, forgot: bool) -> None:
    if not forgot:
        await plant.admitted("x0", 0)
    plant.store.away = True
    await plant.admitted("x1", 700, key=OPEN)
    plant.store.away, plant.store.lost = False, forgot
    async with beside(plant.admission.run()):
        await plant.until_reserved(700)
        assert isinstance(await plant.admit("x2", 400), Denied)


async def test_a_store_that_hangs_is_not_waited_for_again_and_again(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "HANGS_S", 0.05)
    assert isinstance(await plant.admit("x0", 0), OpenReservation)
    asked = []

    async def hang(reserved: Reservation) -> None:
        asked.append(reserved.exchange_id)
        await asyncio.sleep(0.06)
        raise BudgetsUnavailable("no answer")

    monkeypatch.setattr(plant.store, "reserve", hang)
    for name in ("x1", "x2", "x3"):
        assert isinstance(await plant.admit(name, 1), Denied)
    assert asked == ["x1"]
    await asyncio.sleep(0.06)
    await plant.admit("x4", 1)
    assert asked == ["x1", "x4"]


async def test_what_is_asked_for_is_not_taken_for_a_stranger(plant: Plant) -> None:
    counter = asyncio.Event()

    async def seed_late(_counters: Sequence[LimitCounter]) -> None:
        await counter.wait()
        raise OSError("too late")

    plant.admission._seed = seed_late  # type: ignore[method-assign]
    asking = asyncio.gather(plant.admit("x1", 1))
    await asyncio.sleep(0.01)
    await plant.admission.announce()
    assert plant.store.announced[-1].reserving == {"x1"}
    counter.set()
    await asking


async def test_after_a_restart_limits_wait_for_what_the_last_run_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the store has kept it. Who has no limit waits for nothing."""
    monkeypatch.setattr(under_test, "COUNTED_S", 0.05)
    unknown = Plant(tmp_path)
    await unknown.admission.resume()
    assert isinstance(await unknown.admission.admit(KEY, (), "x0", nusd=1, tokens=1), OpenReservation)
    assert isinstance(await unknown.admit("x1", 1), Denied)
    waiting = asyncio.gather(unknown.denied("x2", 200))
    await asyncio.sleep(0.01)
    unknown.admission.remember([Reservation("old", (LimitCounter("key_a", nusd_max=1_000),), 900, 0, NOW)])
    await unknown.admission.announce()
    assert await waiting == [DenialReason.MONEY]
    await unknown.admission.aclose()

    kept = Plant(tmp_path)
    await kept.admission.resume()
    assert isinstance(await kept.admit("x3", 200), Denied), "it holds 900 of 1,000"
    assert isinstance(await kept.admit("x4", 100), OpenReservation)
    assert kept.store.announced == []
    await kept.admission.aclose()


async def test_what_waits_for_the_ledger_for_long_holds_up_no_other(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a batch does, for a day."""
    monkeypatch.setattr(under_test, "FORGET_MAX", 2)
    for name in ("batch-1", "batch-2", "x1", "x2"):
        await plant.closed(name, 10, 10)
    plant.settled |= {"x1", "x2"}
    plant.store.now += FORGET_S
    async with beside(plant.admission.run()):
        await until(lambda: len(plant.admission._closed) <= 2)
    assert set(plant.admission._closed) == {"batch-1", "batch-2"}


async def test_a_stream_that_exceeds_its_quota_of_tokens_is_reserved_and_cut(plant: Plant) -> None:
    limits = Limits(budget_window="none", quotas={Measure.OUTPUT_TOKENS: 100, Measure.REQUESTS: 3})
    level = Scope("rule_a", limits, NOW)
    at_quotas = partial(measured, 1, 7, 40)
    one = await plant.admission.admit(KEY, (level,), "x", nusd=0, tokens=47, at_quotas=at_quotas)
    assert isinstance(one, OpenReservation)
    assert one.reserved.amounts == {"rule_a#output_tokens": 40, "rule_a#requests": 1}
    short: list[bool] = []
    one.on_short = lambda: short.append(True)
    one.grow_quotas(measured(1, 7, 40))
    assert one.reserved.amounts["rule_a#output_tokens"] == 40, "it is reserved already"
    one.grow_quotas(measured(1, 7, 60))
    assert one.reserved.amounts["rule_a#output_tokens"] == 75
    await until(lambda: not one._growing)
    assert isinstance(await plant.admission.admit(KEY, (level,), "y", nusd=0, tokens=47, at_quotas=at_quotas), Denied)
    one.grow_quotas(measured(1, 7, 90))
    await until(lambda: short)
    one.close(0, 110, measured(1, 7, 103))

    async def is_reserved() -> bool:
        """Without a charge, until the ledger has it."""
        states = {one.counter_id: (one.reserved, one.closed) for one in await plant.store.counter_states(None)}
        return states == {"rule_a#output_tokens": (103, 1), "rule_a#requests": (1, 1)}

    await until(is_reserved)
