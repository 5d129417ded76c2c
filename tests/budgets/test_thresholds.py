"""Alerts: each threshold is noticed once by all, told at least once, and given up after a day, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count

import pytest
from msgspec import structs
from sqlalchemy import Engine, delete, insert

from proxy.billing.limits import Limits
from proxy.billing.money import NUSD_PER_USD
from proxy.billing.reservation import CounterState
from proxy.billing.windows import CALENDAR_MONTH, LIFETIME
from proxy.budgets.thresholds import (
    CLAIM_S,
    GIVE_UP_S,
    GIVEN_UP,
    OPEN,
    RETRY_S_MAX,
    SENT,
    Alert,
    Subject,
    claim,
    forget,
    mark_failed,
    mark_sent,
    reached,
    record_new,
    subjects,
)
from proxy.ledger.limits import limits_row
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.storage.database import writing
from tests.support.ledger_tables import read_alerts
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

DAY_S = 86_400.0
MINTED = datetime(2026, 11, 1, 9, tzinfo=UTC).timestamp() + 0.123456
NOW = MINTED + 45 * DAY_S
SINCE = MINTED + 30 * DAY_S
"""of the default window"""
BUDGET = 200 * NUSD_PER_USD


_revisions = count(1_000)


def made(engine: Engine, scope_id: str, limits: Limits, kind: str = "key") -> None:
    """A key or an account."""
    more = {"limits": limits_row(limits), "created_at": MINTED, "revision": next(_revisions)}
    with writing(engine) as connection:
        if kind == "key":
            row = {"key_id": scope_id, "alias": f"{scope_id}'s", "digest": scope_id.encode(), "hint": ""}
            connection.execute(insert(api_keys), {**row, **more})
        else:
            connection.execute(
                insert(accounts), {"account_id": scope_id, "name": f"{scope_id}'s", "kind": kind, **more}
            )


def a_standing(spent: int | None, counter_id: str = "key_1", since: float = SINCE, reserved: int = 0) -> CounterState:
    return CounterState(counter_id, since, spent, reserved, 0, 0)


def an_alert(number: int = 0, **differences: object) -> Alert:
    alert = Alert(f"alert_{number}", "key_1", 50, SINCE, 100, 200, NOW, OPEN, 0, NOW, None)
    return structs.replace(alert, **differences)


# -- noticing


@pytest.mark.parametrize(
    ("spent", "thresholds"),
    [
        (None, []),
        (0, []),
        (BUDGET // 2 - 1, []),
        (BUDGET // 2, [50]),
        (BUDGET * 4 // 5 - 1, [50]),
        (BUDGET * 4 // 5, [50, 80]),
        (BUDGET - 1, [50, 80]),
        (BUDGET, [50, 80, 100]),
        (3 * BUDGET, [50, 80, 100]),
    ],
)
def test_thresholds_are_passed_to_the_nano_dollar(engine: Engine, spent: int | None, thresholds: list[int]) -> None:
    made(engine, "key_1", Limits(budget_nusd=BUDGET))
    found = reached(engine, [a_standing(spent, reserved=BUDGET)], NOW)
    assert [one.threshold for one in found] == thresholds
    for one in found:
        assert (one.scope_id, one.since, one.spent_nusd, one.budget_nusd) == ("key_1", SINCE, spent, BUDGET)
        assert (one.state, one.tries, one.created_at, one.next_at) == (OPEN, 0, NOW, NOW)


def test_only_budgets_that_are_now_have_alerts(engine: Engine) -> None:
    made(engine, "key_1", Limits(budget_nusd=BUDGET))
    made(engine, "key_free", Limits(rpm=5))
    made(engine, "proj_1", Limits(budget_nusd=10, budget_window=LIFETIME), kind="project")
    standings = [
        a_standing(BUDGET, since=MINTED),  # the window before
        a_standing(BUDGET, "key_1/credit", since=0.0),
        a_standing(BUDGET, "key_free", since=0.0),
        a_standing(BUDGET, "key_unknown"),
        a_standing(5, "proj_1", since=0.0),
    ]
    assert [(one.scope_id, one.threshold) for one in reached(engine, standings, NOW)] == [("proj_1", 50)]


@on_both_databases
def test_a_threshold_is_noticed_once(engine: Engine) -> None:
    made(engine, "key_1", Limits(budget_nusd=BUDGET))
    first = reached(engine, [a_standing(BUDGET // 2)], NOW)
    assert record_new(engine, first) == first
    # Somebody else sees it later, with more spent, and with a float that has been elsewhere.
    again = reached(engine, [a_standing(BUDGET * 4 // 5, since=SINCE + 1e-7)], NOW + 5)
    assert [one.threshold for one in record_new(engine, again)] == [80]
    assert record_new(engine, again) == []
    assert record_new(engine, []) == []
    assert [(one.threshold, one.spent_nusd) for one in read_alerts(engine)] == [
        (50, BUDGET // 2),
        (80, BUDGET * 4 // 5),
    ]


def test_another_window_or_budget_is_another_alert(engine: Engine) -> None:
    made(engine, "key_1", Limits(budget_nusd=BUDGET))
    for moment, since in ((NOW, SINCE), (NOW + 30 * DAY_S, SINCE + 30 * DAY_S)):
        assert len(record_new(engine, reached(engine, [a_standing(BUDGET // 2, since=since)], moment))) == 1
    with writing(engine) as connection:
        connection.execute(api_keys.update().values(limits=limits_row(Limits(budget_nusd=BUDGET * 3 // 4))))
    assert len(record_new(engine, reached(engine, [a_standing(BUDGET // 2)], NOW))) == 1
    assert len({one.alert_id for one in read_alerts(engine)}) == 3


@on_both_databases
def test_many_notice_it_at_once_and_one_of_them_says_so(engine: Engine) -> None:
    alerts = [an_alert(number) for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda turn: record_new(engine, alerts if turn % 2 else alerts[::-1]), range(16)))
    assert sorted(one.alert_id for result in results for one in result) == sorted(one.alert_id for one in alerts)
    assert read_alerts(engine) == sorted(alerts, key=lambda one: one.alert_id)


# -- telling


def test_who_claims_an_alert_has_it_alone_and_for_a_while(engine: Engine) -> None:
    record_new(engine, [an_alert(number, next_at=NOW + number) for number in range(3)])
    assert claim(engine, NOW - 1, 10) == []
    first = claim(engine, NOW + 1, 1)
    assert [(one.alert_id, one.tries, one.next_at) for one in first] == [("alert_0", 1, NOW + 1 + CLAIM_S)]
    assert [one.alert_id for one in claim(engine, NOW + 1, 10)] == ["alert_1"]
    # Whoever claimed it may have died.
    assert [(one.alert_id, one.tries) for one in claim(engine, NOW + 1 + CLAIM_S, 10)] == [
        ("alert_2", 1), ("alert_0", 2), ("alert_1", 2),
    ]  # fmt: skip


@on_both_databases
def test_many_claim_at_once_and_each_alert_has_one_sender(engine: Engine) -> None:
    record_new(engine, [an_alert(number) for number in range(30)])
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: claim(engine, NOW, 7), range(24)))
    claimed = [one.alert_id for result in results for one in result]
    while more := claim(engine, NOW, 7):
        claimed += [one.alert_id for one in more]
    assert sorted(claimed) == sorted(f"alert_{number}" for number in range(30))


def test_it_is_tried_less_and_less_often_and_given_up_after_a_day(engine: Engine) -> None:
    record_new(engine, [an_alert()])
    now, waits, state = NOW, [], OPEN
    while state == OPEN:
        (mine,) = claim(engine, now, 1)
        state = mark_failed(engine, mine, "HTTP 500", now)
        (kept,) = read_alerts(engine)
        assert (kept.state, kept.last_error) == (state, "HTTP 500")
        waits.append(round(kept.next_at - now, 3))
        now = kept.next_at
    assert waits[:10] == [10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, RETRY_S_MAX]
    assert set(waits[9:]) == {RETRY_S_MAX}
    assert (state, claim(engine, now + DAY_S, 1)) == (GIVEN_UP, [])
    assert NOW + GIVE_UP_S - RETRY_S_MAX <= now - RETRY_S_MAX < NOW + GIVE_UP_S


def test_what_has_arrived_is_not_told_again(engine: Engine) -> None:
    record_new(engine, [an_alert()])
    (slow,) = claim(engine, NOW, 1)
    (other,) = claim(engine, NOW + CLAIM_S, 1)
    mark_sent(engine, slow)
    assert mark_failed(engine, other, "TimeoutError", NOW + CLAIM_S + 1) == OPEN  # but nothing happens
    (kept,) = read_alerts(engine)
    assert (kept.state, kept.last_error) == (SENT, None)
    assert claim(engine, NOW + 10 * CLAIM_S, 1) == []


def test_a_slow_failure_does_not_undo_anothers_claim(engine: Engine) -> None:
    record_new(engine, [an_alert()])
    (slow,) = claim(engine, NOW, 1)
    (other,) = claim(engine, NOW + CLAIM_S, 1)
    mark_failed(engine, slow, "TimeoutError", NOW + CLAIM_S + 1)
    assert claim(engine, NOW + CLAIM_S + 30, 1) == []
    assert read_alerts(engine)[0].next_at == other.next_at


# -- whose it is


def test_subjects_are_keys_projects_and_organizations(engine: Engine) -> None:
    made(engine, "key_1", Limits(budget_nusd=BUDGET, rpm=3))
    assert subjects(engine, ["key_1", "proj_default", "org_default", "nobody"]) == {
        "key_1": Subject("key_1", "key", "key_1's", Limits(budget_nusd=BUDGET, rpm=3), MINTED),
        **{
            f"{short}_default": Subject(f"{short}_default", kind, "default", Limits(), minted)
            for short, kind, minted in (
                ("proj", "project", subjects(engine, ["proj_default"])["proj_default"].created_at),
                ("org", "organization", subjects(engine, ["org_default"])["org_default"].created_at),
            )
        },
    }


@pytest.mark.parametrize(
    ("window", "since", "end"),
    [
        ("30d", MINTED, SINCE),
        ("30d", SINCE, SINCE + 30 * DAY_S),
        ("7h", MINTED + 7_000 * 7 * 3_600, MINTED + 7_001 * 7 * 3_600),
        ("30d", SINCE + 1, None),
        (LIFETIME, 0.0, None),
        (CALENDAR_MONTH, datetime(2026, 12, 1, tzinfo=UTC).timestamp(), datetime(2027, 1, 1, tzinfo=UTC).timestamp()),
    ],
)
def test_a_window_ends_where_the_next_begins(window: str, since: float, end: float | None) -> None:
    subject = Subject("key_1", "key", "", Limits(budget_nusd=1, budget_window=window), MINTED)
    assert subject.window_end(since) == (None if end is None else pytest.approx(end, abs=1e-6))


def test_old_alerts_are_forgotten_unless_they_would_ring_again(engine: Engine) -> None:
    for scope_id, window in (("over", "30d"), ("ever", LIFETIME), ("year", "365d"), ("unsent", "30d")):
        made(engine, scope_id, Limits(budget_nusd=BUDGET, budget_window=window))
    early, late = MINTED + DAY_S, MINTED + 100 * DAY_S
    began = {"over": MINTED, "ever": 0.0, "year": MINTED, "unsent": MINTED, "gone": MINTED}
    states = [CounterState(one, since, BUDGET, 0, 0, 0) for one, since in began.items()]
    made(engine, "gone", Limits(budget_nusd=BUDGET))
    alerts = record_new(engine, reached(engine, states, early))
    for alert in alerts:
        if alert.scope_id != "unsent":
            mark_sent(engine, alert)
    with writing(engine) as connection:
        connection.execute(delete(api_keys).where(api_keys.c.key_id == "gone"))
    assert forget(engine, early, late) == 0
    assert forget(engine, late, late) == 6
    assert {one.scope_id for one in read_alerts(engine)} == {"ever", "year", "unsent"}
    assert record_new(engine, reached(engine, states, late)) == []
