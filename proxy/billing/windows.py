"""The windows of budgets: when the one that contains a time begins, and when it ends. Pure: the time is a parameter.

Invariant: the windows of a budget follow each other without a gap. Those by the calendar are of a time zone: a day has
23 or 25 hours where clocks change, and a window begins at the first moment of its local day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from proxy.foundation.durations import seconds_from

WINDOW_DEFAULT = "30d"
CALENDAR_HOUR, CALENDAR_DAY = "calendar_hour", "calendar_day"
CALENDAR_WEEK, CALENDAR_MONTH = "calendar_week", "calendar_month"
LIFETIME = "none"

_HOUR_S = 3_600
_LENGTH = re.compile(r"[1-9][0-9]{0,9}[hdw]", re.ASCII)
_Zone = ZoneInfo | None
"""None: UTC"""


def window_start(window: str, time_zone: str | None, created_at: float, now: float) -> float:
    """Start of the window that contains `now`, in Unix seconds. `window`, `time_zone`: valid, see `checked_window` and
    `checked_time_zone`."""
    if window == LIFETIME:
        return 0.0
    if window in CALENDAR:
        return CALENDAR[window](_zone(time_zone), now, 0)
    length_s = seconds_from(window)
    return created_at + max(0, int((now - created_at) // length_s)) * length_s


def window_end(window: str, time_zone: str | None, created_at: float, now: float) -> float | None:
    """End of the window that contains `now`, in Unix seconds; None: it never ends."""
    if window == LIFETIME:
        return None
    if window in CALENDAR:
        return CALENDAR[window](_zone(time_zone), now, 1)
    return window_start(window, time_zone, created_at, now) + seconds_from(window)


def checked_window(text: str) -> str:
    """`text` if it is a valid window. Raises ValueError with the expected forms."""
    if text != LIFETIME and text not in CALENDAR:
        if not _LENGTH.fullmatch(text):
            raise ValueError(f"not a budget window: {text!r} (write 30d, 12h, 4w, {', '.join(CALENDAR)} or {LIFETIME})")
        seconds_from(text)
    return text


def checked_time_zone(text: str) -> str:
    """`text` if it is the name of a time zone. Raises ValueError."""
    if text not in _names():
        raise ValueError(f"not a time zone: {text!r} (write a name such as Europe/Berlin or America/New_York)")
    return text


def local_day(time_zone: str | None, at: float) -> date:
    """The day of a time in Unix seconds."""
    return _today(_zone(time_zone), at)


def day_start(time_zone: str | None, day: date) -> float:
    """The first moment of a day; Unix seconds."""
    return _midnight(day, _zone(time_zone))


def _hour(zone: _Zone, now: float, later: int) -> float:
    """Zones differ from UTC by a quarter of an hour, too."""
    at = datetime.fromtimestamp(now, zone or UTC)
    return now - (at.minute * 60 + at.second + at.microsecond / 1e6) + later * _HOUR_S


def _day(zone: _Zone, now: float, later: int) -> float:
    return _midnight(_today(zone, now) + timedelta(days=later), zone)


def _week(zone: _Zone, now: float, later: int) -> float:
    """Weeks begin on Monday."""
    today = _today(zone, now)
    return _midnight(today + timedelta(days=7 * later - today.weekday()), zone)


def _month(zone: _Zone, now: float, later: int) -> float:
    today = _today(zone, now)
    years, month = divmod(today.month - 1 + later, 12)
    return _midnight(date(today.year + years, month + 1, 1), zone)


CALENDAR: Mapping[str, Callable[[_Zone, float, int], float]] = {
    CALENDAR_HOUR: _hour, CALENDAR_DAY: _day, CALENDAR_WEEK: _week, CALENDAR_MONTH: _month,
}  # fmt: skip
"""window → its start, `later` windows after the one that contains `now`"""


def _today(zone: _Zone, now: float) -> date:
    return datetime.fromtimestamp(now, zone or UTC).date()


def _midnight(day: date, zone: _Zone) -> float:
    """The first moment of a local day; where clocks are set forward at midnight, that is one o'clock."""
    return datetime.combine(day, time(), zone or UTC).timestamp()


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(available_timezones())


def _zone(name: str | None) -> _Zone:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except ZoneInfoNotFoundError:  # a machine with older data than the one that has checked it
        return None
