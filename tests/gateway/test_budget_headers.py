"""Headers with what is left of the tightest budget, by the states of the counters."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from proxy.billing.limits import Limits, Scope, resolve_limits
from proxy.billing.money import Nusd
from proxy.billing.reservation import CounterState, Reservation
from proxy.budgets.admission import OpenReservation
from proxy.budgets.store import BudgetsUnavailable
from proxy.foundation.tasks import Tasks
from proxy.gateway.budget_headers import BudgetHeaders, headers, ready

NOW = 1_793_000_000.0
MONTHLY = Scope("proj_1", Limits(budget_nusd=Nusd(5_000_000_000), budget_window="calendar_month"), NOW)
EVER = Scope("key_1", Limits(budget_nusd=Nusd(2_000_000_000), budget_window="none", rpm=3), NOW)
PREPAID = Scope("org_1", Limits(prepaid=True), NOW)
SCOPES = (EVER, MONTHLY, PREPAID)
COUNTERS = resolve_limits(SCOPES, NOW).counters


def states(ever: int | None, monthly: int | None, credit: int | None, reserved: int = 0) -> list[CounterState]:
    spent = (ever, monthly, credit)
    return [
        CounterState(one.counter_id, one.since, nusd, reserved, 1, 0) for one, nusd in zip(COUNTERS, spent, strict=True)
    ]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (states(1_500_000_000, 0, -(10**10), 1), {"remaining": "0.499999999", "limit": "2"}),
        (
            states(0, 4_000_000_000, -(10**10)),
            {"remaining": "1", "limit": "5", "reset": "2026-11-01T00:00:00.000000Z"},
        ),
        (states(0, 0, -70_000_000), {"remaining": "0.07"}),
        (states(2_500_000_000, 0, -(10**10)), {"remaining": "0", "limit": "2"}),
        (states(0, None, -(10**10)), {}),
        (states(0, 0, 0)[:2], {}),
        ([*states(0, 0, 0)[:1], CounterState("proj_1", NOW - 1, 0, 0, 0, 0), *states(0, 0, 0)[2:]], {}),
    ],
    ids=["key", "project", "credit", "overspent", "unseeded", "unknown", "another window"],
)
def test_the_tightest_budget_is_told(found: list[CounterState], told: dict[str, str]) -> None:
    got = headers(SCOPES, COUNTERS, found, NOW)
    assert dict(got) == {f"x-tokenweir-budget-{name}": value for name, value in told.items()}


class Store:
    """Answers when it is let; else hangs."""

    def __init__(self, *, down: bool = False) -> None:
        self.answers = asyncio.Event()
        self.asked = 0
        self._down = down

    async def counter_states(self, counter_ids: Collection[str]) -> list[CounterState]:
        self.asked += 1
        if self._down:
            raise BudgetsUnavailable("down")
        await self.answers.wait()
        return [one for one in states(0, 0, -1) if one.counter_id in counter_ids]


def reservation(*scopes: Scope) -> OpenReservation:
    resolved = resolve_limits(scopes, NOW)
    reserved = Reservation("x", resolved.counters, 1, 1, NOW)
    return OpenReservation(None, reserved, (), spends=resolved.spends)  # type: ignore[arg-type]


async def test_an_answer_waits_for_no_store() -> None:
    tasks, store = Tasks(), Store()
    reading = BudgetHeaders(store, tasks).begin(SCOPES, reservation(*SCOPES))  # type: ignore[arg-type]
    assert reading is not None
    assert await ready(reading) == (), "the store hangs"
    store.answers.set()
    assert dict(await ready(reading))["x-tokenweir-budget-remaining"] == "0.000000001"
    down = BudgetHeaders(Store(down=True), tasks).begin(SCOPES, reservation(*SCOPES))  # type: ignore[arg-type]
    assert down is not None
    assert await ready(down) == ()
    stopped = BudgetHeaders(Store(), tasks).begin(SCOPES, reservation(*SCOPES))  # type: ignore[arg-type]
    assert stopped is not None
    await tasks.stop()
    assert await ready(stopped) == ()


async def test_nothing_is_read_without_a_budget() -> None:
    store = Store()
    reader = BudgetHeaders(store, Tasks())  # type: ignore[arg-type]
    rates = Scope("key_2", Limits(rpm=3), NOW)
    assert reader.begin((rates,), reservation(rates)) is None
    without_store = reservation(*SCOPES)
    without_store.allowed_nusd = 1
    assert reader.begin(SCOPES, without_store) is None
    assert store.asked == 0
