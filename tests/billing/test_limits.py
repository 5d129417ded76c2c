"""The counters of a level."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf

from msgspec import structs

from proxy.billing.limits import (
    LimitCounter,
    Limits,
    Measure,
    Raise,
    Scope,
    limit_counters,
    quota_of,
    resolve_limits,
    scope_of,
)
from proxy.billing.money import Nusd
from proxy.billing.windows import LIFETIME


def unix(*when: int) -> float:
    return datetime(*when, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


def test_the_counters_of_a_level() -> None:
    def made(**limits: object) -> tuple[LimitCounter, ...]:
        return limit_counters(Scope("key_a", Limits(**limits), 50.0), 60.0)  # type: ignore[arg-type]

    assert made() == ()
    assert made(budget_nusd=5) == (LimitCounter("key_a", 50.0, 5),)
    assert made(budget_nusd=0, budget_window=LIFETIME) == (LimitCounter("key_a", 0.0, 0),)
    assert made(rpm=3) == (LimitCounter("key_a", 0.0, None, 3),)
    assert made(prepaid=True) == (LimitCounter("key_a/credit", 0.0, 0),)
    both = made(budget_nusd=5, prepaid=True, tpm=7, parallel=2)
    assert both == (LimitCounter("key_a", 50.0, 5, None, 7, 2), LimitCounter("key_a/credit", 0.0, 0))


def test_resolved_limits_are_valid_until_the_first_window_ends() -> None:
    day, hour = (
        Scope("team_a", Limits(budget_nusd=9, budget_window="1d"), 0.0),
        Limits(budget_nusd=5, budget_window="1h"),
    )
    found = resolve_limits([day, Scope("key_a", hour, 0.0)], now=90_000.0)
    assert (found.since, found.until) == (90_000.0, 93_600.0)
    forever = resolve_limits([Scope("key_a", Limits(budget_nusd=5, budget_window=LIFETIME), 0.0)], now=90_000.0)
    assert (forever.since, forever.until) == (0.0, inf)


def test_quotas_alerts_and_raises() -> None:
    limits = Limits(budget_nusd=5, budget_window="1d", raised=Raise(Nusd(2), 90_100.0))
    scope = Scope("rule_a/v_1", structs.replace(limits, quotas={Measure.REQUESTS: 9}), 0.0)
    found = resolve_limits([scope], now=90_000.0)
    quota = LimitCounter("rule_a/v_1#requests", 86_400.0, 9)
    assert found.counters == (LimitCounter("rule_a/v_1", 86_400.0, 7), quota)
    assert (found.quotas, found.until) == ((quota,), 90_100.0)
    assert limit_counters(scope, 90_100.0)[0].nusd_max == 5
    assert [(scope_of(one.counter_id), quota_of(one.counter_id)) for one in found.counters] == [
        ("rule_a/v_1", None), ("rule_a/v_1", Measure.REQUESTS),
    ]  # fmt: skip
    soft = structs.replace(limits, alert_only=True)
    assert limit_counters(Scope("rule_a", soft, 0.0), 90_000.0) == ()
    assert (soft.any, soft.spends) == (False, False)
