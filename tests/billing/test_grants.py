"""Grants: which one pays for a charge, and that no nano-dollar appears or is lost, whatever happens in which order."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec import structs

from proxy.billing.grants import (
    PRIORITY_DEFAULT,
    Charge,
    ExchangeBurns,
    Grant,
    GrantError,
    GrantState,
    MoveKind,
    Waterfall,
    due_postings,
    following,
    new_grant,
    posting_exchange_id,
    upcoming,
)
from proxy.billing.money import Nusd
from tests.support.examples import examples

T = 1_793_000_000.0
MONTH, BERLIN = "calendar_month", "Europe/Berlin"


def a_grant(grant_id: str = "g", nusd: int = 10, **fields: Any) -> Grant:
    fields = {"scope_id": "key-1", "scope_name": "anna", "name": "trial", "created_at": T, **fields}
    return new_grant(grant_id=grant_id, nusd=Nusd(nusd), **fields)


def a_charge(nusd: int, started: float, settled: float | None = None, exchange: str = "x") -> Charge:
    settled_at = T + (started if settled is None else settled)
    return Charge(f"{exchange}/{settled_at}", exchange, T + started, settled_at, nusd)


def burned(grants: Iterable[Grant], charges: Iterable[Charge]) -> dict[str, int]:
    """By the charges in this order."""
    waterfall, exchanges = Waterfall(grants, {}), dict[str, ExchangeBurns]()
    for one in charges:
        waterfall.add(one, exchanges.setdefault(one.exchange_id, ExchangeBurns()))
    return {name: nusd for name, nusd in waterfall.burned.items() if nusd}


@pytest.mark.parametrize(
    ("grants", "charges", "expected"),
    [
        ([{}], [a_charge(4, 1)], {"a": 4}),
        ([{}], [a_charge(14, 1)], {"a": 10}),
        # Priority, then expiry, then age.
        ([{"priority": 51}, {}], [a_charge(12, 1)], {"b": 10, "a": 2}),
        ([{}, {"expires_at": T + 99}], [a_charge(12, 1)], {"b": 10, "a": 2}),
        ([{"begins_at": T + 1}, {}], [a_charge(12, 2)], {"b": 10, "a": 2}),
        ([{"expires_at": T + 99, "priority": 51}, {}], [a_charge(12, 1)], {"b": 10, "a": 2}),
        # Spend before the grant.
        ([{"begins_at": T + 5}], [a_charge(4, 4.9, 6)], {}),
        ([{}], [a_charge(4, -1, 6)], {}),
        # The exchange's clock is ahead of the ledger's.
        ([{}], [a_charge(4, 1, 0)], {}),
        ([{"begins_at": T + 5}], [a_charge(4, 6, 4)], {}),
        # It began before the expiry, and settled long afterwards; and one that began at the expiry.
        ([{"expires_at": T + 9}], [a_charge(4, 8.9, 86_400)], {"a": 4}),
        ([{"expires_at": T + 9}], [a_charge(4, 9)], {}),
        # Revoked at 7: of what settles later, only what began before.
        ([{"revoked_at": T + 7}], [a_charge(4, 6, 8), a_charge(3, 7.5, exchange="y")], {"a": 4}),
        ([{"revoked_at": T + 7}], [a_charge(4, 7.5, 7)], {"a": 4}),
        # A refund gives back to the grants of its exchange, last burned first.
        ([{}], [a_charge(6, 1), a_charge(-2, 1, 2)], {"a": 4}),
        ([{}], [a_charge(14, 1), a_charge(-5, 1, 2)], {"a": 9}),
        ([{}, {"priority": 51}], [a_charge(12, 1), a_charge(-5, 1, 2)], {"a": 7}),
        ([{}], [a_charge(9, -1, 1), a_charge(5, 1, exchange="y"), a_charge(-9, -1, 2)], {"a": 5}),
        ([{}], [a_charge(6, 1), a_charge(-2, 1, 2), a_charge(8, 3, exchange="y")], {"a": 10}),
    ],
)  # fmt: skip
def test_which_grants_a_charge_burns(grants: list[dict[str, Any]], charges: list[Charge], expected: Any) -> None:
    made = []
    for name, fields in zip("ab", grants, strict=False):
        revoked_at = fields.get("revoked_at")
        plain = {key: value for key, value in fields.items() if key != "revoked_at"}
        made.append(structs.replace(a_grant(name, **plain), revoked_at=revoked_at))
    assert burned(made, charges) == expected


def test_each_calendar_month_of_a_time_zone() -> None:
    def at(text: str) -> float:
        return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(BERLIN)).timestamp()

    first = a_grant(recurs=MONTH, time_zone=BERLIN, created_at=at("2027-02-10T12:00"))
    assert first.expires_at == at("2027-03-01")
    later = list(upcoming(first, at("2027-11-01")))
    assert [one.begins_at for one in later[:2]] == [at("2027-03-01"), at("2027-04-01")]
    assert [one.grant_id for one in later] == [f"g_{number}" for number in range(2, 11)]
    assert [one.begins_at for one in later[1:]] == [one.expires_at for one in later[:-1]], "a gap, or an overlap"
    assert following(structs.replace(first, revoked_at=at("2027-03-01"))) is None
    keeps = a_grant(recurs=MONTH, lasts_s=90 * 86_400)
    assert (following(keeps) or keeps).expires_at == (following(keeps) or keeps).begins_at + 90 * 86_400


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nusd": 0}, "usd: must be above 0"),
        ({"name": " "}, "name: must be 1 to"),
        ({"priority": 101}, "priority: must be 0 to 100"),
        ({"begins_at": T - 1}, "begins: must not be in the past"),
        ({"recurs": "30d"}, "recurs: must be one of"),
        ({"time_zone": BERLIN}, "time_zone: is only for a grant that recurs"),
        ({"time_zone": "Mars", "recurs": MONTH}, "time_zone: not a time zone"),
        ({"expires_at": T + 9, "recurs": MONTH}, "expiry: a grant that recurs"),
        ({"expires_at": T + 9, "lasts_s": 9}, "lasts: cannot"),
        ({"expires_at": T}, "expiry: must be after"),
    ],
)
def test_a_wrong_grant_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(GrantError, match=message):
        a_grant(**fields)


class Books(RuleBasedStateMachine):
    """One scope: grants, charges, refunds, clocks that differ, and a poster that is away at times."""

    def __init__(self) -> None:
        super().__init__()
        self.now = T
        self.grants: dict[str, Grant] = {}
        self.states: dict[str, tuple[int, int, int]] = {}
        """granted, expired, entries"""
        self.charges: list[Charge] = []
        self.exchanges: dict[str, ExchangeBurns] = {}
        self.burned: dict[str, int] = {}
        self.balance = 0
        self.ids: set[str] = set()

    def tick(self) -> float:
        """The ledger's clock rises at each settling transaction."""
        self.now = round(self.now + 1e-6, 6)
        return self.now

    @rule(seconds=st.sampled_from([0.5, 30.0, 3_600.0, 86_400.0, 31 * 86_400.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        nusd=st.integers(1, 50), priority=st.sampled_from([10, PRIORITY_DEFAULT]), begins=st.sampled_from([None, 40.0]),
        lasts=st.sampled_from([None, 60, 86_400]), recurs=st.sampled_from([None, None, "calendar_day", MONTH]),
        zone=st.sampled_from([None, BERLIN, "Pacific/Apia"]),
    )  # fmt: skip
    def grant(
        self, nusd: int, priority: int, begins: float | None, lasts: int | None, recurs: str | None, zone: str | None
    ) -> None:
        made_at = self.tick()
        one = a_grant(
            f"g{len(self.grants)}", nusd, created_at=made_at, begins_at=None if begins is None else made_at + begins,
            lasts_s=lasts, priority=priority, recurs=recurs, time_zone=zone if recurs else None,
        )  # fmt: skip
        self.grants[one.grant_id] = one

    @rule(nusd=st.integers(1, 40), ago=st.sampled_from([-2.0, 0.0, 1.0, 100.0, 90_000.0]))
    def charge(self, nusd: int, ago: float) -> None:
        """`ago`: below 0: the proxy's clock is ahead."""
        settled_at = self.tick()
        self.settle(f"x{len(self.charges)}", settled_at - ago, settled_at, nusd)

    @precondition(lambda self: self.charges)
    @rule(data=st.data())
    def correct(self, data: st.DataObject) -> None:
        """Up or down, to no less than nothing."""
        of = data.draw(st.sampled_from(self.charges))
        nusd = data.draw(st.integers(-self.exchanges[of.exchange_id].charged, 20))
        self.settle(of.exchange_id, of.started_at, self.tick(), nusd)

    def settle(self, exchange_id: str, started_at: float, settled_at: float, nusd: int) -> None:
        self.materialize(started_at)
        entry = Charge(f"e{len(self.charges)}", exchange_id, started_at, settled_at, nusd)
        self.charges.append(entry)
        waterfall = Waterfall(self.grants.values(), self.burned)
        burns = waterfall.add(entry, self.exchanges.setdefault(exchange_id, ExchangeBurns()))
        assert abs(sum(one.nusd for one in burns)) <= abs(nusd)
        assert all((one.nusd > 0) is (nusd > 0) for one in burns)
        self.burned = waterfall.burned
        self.balance -= nusd

    def materialize(self, until: float) -> None:
        last = {one.series_id: one for one in sorted(self.grants.values(), key=lambda one: one.number)}
        for one in last.values():
            self.grants |= {new.grant_id: new for new in upcoming(one, max(until, self.now))}

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        """A whole series: each grant of it that has not ended, and the last."""
        at = self.tick()
        self.materialize(at)
        series = data.draw(st.sampled_from([one.series_id for one in self.grants.values()]))
        every = [one for one in self.grants.values() if one.series_id == series]
        for one in every:
            if one.revoked_at is None and (one.ends_at > at or one.number == len(every)):
                self.grants[one.grant_id] = structs.replace(one, revoked_at=at)

    def state(self, one: Grant) -> GrantState:
        granted, expired, entries = self.states.get(one.grant_id, (0, 0, 0))
        return GrantState(one, granted, self.burned.get(one.grant_id, 0), expired, entries)

    @rule()
    def post(self) -> None:
        self.tick()
        self.materialize(self.now)
        for one in list(self.grants.values()):
            for posting in due_postings(self.state(one), self.now, self.now):
                self.balance += posting.nusd if posting.kind is MoveKind.GRANTED else -posting.nusd
                state = posting.state
                self.states[one.grant_id] = state.granted, state.expired, state.entries
                made = posting_exchange_id(posting, self.now)
                assert made not in self.ids
                self.ids.add(made)
            assert not due_postings(self.state(one), self.now, self.now), "posted again"
            if one.ends_at <= self.now:
                assert self.state(one).left == 0, "an ended grant has credit"

    @invariant()
    def nothing_appears_or_is_lost(self) -> None:
        states = [self.state(one) for one in self.grants.values()]
        assert all(0 <= one.burned <= one.grant.nusd for one in states)
        assert not any(one.burned for one in states if one.grant.is_void)
        by_exchange = sum(sum(one.by_grant.values()) for one in self.exchanges.values())
        assert by_exchange == sum(self.burned.values())
        assert all(one.charged >= sum(one.by_grant.values()) for one in self.exchanges.values())
        not_granted = sum(one.charged for one in self.exchanges.values()) - by_exchange
        assert self.balance == sum(one.left for one in states) - not_granted

    @invariant()
    def the_books_alone_tell_what_is_burned(self) -> None:
        """The grants as they are now, revocations included, and the charges: so `reconcile` finds the same."""
        self.materialize(self.now)
        assert burned(self.grants.values(), self.charges) == {k: v for k, v in self.burned.items() if v}


@pytest.mark.hypothesis
def test_no_nano_dollar_appears_or_is_lost() -> None:
    run_state_machine_as_test(Books, settings=settings(max_examples=examples(150), stateful_step_count=30))  # type: ignore[no-untyped-call]
