"""The division of time into buckets: minutes, hours, or days in a time zone.

Invariant: the buckets follow each other without a gap. A day begins at the first moment of its date in the zone; it has
23 or 25 hours where clocks change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from proxy.billing.windows import CALENDAR_DAY, window_end, window_start

DAY_S = 86_400


class Buckets(NamedTuple):
    """How time is divided into buckets. Times: Unix seconds."""

    width_s: int
    time_zone: str | None = None
    """the name of the time zone whose days are the buckets; `width_s` is then DAY_S; None: UTC"""

    def floor(self, at: float) -> int:
        """The beginning of the bucket that contains `at`."""
        if self.time_zone is None:
            return int(at // self.width_s) * self.width_s
        return int(window_start(CALENDAR_DAY, self.time_zone, 0.0, at))

    def ceil(self, at: float) -> int:
        """The first beginning of a bucket that is not before `at`."""
        begin = self.floor(at)
        return begin if begin == at else self.end_of(begin)

    def end_of(self, begin: int) -> int:
        """The end of the bucket that begins at `begin`."""
        if self.time_zone is None:
            return begin + self.width_s
        end = window_end(CALENDAR_DAY, self.time_zone, 0.0, begin)
        assert end is not None, "each day ends"
        return int(end)

    def between(self, begin: int, end: int) -> Iterator[int]:
        """The beginnings of the buckets from `begin` until before `end`; both are beginnings of buckets."""
        while begin < end:
            yield begin
            begin = self.end_of(begin)

    def begin_sql(self, at: str, begin: int, end: int) -> str:
        """An SQL expression: the beginning of the bucket of a time from `begin` until before `end`. `at`: an SQL
        expression for that time, in whole Unix seconds."""
        if self.time_zone is None:
            return f"({at} / {self.width_s} * {self.width_s})"
        cases = (
            f" WHEN {at} >= {run} THEN {run}" + ("" if is_odd else f" + ({at} - {run}) / {DAY_S} * {DAY_S}")
            for run, is_odd in reversed(self._runs(begin, end))
        )
        return f"(CASE{''.join(cases)} END)"

    def _runs(self, begin: int, end: int) -> list[tuple[int, bool]]:
        """The beginnings of runs of days of 24 hours, with False, and of days of another length, with True."""
        runs: list[tuple[int, bool]] = []
        for start in self.between(begin, end):
            is_odd = self.end_of(start) - start != DAY_S
            if is_odd or not runs or runs[-1][1]:
                runs.append((start, is_odd))
        return runs
