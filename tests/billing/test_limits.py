"""Windows of budgets, and the gates of a level."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.limits import (
    CALENDAR_MONTH,
    LIFETIME,
    LimitCounter,
    Limits,
    Scope,
    checked_window,
    limit_counters,
    resolve_limits,
    window_end,
    window_start,
)

WINDOWS = st.sampled_from(["30d", "12h", "4w", "1h", CALENDAR_MONTH, LIFETIME])
TIMES = st.floats(1_600_000_000, 1_900_000_000)


def unix(*when: int) -> float:
    return datetime(*when, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


@given(WINDOWS, TIMES, TIMES)
def test_now_is_in_its_window(window: str, created_at: float, now: float) -> None:
    now = max(created_at, now)
    start, end = window_start(window, created_at, now), window_end(window, created_at, now)
    assert start <= now
    assert end is None or now < end or now == pytest.approx(end, abs=1e-6)
    if end is not None:
        assert window_start(window, created_at, end + 0.001) == pytest.approx(end, abs=1e-3)


def test_a_rolling_window_rolls_from_mint() -> None:
    minted = unix(2026, 1, 10, 8, 30)
    assert window_start("30d", minted, minted) == minted
    assert window_start("30d", minted, minted + 30 * 86_400 - 1) == minted
    assert window_start("30d", minted, minted + 30 * 86_400) == minted + 30 * 86_400


def test_a_month_is_the_calendars_in_utc() -> None:
    now = unix(2026, 12, 31, 23, 59, 59)
    assert window_start(CALENDAR_MONTH, 0.0, now) == unix(2026, 12, 1)
    assert window_end(CALENDAR_MONTH, 0.0, now) == unix(2027, 1, 1)


def test_before_mint_it_is_the_first_window() -> None:
    assert window_start("30d", 1000.0, 999.0) == 1000.0


@pytest.mark.parametrize("text", ["", "30", "d", "0d", "30 d", "month", "-1d", "99999999999d", "5m", "30s"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        checked_window(text)


@pytest.mark.parametrize("text", ["30d", "1h", "52w", CALENDAR_MONTH, LIFETIME])
def test_what_is_one_passes(text: str) -> None:
    assert checked_window(text) == text


def test_the_gates_of_a_level() -> None:
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
