"""The period before another one. Pure."""

from __future__ import annotations

from datetime import date

from proxy.billing.windows import day_start, local_day


def previous_period(begin: int, end: int, time_zone: str | None) -> tuple[int, int]:
    """Begin and end of the period before `begin`; Unix seconds.

    Before whole months: as many months. Before whole days: as many days, however many hours these have. Before any
    other period: one of the same length.
    """
    first, last = (_whole_day(time_zone, at) for at in (begin, end))
    if first is None or last is None:
        return begin - (end - begin), begin
    if first.day == last.day == 1:
        months = first.year * 12 + first.month - 1 - ((last.year - first.year) * 12 + last.month - first.month)
        before = date(months // 12, months % 12 + 1, 1)
    else:
        before = first - (last - first)
    return int(day_start(time_zone, before)), begin


def _whole_day(time_zone: str | None, at: int) -> date | None:
    """The day that begins at `at`; None: none does."""
    day = local_day(time_zone, at)
    return day if int(day_start(time_zone, day)) == at else None
