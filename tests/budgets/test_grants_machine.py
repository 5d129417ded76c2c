"""Prepaid requests with grants that begin, recur, expire and are revoked, on both ledgers and both stores.

A plain model keeps the balance of a key and of its organization: top-ups, what each grant has added and taken back, and
charges. A request is admitted if the balances of both and the key's budget of the day have room for all that is
reserved. Admission, which follows the ledger, decides the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import Engine

from proxy.billing.limits import Limits, OnStoreOutage, Scope
from proxy.billing.money import Nusd
from proxy.billing.reservation import Denied
from proxy.budgets.admission import Admission, ClosedReservations, OpenReservation
from proxy.budgets.followed_ledger import FollowedLedger
from proxy.budgets.follower import Follower
from proxy.budgets.sqlite import file as budget_file
from proxy.budgets.sqlite.store import JOIN_S
from proxy.foundation.ids import derived_id
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.grants.burning import burn
from proxy.ledger.settling import clock as ledger_clock
from tests.budgets.machine import StoreMachine
from tests.budgets.recorder import AdmissionRecorder, FollowerRecorder
from tests.budgets.stores import LocalStores, OwnTime, RedisStores, Stores
from tests.gateway.inprocess import KEY
from tests.ledger.entries import an_entry, arriving, emptied
from tests.ledger.grants.book import Book, T
from tests.ledger.owners import insert_owners
from tests.support.examples import examples

pytestmark = [pytest.mark.io, pytest.mark.hypothesis]

HOUR_S, DAY_S = 3_600, 86_400
ANNA, ACME = "key-1", "org-1"
DAILY = 60
SCOPES = (
    Scope(ANNA, Limits(prepaid=True, budget_nusd=Nusd(DAILY), budget_window="calendar_day"), 1.0),
    Scope(ACME, Limits(prepaid=True), 1.0),
)
NUSD = st.integers(1, 40)
STATEMENTS = {name: getattr(ledger_clock, name) for name in ("_NEXT_OF_SHARD", "_NEXT_OF_ALL")}


@dataclass
class Credit:
    """One grant, or the one of one day."""

    scope_id: str
    nusd: int
    created_at: float
    begins_at: float
    expires_at: float
    series: str
    recurs: bool
    revoked_at: float = float("inf")
    burned: int = 0
    added: int = 0
    """what it has added to the balance so far, less what it has taken back"""

    @property
    def is_void(self) -> bool:
        return self.revoked_at <= self.begins_at

    def pays(self, started: float, settled: float) -> bool:
        if self.is_void or not self.begins_at <= started < self.expires_at:
            return False
        is_after = settled > self.created_at and settled >= self.begins_at
        return is_after and (settled <= self.revoked_at or started < self.revoked_at)

    def post(self, now: float) -> None:
        """The entries of the grant that are due."""
        if self.is_void or self.begins_at > now:
            return
        self.added = self.burned if min(self.expires_at, self.revoked_at) <= now else self.nusd


@dataclass
class Exchange:
    number: int
    open: OpenReservation
    at: float
    nusd: int


@dataclass
class Balance:
    topped_up: int = 0
    charged: int = 0
    credits: list[Credit] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.topped_up + sum(one.added for one in self.credits) - self.charged

    def charge(self, nusd: int, started: float, settled: float) -> None:
        """Burns in the order of expiry and age; all priorities are equal."""
        self.charged += nusd
        for one in sorted(self.credits, key=lambda one: (one.expires_at, one.begins_at, one.created_at, one.series)):
            part = min(nusd, one.nusd - one.burned) if one.pays(started, settled) else 0
            one.burned += part
            nusd -= part


class Trials(StoreMachine):
    """Subclassed for each ledger and store."""

    engine: Engine

    def __init__(self) -> None:
        super().__init__()
        self.stores.clock.now = T
        emptied(self.engine)
        insert_owners(self.engine)
        self.book = Book(self.engine)
        self.set_ledger()
        self.balances = {ANNA: Balance(), ACME: Balance()}
        self.running: list[Exchange] = []
        self.settled: list[Exchange] = []
        self.number = 0

    def set_ledger(self) -> None:
        """The ledger's clock shows the same time as that of the store; on Postgres, too, which has its own."""
        self.book.set_to = self.now
        for name, statement in STATEMENTS.items():
            for function in ("clock_timestamp()", "statement_timestamp()"):
                statement = statement.replace(function, f"to_timestamp({self.now})")
            setattr(ledger_clock, name, statement)

    @initialize()
    def begin(self) -> None:
        store = self.stores.node("n")
        closed = ClosedReservations()

        async def at_once(call: Callable[..., Any], *arguments: Any) -> Any:
            return call(*arguments)

        async def on_spent(_counters: object) -> None: ...

        self.follower = Follower(
            store, FollowedLedger(self.engine, at_once), on_spent=on_spent, observer=FollowerRecorder(),  # type: ignore[arg-type]
            on_settled=closed.forget,
        )  # fmt: skip
        self.admission = Admission(
            store, closed, seed=self.follower.seed, settled=self.follower.counted, tidy=self.follower.tidy,
            on_store_outage=OnStoreOutage.FAIL_CLOSED, allowance_nusd=0, observer=AdmissionRecorder(),
        )  # fmt: skip
        self.do(self.admission.announce())
        self.do(self.stores.warmed())
        self.set_ledger()
        for scope_id in self.balances:
            self.top_up(scope_id, 20)
            self.grant(scope_id, 40, later_h=0, hours=2, recurs=False)

    def follow(self) -> None:
        self.do(self.follower.follow())

    def pass_by(self, seconds: float) -> None:
        self.stores.clock.now += seconds
        self.set_ledger()

    # -- credit

    @rule(scope_id=st.sampled_from([ANNA, ACME]), nusd=NUSD)
    def top_up(self, scope_id: str, nusd: int) -> None:
        self.number += 1
        stamp = f"{round(self.now * 1000):012x}"
        exchange_id = derived_id(f"{stamp[:8]}-{stamp[8:]}", f"top-up {self.number}")
        entry = credit_entry(exchange_id, scope_id, scope_id, Nusd(nusd), "invoice", self.now)
        self.book.ledger.settle(arriving(entry))
        self.balances[scope_id].topped_up += nusd
        self.pass_by(0.25)
        self.follow()

    @rule(
        scope_id=st.sampled_from([ANNA, ACME]),
        nusd=NUSD,
        later_h=st.sampled_from([0, 0, 3]),
        hours=st.sampled_from([2, 30]),
        recurs=st.booleans(),
    )
    def grant(self, scope_id: str, nusd: int, later_h: int, hours: int, recurs: bool) -> None:
        self.number += 1
        begins = self.now + later_h * HOUR_S
        ends = {"recurs": "calendar_day"} if recurs else {"lasts_s": hours * HOUR_S}
        made = self.book.grant(nusd, f"g{self.number:03}", scope_id, begins_at=begins if later_h else None, **ends)
        expires = _midnight_after(begins) if recurs else begins + hours * HOUR_S
        credit = Credit(scope_id, nusd, self.now, begins, expires, made.grant.series_id, recurs)
        self.balances[scope_id].credits.append(credit)
        self.begin_due()
        credit.post(self.now)
        self.pass_by(0.25)
        self.follow()

    @precondition(lambda self: any(one.credits for one in self.balances.values()))
    @rule(pick=st.integers(0, 99))
    def revoke(self, pick: int) -> None:
        self.begin_due()
        every = [one for balance in self.balances.values() for one in balance.credits]
        chosen = every[pick % len(every)]
        series = [one for one in every if one.series == chosen.series]
        self.book.grants.revoke(chosen.series)
        for one in series:
            is_last = one is series[-1] and one.recurs
            if one.revoked_at == float("inf") and (one.expires_at > self.now or is_last):
                one.revoked_at = self.now
            one.recurs = False
            one.post(self.now)
        self.pass_by(0.25)
        self.follow()

    def begin_due(self) -> None:
        """The grants of a series follow each other without a gap."""
        for balance in self.balances.values():
            for one in list(balance.credits):
                while one.recurs and one.expires_at <= self.now:
                    one.recurs = False
                    begins = one.expires_at
                    one = Credit(
                        one.scope_id, one.nusd, one.created_at, begins, _midnight_after(begins), one.series, True
                    )
                    balance.credits.append(one)

    @rule()
    def post(self) -> None:
        """What a worker does every second, unless it is away."""
        self.book.post()
        self.begin_due()
        for balance in self.balances.values():
            for one in balance.credits:
                one.post(self.now)
        self.pass_by(0.25)
        self.follow()

    @rule()
    def burn(self) -> None:
        """Early or late: no amount depends on it."""
        burn(self.engine)
        self.pass_by(0.25)

    # -- requests

    @rule(nusd=NUSD)
    def ask(self, nusd: int) -> None:
        self.number += 1
        held = sum(one.nusd for one in self.running)
        day = self.now // DAY_S
        used = sum(one.nusd for one in self.settled if one.at // DAY_S == day)
        fits = all(one.left - held >= nusd for one in self.balances.values()) and used + held + nusd <= DAILY
        name = an_entry(self.number).exchange_id
        found = self.do(self.admission.admit(KEY, SCOPES, name, nusd=nusd, tokens=0))
        assert fits is not isinstance(found, Denied), (found, self.balances, held, used)
        if isinstance(found, OpenReservation):
            self.running.append(Exchange(self.number, found, self.now, nusd))
        self.pass_by(0.25)

    @rule(nusd=NUSD, less=st.integers(0, 5))
    def ask_and_settle(self, nusd: int, less: int) -> None:
        before = len(self.running)
        self.ask(nusd)
        if len(self.running) > before:
            self.end_and_settle(before, less)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 99), less=st.integers(0, 40))
    def end_and_settle(self, pick: int, less: int) -> None:
        one = self.running.pop(pick % len(self.running))
        one.nusd = max(0, one.nusd - less)
        self.settled.append(one)
        self.do(self.closed(one))
        self.begin_due()
        for balance in self.balances.values():
            balance.charge(one.nusd, one.at, self.now)
        self.pass_by(0.25)
        self.follow()

    async def closed(self, one: Exchange) -> None:
        one.open.close(one.nusd, 0)
        await asyncio.sleep(2 * JOIN_S)
        await self.admission._report_ended()
        entry = an_entry(one.number, charge_nusd=Nusd(one.nusd), started_at=one.at, key_id=ANNA, details={})
        self.book.ledger.settle(arriving(entry))

    @rule(hours=st.sampled_from([1, 5, 20]), posts=st.booleans())
    def wait(self, hours: int, posts: bool) -> None:
        self.pass_by(hours * HOUR_S)
        if posts:
            self.post()

    @invariant()
    def the_books_add_up(self) -> None:
        assert self.book.wrong() == []

    def teardown(self) -> None:
        async def end() -> None:
            for one in self.stores.nodes:
                await one.aclose()
            if isinstance(self.stores, RedisStores):
                await self.stores.lose()
                await self.stores.redis.aclose()

        self.do(end())
        self.loop.close()
        for name, statement in STATEMENTS.items():
            setattr(ledger_clock, name, statement)


def _midnight_after(at: float) -> float:
    return (at // DAY_S + 1) * DAY_S


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.thorough)])
def machine(
    request: pytest.FixtureRequest, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> type[Trials]:
    monkeypatch.setattr(budget_file, "WARM_S", 0.0)
    number, of = iter(range(10**6)), engine

    class Machine(Trials):
        engine = of

        def make_stores(self) -> Stores:
            if request.param == "redis":
                prefix = f"{request.getfixturevalue('prefix')}-{next(number)}"
                return OwnTime(request.getfixturevalue("redis_url"), prefix)
            (folder := tmp_path / str(next(number))).mkdir()
            return LocalStores(folder)

    return Machine


def test_each_request_is_decided_by_what_is_left(machine: type[Trials]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(60), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
