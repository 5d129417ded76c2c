"""What is noticed reaches somebody's server: signed, after failures, after deaths; from an entry in the ledger on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from sqlalchemy import Engine, insert, update

from proxy.billing.limits import LimitCounter, Limits, credit_counter_id
from proxy.billing.money import NUSD_PER_USD
from proxy.billing.reservation import CounterState
from proxy.billing.windows import CALENDAR_MONTH
from proxy.budgets.alerting import Thresholds
from proxy.budgets.followed_ledger import FollowedLedger
from proxy.budgets.follower import Follower
from proxy.budgets.low_balance import LowBalances
from proxy.budgets.sqlite.store import SqliteBudgets
from proxy.budgets.thresholds import CLAIM_S, GIVE_UP_S, GIVEN_UP, OPEN, SENT, Alert, Subject, forget, record_new
from proxy.foundation.secret import Secret
from proxy.ledger.limit_rules import RuleStore
from proxy.ledger.limits import limits_row
from proxy.ledger.schema.account_tables import api_keys
from proxy.sinks import alert_webhook
from proxy.sinks.alert_webhook import AT_ONCE, Webhook, body_of
from proxy.sinks.format import signed
from proxy.storage.database import LedgerUnavailable, writing
from tests.budgets.receiver import SECRET, Receiver
from tests.budgets.recorder import FollowerRecorder
from tests.ledger.entries import a_ledger, a_store, an_entry, arriving
from tests.support.clock import Clock
from tests.support.ledger_tables import read_alerts
from tests.support.net import closed_port
from tests.support.waiting import beside, until

pytestmark = pytest.mark.io

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
SINCE = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
BUDGET = 10 * NUSD_PER_USD


@dataclass
class AlertRecorder(FollowerRecorder):
    alerts: list[int] = field(default_factory=list)
    whys: list[tuple[str, bool]] = field(default_factory=list)

    def noticed(self, alert: Alert) -> None:
        self.alerts.append(alert.threshold)

    def unsent(self, alert: Alert, why: str, *, given_up: bool) -> None:
        self.whys.append((why, given_up))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = a_ledger(tmp_path)
    with writing(engine) as connection:
        limits = limits_row(Limits(budget_nusd=BUDGET, budget_window=CALENDAR_MONTH))
        row = {"key_id": "key-1", "alias": "anna", "digest": b"1", "hint": "", "created_at": SINCE, "revision": 99}
        connection.execute(insert(api_keys), {**row, "limits": limits})
    yield engine
    engine.dispose()


@dataclass
class Stage:
    """A ledger whose alerts are sent, who gets them, and what is reported."""

    engine: Engine
    receiver: Receiver
    clock: Clock = field(default_factory=lambda: Clock(NOW))
    recorder: AlertRecorder = field(default_factory=AlertRecorder)

    def sender(self, url: str = "", **more: Any) -> Webhook:
        more = {"unix_time": self.clock, "observer": self.recorder, **more}
        return Webhook(self.engine, url=url or self.receiver.url, secret=Secret(SECRET), **more)

    def alert(self) -> Alert:
        """The only one, as it is stored."""
        (alert,) = read_alerts(self.engine)
        return alert


@pytest.fixture
def stage(engine: Engine, receiver: Receiver) -> Stage:
    return Stage(engine, receiver)


def an_alert(number: int = 0) -> Alert:
    return Alert(f"alert_{number}", "key-1", 80, SINCE, 8_000_000_001, BUDGET, NOW, OPEN, 0, NOW, None)


async def never() -> web.Response:
    """An answer that does not come."""
    await asyncio.sleep(60)
    raise AssertionError


# -- one message


def test_the_body_says_who_what_and_until_when() -> None:
    subject = Subject("key-1", "key", "anna", Limits(budget_nusd=BUDGET, budget_window=CALENDAR_MONTH), SINCE)
    assert json.loads(body_of(an_alert(), subject)) == {
        "id": "alert_0",
        "type": "budget.threshold",
        "created_at": "2026-11-21T12:00:00.000000Z",
        "scope_id": "key-1",
        "scope_kind": "key",
        "name": "anna",
        "threshold": 80,
        "spent_usd": "8.000000001",
        "budget_usd": "10",
        "window_start": "2026-11-01T00:00:00.000000Z",
        "window_end": "2026-12-01T00:00:00.000000Z",
    }
    unknown = json.loads(body_of(an_alert(), None))
    assert (unknown["scope_kind"], unknown["name"], unknown["window_end"]) == (None, None, None)


def test_the_signature_is_what_anybody_can_compute() -> None:
    # printf '1700000000.{"id":"a"}' | openssl dgst -sha256 -hmac key
    known = "fad30145c01573f08f1afb0c980e06ad3ec016de1aec117fea804b6e6b4eed38"
    headers = signed(Secret("key"), "a", b'{"id":"a"}', 1_700_000_000.9)
    assert headers["X-Tokenweir-Signature"] == f"v1={known}"
    # printf 'a.1700000000.{"id":"a"}' | openssl dgst -sha256 -hmac key -binary | base64
    assert headers["webhook-signature"] == "v1,oHyJN/8yzjKonofmLGlT0/272tajRrYsZmsX8RquaUA="


def test_it_is_that_of_standard_webhooks() -> None:
    """Their own example."""
    secret, event_id = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "msg_p5jXN8AQM9LWM0D4loKWxJek"
    headers = signed(secret, event_id, b'{"test": 2432232314}', 1_614_265_330.0)
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == (event_id, "1614265330")
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


# -- failures


async def test_it_is_tried_until_it_arrives(stage: Stage) -> None:
    sender = stage.sender()
    record_new(stage.engine, [an_alert()])
    stage.receiver.answers = [500, 302, 404]
    waits = []
    while stage.alert().state == OPEN:
        assert await sender.send() == 1
        assert await sender.send() == 0  # not before its time
        waits.append(stage.alert().next_at - stage.clock.now)
        stage.clock.now = stage.alert().next_at
    assert [one["id"] for one in stage.receiver.got] == ["alert_0"]
    assert stage.receiver.tried == ["alert_0"] * 4  # no redirect was followed
    assert stage.recorder.whys == [("HTTP 500", False), ("HTTP 302", False), ("HTTP 404", False)]
    assert waits[:3] == pytest.approx([10, 20, 40])
    assert stage.alert().state == SENT
    stage.clock.now += GIVE_UP_S
    assert await sender.send() == 0


async def test_a_server_that_does_not_answer_costs_a_try(stage: Stage) -> None:
    record_new(stage.engine, [an_alert()])
    stage.receiver.answers = [never]
    sender = stage.sender(answer_s=0.1)
    assert await sender.send() == 1
    nobody = stage.sender(f"http://127.0.0.1:{closed_port()}/")
    stage.clock.now += 10
    assert await nobody.send() == 1
    assert [why for why, _ in stage.recorder.whys] == ["TimeoutError", "ClientConnectorError"]
    assert stage.alert().last_error == "ClientConnectorError"
    stage.clock.now += 20
    await sender.send()
    assert len(stage.receiver.got) == 1


async def test_one_that_fails_does_not_hold_up_the_others(stage: Stage) -> None:
    sender = stage.sender()
    record_new(stage.engine, [an_alert(number) for number in range(AT_ONCE + 5)])
    stage.receiver.answers = [500]
    assert [await sender.send(), await sender.send(), await sender.send()] == [AT_ONCE, 5, 0]
    assert len(stage.receiver.got) == AT_ONCE + 4
    assert stage.recorder.whys == [("HTTP 500", False)]


async def test_several_senders_send_each_alert_once(stage: Stage) -> None:
    record_new(stage.engine, [an_alert(number) for number in range(40)])
    senders = [stage.sender() for _ in range(4)]
    while sum(await asyncio.gather(*(one.send() for one in senders))):
        pass
    assert sorted(one["id"] for one in stage.receiver.got) == sorted(f"alert_{number}" for number in range(40))


async def test_a_sender_that_dies_is_followed_by_the_next(stage: Stage) -> None:
    sender = stage.sender()
    record_new(stage.engine, [an_alert()])
    stage.receiver.answers = [never]
    async with beside(sender.run()):
        await until(lambda: stage.receiver.tried)
    next_one = stage.sender()
    assert await next_one.send() == 0  # who knows whether it is dead
    stage.clock.now += CLAIM_S
    assert await next_one.send() == 1
    assert (len(stage.receiver.got), stage.alert().state) == (1, SENT)


async def test_what_nobody_was_there_to_send_for_a_day_is_history(stage: Stage) -> None:
    sender = stage.sender()
    record_new(stage.engine, [an_alert()])
    stage.clock.now += GIVE_UP_S
    await sender.send()
    assert (stage.receiver.tried, stage.alert().state) == ([], GIVEN_UP)
    assert [given_up for _, given_up in stage.recorder.whys] == [True]


async def test_an_outage_of_the_ledger_is_said_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = stage.sender()
    monkeypatch.setattr(alert_webhook, "POLL_S", 0.01)
    real, away = alert_webhook.claim, Mock(side_effect=LedgerUnavailable("away"))
    monkeypatch.setattr(alert_webhook, "claim", away)
    async with beside(sender.run()):
        await until(lambda: away.call_count > 5)
        assert len(stage.recorder.failures) == 1
        record_new(stage.engine, [an_alert()])
        monkeypatch.setattr(alert_webhook, "claim", real)
        await until(lambda: stage.recorder.healings == stage.recorder.failures and stage.alert().state == SENT)
    assert len(stage.receiver.got) == 1


# -- the whole way


async def test_from_an_entry_to_somebodys_server(stage: Stage, tmp_path: Path) -> None:
    budgets = SqliteBudgets(tmp_path / "budgets.db", node="a", unix_time=time.time)

    def follower() -> Follower:
        thresholds = Thresholds(stage.engine, unix_time=lambda: NOW, observer=stage.recorder)
        ledger = FollowedLedger(stage.engine)
        return Follower(budgets, ledger, observer=stage.recorder, on_spent=thresholds.check)

    everybody = [follower(), follower()]
    ledger, sender = a_store(stage.engine), stage.sender(unix_time=lambda: NOW)
    await everybody[0].seed([LimitCounter("key-1", since=SINCE, nusd_max=BUDGET)])
    for number in range(12):
        ledger.settle(arriving(an_entry(number, charge_nusd=NUSD_PER_USD, started_at=NOW - 60)))
        await asyncio.gather(*(one.follow() for one in everybody))
        await sender.send()
    assert stage.recorder.alerts == [50, 80, 100]
    shown = [(one["threshold"], one["spent_usd"], one["name"]) for one in stage.receiver.got]
    assert shown == [(50, "5", "anna"), (80, "8", "anna"), (100, "10", "anna")]
    for one in everybody:
        await one.measure()
    assert (stage.recorder.alerts, stage.recorder.drifts) == ([50, 80, 100], [0, 0])
    assert await everybody[0].rebuild() == {"key-1": 0}
    # After a restart everything is noticed already; a higher budget is another matter.
    fresh = follower()
    await fresh.seed([LimitCounter("key-1", since=SINCE)])
    await fresh.follow()
    assert stage.recorder.alerts == [50, 80, 100]
    with writing(stage.engine) as connection:
        limits = limits_row(Limits(budget_nusd=2 * BUDGET, budget_window=CALENDAR_MONTH))
        connection.execute(update(api_keys).values(limits=limits))
    await fresh.measure()
    await fresh.follow()
    assert stage.recorder.alerts == [50, 80, 100, 50]
    await budgets.aclose()


# -- prepaid balances


def balance(nusd: int, scope_id: str = "key-1") -> CounterState:
    """A counter of credit, with so much left; what is reserved does not count."""
    return CounterState(credit_counter_id(scope_id), 0.0, -nusd, 999, 1, 0)


async def test_each_time_a_balance_becomes_low_is_one_alert(stage: Stage) -> None:
    with writing(stage.engine) as connection:
        connection.execute(update(api_keys).values(limits=limits_row(Limits(prepaid=True))))

    def following() -> LowBalances:
        return LowBalances(stage.engine, low_nusd=5, unix_time=stage.clock, observer=stage.recorder)

    first, second = following(), following()
    for nusd, alerts in [(9, 0), (5, 0), (4, 1), (-3, 1), (4, 1), (5, 1), (4, 2), (3, 2)]:
        stage.clock.now += 1
        for one in (first, second, following()):
            await one.check([balance(nusd), balance(nusd, "nobody")])
        assert len(stage.recorder.alerts) == alerts, nusd
        await stage.sender().send()
    assert [one["id"] for one in stage.receiver.got] == list(dict.fromkeys(one["id"] for one in stage.receiver.got))
    last = stage.receiver.got[-1]
    assert last == {
        "id": last["id"], "type": "balance.low", "created_at": "2026-11-21T12:00:07.000000Z", "scope_id": "key-1",
        "scope_kind": "key", "name": "anna", "left_usd": "0.000000004", "low_usd": "0.000000005",
    }  # fmt: skip
    assert forget(stage.engine, stage.clock.now + 1, stage.clock.now + 1) == 0, "it would be sent again"
    first.use(None)
    await first.check([balance(9)])
    assert len(read_alerts(stage.engine)) == 1


async def test_only_prepaid_balances_are_low(stage: Stage) -> None:
    low = LowBalances(stage.engine, low_nusd=5, unix_time=stage.clock, observer=stage.recorder)
    await low.check([balance(1)])
    assert read_alerts(stage.engine) == []


async def test_a_rule_that_only_alerts_refuses_nobody_and_needs_no_request_to_seed_it(
    stage: Stage, tmp_path: Path
) -> None:
    RuleStore(stage.engine, clock=lambda: SINCE).create(
        rule_id="rule_soft", name="soft", split_by=["end_user"],
        limits=Limits(budget_nusd=BUDGET, budget_window=CALENDAR_MONTH, alert_only=True, thresholds=(30, 120)),
    )  # fmt: skip
    budgets = SqliteBudgets(tmp_path / "budgets.db", node="a", unix_time=lambda: NOW)
    thresholds = Thresholds(stage.engine, unix_time=lambda: NOW, observer=stage.recorder)
    follower = Follower(budgets, FollowedLedger(stage.engine), observer=stage.recorder, on_spent=thresholds.check)
    ledger = a_store(stage.engine)
    ledger.settle(arriving(an_entry(99, charge_nusd=NUSD_PER_USD, started_at=NOW - 60)))
    await follower.follow()
    for number in range(13):
        details = {"dimensions": {"end_user": f"v_{number % 2}"}}
        entry = an_entry(number, charge_nusd=2 * NUSD_PER_USD, started_at=NOW - 60, details=details)
        ledger.settle(arriving(entry))
        await follower.follow()
    assert stage.recorder.alerts == [30, 30, 120, 120]
    states = {one.counter_id: one.spent for one in await budgets.counter_states()}
    assert (states["rule_soft/v_0"], states["rule_soft/v_1"]) == (14 * NUSD_PER_USD, 12 * NUSD_PER_USD)
    assert "rule_soft" not in states, "a request without an end user counts nowhere"
    ledger.settle(arriving(an_entry(98, charge_nusd=NUSD_PER_USD, started_at=NOW - 60)))
    assert set((await follower.rebuild()).values()) == {0}
    await budgets.aclose()
