"""Limits over changes of clocks: days of 23 and 25 hours in two time zones, quotas, raises that end, and restarts.

A plain model decides each request by local dates: what settled exchanges of the same local day have used, and what is
reserved at all, must leave room at each level. Admission decides the same, on both stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from msgspec import structs

from proxy.billing.limits import LimitCounter, Limits, Measure, OnStoreOutage, Raise, Scope, measured
from proxy.billing.money import Nusd
from proxy.billing.reservation import Denied, SpendDelta, SpendTotal
from proxy.budgets.admission import Admission, ClosedReservations, OpenReservation
from proxy.budgets.sqlite import file as budget_file
from proxy.budgets.sqlite.store import JOIN_S
from tests.budgets.machine import StoreMachine
from tests.budgets.recorder import AdmissionRecorder
from tests.budgets.stores import LocalStores, OwnTime, RedisStores, Stores
from tests.gateway.inprocess import KEY
from tests.support.examples import examples

pytestmark = pytest.mark.io

SPRING = datetime(2026, 3, 27, 20, tzinfo=UTC).timestamp()
AUTUMN = datetime(2026, 10, 23, 20, tzinfo=UTC).timestamp()
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
DAY: dict[str, Any] = {"budget_window": "calendar_day"}
LIMITS = {
    "key_a": Limits(budget_nusd=Nusd(100), time_zone=BERLIN, **DAY),
    "rule_a/v_{user}": Limits(
        budget_nusd=Nusd(70), quotas={Measure.REQUESTS: 4, Measure.OUTPUT_TOKENS: 90}, time_zone=NEW_YORK, **DAY
    ),
    "proj_a": Limits(quotas={Measure.TOKENS: 150}, **DAY),
}
AMOUNT = st.integers(0, 40)


@dataclass
class Exchange:
    """What counts of an exchange, wherever it is."""

    open: OpenReservation
    at: float
    user: str
    nusd: int
    counts: dict[Measure, int]
    is_settled: bool = False

    def amount(self, measure: Measure | None) -> int:
        return self.nusd if measure is None else self.counts[measure]


class Windows(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stores.clock.now = SPRING
        self.exchanges: list[Exchange] = []
        self.deltas: list[SpendDelta] = []
        self.raised: Raise | None = None
        self.levels: dict[str, tuple[Scope, ...]] = {}
        self.admission: Admission | None = None

    @initialize()
    def begin(self) -> None:
        self.store = self.stores.node("n")

        async def seed(counters: Sequence[LimitCounter]) -> None:
            await self.store.seed([self.total(one) for one in counters])

        async def settled(ids: Sequence[str]) -> set[str]:
            return {one.open.reserved.exchange_id for one in self.exchanges if one.is_settled}.intersection(ids)

        self.admission = Admission(
            self.store, ClosedReservations(), seed=seed, settled=settled, tidy=self.nothing,
            on_store_outage=OnStoreOutage.FAIL_CLOSED, allowance_nusd=0, observer=AdmissionRecorder(),
        )  # fmt: skip
        self.do(self.admission.announce())
        self.do(self.stores.warmed())

    async def nothing(self) -> None: ...

    def total(self, counter: LimitCounter) -> SpendTotal:
        found = [one.amount_at(counter.counter_id) for one in self.deltas if one.started_at >= counter.since]
        return SpendTotal(counter.counter_id, counter.since, sum(found), 10 * len(self.deltas) + 1)

    def scopes(self, user: str) -> tuple[Scope, ...]:
        if user not in self.levels:
            made = {name.format(user=user): limits for name, limits in LIMITS.items()}
            made["key_a"] = structs.replace(made["key_a"], raised=self.raised)
            self.levels[user] = tuple(Scope(name, limits, SPRING) for name, limits in made.items())
        return self.levels[user]

    # -- requests

    @rule(user=st.sampled_from("ab"), nusd=AMOUNT, prompt=AMOUNT, output=AMOUNT)
    def ask(self, user: str, nusd: int, prompt: int, output: int) -> None:
        assert self.admission is not None
        counts, name = dict(measured(1, prompt, output)), f"x{len(self.exchanges)}-{self.now}"
        expected = all(self.fits(scope, user, nusd, counts) for scope in self.scopes(user))
        found = self.do(
            self.admission.admit(
                KEY, self.scopes(user), name, nusd=nusd, tokens=prompt + output, at_quotas=lambda: counts
            )
        )
        assert expected is not isinstance(found, Denied), found
        if isinstance(found, OpenReservation):
            self.exchanges.append(Exchange(found, self.now, user, nusd, counts))

    def fits(self, scope: Scope, user: str, nusd: int, counts: dict[Measure, int]) -> bool:
        limits = scope.limits
        zone = UTC if limits.time_zone is None else ZoneInfo(limits.time_zone)
        today = datetime.fromtimestamp(self.now, zone).date()
        present = [
            one
            for one in self.exchanges
            if ("rule" not in scope.scope_id or one.user == user)
            and (not one.is_settled or datetime.fromtimestamp(one.at, zone).date() == today)
        ]
        is_raised = limits.raised is not None and self.now < limits.raised.until
        more = limits.raised.nusd if limits.raised is not None and is_raised else 0
        bounds: list[tuple[Measure | None, int, int]] = [
            (one, most, counts[one]) for one, most in limits.quotas.items()
        ]
        if limits.budget_nusd is not None:
            bounds.append((None, limits.budget_nusd + more, nusd))
        return all(sum(one.amount(measure) for one in present) + own <= most for measure, most, own in bounds)

    @precondition(lambda self: any(not one.is_settled for one in self.exchanges))
    @rule(pick=st.integers(0, 99), nusd=AMOUNT, prompt=AMOUNT, output=AMOUNT)
    def end_and_settle(self, pick: int, nusd: int, prompt: int, output: int) -> None:
        """At less than was reserved; its entry counts in the window in which it began."""
        running = [one for one in self.exchanges if not one.is_settled]
        one = running[pick % len(running)]
        one.nusd = min(nusd, one.nusd)
        inputs, outputs = one.counts[Measure.INPUT_TOKENS], one.counts[Measure.OUTPUT_TOKENS]
        one.counts = dict(measured(1, min(prompt, inputs), min(output, outputs)))
        one.is_settled = True
        reserved = one.open.reserved
        at = len(self.deltas) + 1
        ids = [scope.scope_id for scope in self.scopes(one.user)]
        amounts = {f"{scope}#{measure}": count for scope in ids for measure, count in one.counts.items()}
        self.deltas.append(SpendDelta(reserved.exchange_id, 10 * at, reserved.at, one.nusd, tuple(ids), amounts))
        self.do(self.closed(one))

    async def closed(self, one: Exchange) -> None:
        """And what the background tasks of a process do then."""
        assert self.admission is not None
        one.open.close(one.nusd, 0, one.counts)
        await asyncio.sleep(2 * JOIN_S)
        await self.admission._report_ended()
        last = self.deltas[-1]
        cursor = await self.store.cursor()
        assert cursor is not None
        later = [one for one in self.deltas if one.settled_at_us > cursor]
        assert await self.store.absorb(cursor, later, last.settled_at_us + 1)

    # -- time

    @rule(hours=st.floats(0.1, 30))
    def wait(self, hours: float) -> None:
        self.stores.clock.now += round(hours * 3_600)

    @precondition(lambda self: self.now < AUTUMN)
    @rule()
    def until_autumn(self) -> None:
        self.stores.clock.now = AUTUMN

    @rule(nusd=st.integers(1, 60), hours=st.floats(0.1, 30))
    def raise_budget(self, nusd: int, hours: float) -> None:
        self.raised = Raise(Nusd(nusd), self.now + round(hours * 3_600))
        self.levels.clear()

    def teardown(self) -> None:
        async def end() -> None:
            for one in self.stores.nodes:
                await one.aclose()
            if isinstance(self.stores, RedisStores):
                await self.stores.lose()
                await self.stores.redis.aclose()

        self.do(end())
        self.loop.close()


@pytest.fixture(params=["local", "redis"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Windows]:
    monkeypatch.setattr(budget_file, "WARM_S", 0.0)
    number = iter(range(10**6))

    class Machine(Windows):
        def make_stores(self) -> Stores:
            if request.param == "redis":
                prefix = f"{request.getfixturevalue('prefix')}-{next(number)}"
                return OwnTime(request.getfixturevalue("redis_url"), prefix)
            (folder := tmp_path / str(next(number))).mkdir()
            return LocalStores(folder)

    return Machine


def test_each_request_is_decided_by_the_local_day(machine: type[Windows]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
