"""Billing periods: calendar months, and the month whose statement has an entry. Those that are closed are in UTC.

Invariants: usage is on the statement of the month in which its exchange began, unless that month was closed when it
settled; then, like every adjustment and credit, on that of the month in which it was settled. The month of settling is
always open, because a month is closed after its end and the ledger's clock only rises. So an entry of a closed month
never appears or disappears, whoever settles it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from proxy.billing.entries import EntryKind
from proxy.billing.windows import day_start, local_day

_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A calendar month."""

    first: date
    after: date
    """first day of the next month"""
    time_zone: str | None = None
    """the name of the time zone of the month and its days; None: UTC"""

    @property
    def since(self) -> float:
        """The first instant; Unix seconds."""
        return day_start(self.time_zone, self.first)

    @property
    def until(self) -> float:
        """The exclusive end; Unix seconds."""
        return day_start(self.time_zone, self.after)

    @property
    def last(self) -> date:
        """The last day."""
        return self.after - timedelta(days=1)

    @property
    def end(self) -> datetime:
        """The exclusive end."""
        return datetime.fromtimestamp(self.until, UTC)

    def day_of(self, unix_s: float) -> date:
        """The day of a time, in the month's time zone."""
        return local_day(self.time_zone, unix_s)

    @property
    def next(self) -> Month:
        return replace(_month(self.after.year, self.after.month), time_zone=self.time_zone)

    def __str__(self) -> str:
        return f"{self.first:%Y-%m}"


def month_from(text: str) -> Month:
    """Parses "2026-11". Raises ValueError."""
    match = _MONTH.fullmatch(text)
    if match is None or not 1970 <= int(match[1]) < 9999:
        raise ValueError(f"expected YYYY-MM, for example 2026-11, not {text!r}")
    return _month(int(match[1]), int(match[2]))


def month_of(unix_s: float) -> Month:
    """The month of a time in Unix seconds."""
    day = day_of(unix_s)
    return _month(day.year, day.month)


def day_of(unix_s: float) -> date:
    """The UTC day of a time in Unix seconds."""
    return datetime.fromtimestamp(unix_s, UTC).date()


@dataclass(frozen=True, slots=True)
class Closing:
    """The closing of a month, and of every month before it."""

    month: Month
    closed_at: float
    """Unix seconds by the ledger's clock; an entry of the month that settles later is late"""


class LateSpan(NamedTuple):
    """Usage settled after `after`, until `by`, is late if its exchange began before `began_before`. Unix seconds."""

    after: float
    by: float
    began_before: float


class Closings:
    """All closings of a ledger, one for each closed month."""

    def __init__(self, closings: Iterable[Closing] = ()) -> None:
        self._all = sorted(closings, key=lambda one: one.month)

    def closed_at(self, month: Month) -> float | None:
        """When the month was closed, by itself or with a later one; None: it is open."""
        return next((one.closed_at for one in self._all if one.month >= month), None)

    @property
    def last(self) -> Month | None:
        return self._all[-1].month if self._all else None

    def posted_in(self, kind: str, started_at: float, settled_at: float) -> Month:
        """The month whose statement has this entry."""
        if kind in (EntryKind.ADJUSTMENT, EntryKind.CREDIT):
            return month_of(settled_at)
        month = month_of(started_at)
        closed_at = self.closed_at(month)
        return month if closed_at is None or settled_at <= closed_at else month_of(settled_at)

    def late_between(self, since: float, until: float = math.inf) -> list[LateSpan]:
        """The late usage on the statements of the months from `since` to before `until`; Unix seconds."""
        marks = sorted((one.closed_at, one.month.until) for one in self._all if one.closed_at < until)
        spans = [
            LateSpan(max(closed_at, since - _BEFORE), by, began_before)
            for (closed_at, began_before), (by, _) in pairwise([*marks, (min(until, _NEVER) - _BEFORE, 0.0)])
        ]
        return [one for one in spans if one.after < one.by]


# The ledger's clock counts microseconds: "at or after" is "later than one before".
_BEFORE = 1e-6
# The year 9999, which every supported database can store.
_NEVER = 253_370_764_800.0


@lru_cache(maxsize=64)
def _month(year: int, month: int) -> Month:
    return Month(date(year, month, 1), date(year + month // 12, month % 12 + 1, 1))
