"""Windows of budgets: by length and by the calendar, in time zones whose clocks change."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.billing.limits import Limits
from proxy.billing.windows import CALENDAR, LIFETIME, checked_time_zone, checked_window, window_end, window_start
from proxy.ledger.limits import checked_limits
from tests.support.examples import examples

HOUR_S = 3_600
# With changes at midnight (Beirut), of half an hour (Lord Howe), a day that was left out (Apia), no change (Kathmandu).
ZONES = [
    "Europe/Berlin", "America/New_York", "America/St_Johns", "Asia/Beirut", "Asia/Kathmandu", "Australia/Lord_Howe",
    "Pacific/Apia", "Pacific/Kiritimati", "Africa/Cairo", None,
]  # fmt: skip


def at(text: str, zone: str | None = None) -> float:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC if zone is None else ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("window", "zone", "now", "begins", "ends"),
    [
        ("calendar_hour", None, "2026-11-01T12:34:56", "2026-11-01T12:00", "2026-11-01T13:00"),
        ("calendar_hour", "Asia/Kathmandu", "2026-11-01T12:34:56", "2026-11-01T12:00", "2026-11-01T13:00"),
        ("calendar_day", None, "2026-11-01T12:34", "2026-11-01", "2026-11-02"),
        ("calendar_day", "Europe/Berlin", "2026-11-01T00:00", "2026-11-01", "2026-11-02"),
        ("calendar_week", "Europe/Berlin", "2026-11-01T23:59", "2026-10-26", "2026-11-02"),
        ("calendar_week", None, "2026-11-02T00:00", "2026-11-02", "2026-11-09"),
        ("calendar_month", "Pacific/Kiritimati", "2026-12-31T12:00", "2026-12-01", "2027-01-01"),
        ("calendar_month", None, "2026-02-28T12:00", "2026-02-01", "2026-03-01"),
    ],
)
def test_a_window_by_the_calendar(window: str, zone: str | None, now: str, begins: str, ends: str) -> None:
    moment = at(now, zone)
    assert window_start(window, zone, 0.0, moment) == at(begins, zone)
    assert window_end(window, zone, 0.0, moment) == at(ends, zone)


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", 23), ("Europe/Berlin", "2026-10-25", 25), ("Europe/Berlin", "2026-10-26", 24),
        ("America/New_York", "2026-03-08", 23), ("America/New_York", "2026-11-01", 25),
        ("Australia/Lord_Howe", "2026-04-05", 24.5), ("Asia/Beirut", "2025-03-30", 23),
    ],
)  # fmt: skip
def test_a_day_on_which_clocks_change(zone: str, day: str, hours: float) -> None:
    noon = at(f"{day}T12:00", zone)
    begins, ends = window_start("calendar_day", zone, 0.0, noon), window_end("calendar_day", zone, 0.0, noon)
    assert ends is not None
    assert ends - begins == hours * HOUR_S
    for inside in (begins, begins + HOUR_S, ends - 1):
        assert window_start("calendar_day", zone, 0.0, inside) == begins
    assert window_start("calendar_day", zone, 0.0, ends) == ends


@given(
    window=st.sampled_from([*CALENDAR, "30d", "12h", "2w"]), zone=st.sampled_from(ZONES),
    now=st.floats(at("2011-12-20"), at("2028-01-01")),
)  # fmt: skip
@settings(max_examples=examples(100), deadline=None)
def test_windows_follow_each_other_without_a_gap(window: str, zone: str | None, now: float) -> None:
    created_at = at("2010-05-05T05:05:05")
    begins, ends = window_start(window, zone, created_at, now), window_end(window, zone, created_at, now)
    assert ends is not None
    assert begins <= now < ends
    if window != "calendar_hour":  # an hour in which clocks change by half an hour begins twice
        assert window_start(window, zone, created_at, begins) == begins
        assert window_start(window, zone, created_at, ends) == ends


def test_a_window_of_a_length_begins_at_creation() -> None:
    created = at("2026-01-10T08:30")
    assert window_start("30d", None, created, created) == created
    assert window_start("30d", None, created, created + 30 * 86_400 - 1) == created
    assert window_start("30d", None, created, created + 30 * 86_400) == created + 30 * 86_400


def test_before_creation_it_is_the_first_window() -> None:
    assert window_start("30d", None, 1000.0, 999.0) == 1000.0


def test_what_is_no_window_and_no_zone() -> None:
    for wrong in ("", "30", "d", "0d", "30 d", "month", "-1d", "5m", "30s", "30D", "calendar_year", "Calendar_month"):
        with pytest.raises(ValueError, match="calendar_hour, calendar_day, calendar_week, calendar_month or none"):
            checked_window(wrong)
    with pytest.raises(ValueError, match="ten years"):
        checked_window("9999999999d")
    for right in ("30d", "1h", "52w", LIFETIME, *CALENDAR):
        assert checked_window(right) == right
    for wrong in ("", "Berlin", "europe/berlin", "../etc/passwd", "UTC+1"):
        with pytest.raises(ValueError, match="not a time zone"):
            checked_time_zone(wrong)
    assert checked_time_zone("UTC") == "UTC"
    with pytest.raises(ValueError, match="time_zone: is for windows by the calendar, as calendar_day, not 30d"):
        checked_limits(Limits(time_zone="UTC"))
