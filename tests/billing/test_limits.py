"""The counters of a level."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf

from proxy.billing.limits import LimitCounter, Limits, Scope, limit_counters, resolve_limits
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
