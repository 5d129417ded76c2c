"""The state of one budget: its limit, spend and reservations, from the state of its limit counter. Pure."""

from __future__ import annotations

import msgspec

from proxy.billing.money import Nusd
from proxy.billing.reservation import CounterState
from proxy.budgets.thresholds import Subject

CREDIT = "credit"
"""in place of a window: a prepaid balance"""


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """A budget in one window, or a prepaid balance. Money: nUSD. Times: Unix seconds."""

    subject: Subject
    window: str
    since: float
    """0: the beginning"""
    until: float | None
    """end of the window; None: never, or the limits have no such window any more"""
    limit_nusd: Nusd
    """the budget; for a prepaid balance, the credit that was added"""
    spent_nusd: Nusd
    reserved_nusd: Nusd
    running: int
    """running exchanges"""

    @property
    def left_nusd(self) -> Nusd:
        """Less than 0 if more is spent and reserved than the limit."""
        return Nusd(self.limit_nusd - self.spent_nusd - self.reserved_nusd)

    @property
    def used_ratio(self) -> float:
        """Spent part of the limit; 0.5 is 50 %."""
        return round(self.spent_nusd / self.limit_nusd, 6) if self.limit_nusd > 0 else 1.0


def window_state(counter: CounterState, subject: Subject, now: float) -> BudgetState | None:
    """The budget of the subject's own counter at `now` (Unix seconds); None without a money limit. A counter whose
    window has ended was not used since: nothing is spent in the window of `now`."""
    limit = subject.limits.budget_at(now)
    if limit is None:
        return None
    until = subject.window_end(counter.since)
    if until is not None and until <= now:
        limits, created_at = subject.limits, subject.created_at
        counter = msgspec.structs.replace(counter, since=limits.window_start(created_at, now), spent=0)
        until = limits.window_end(created_at, now)
    return BudgetState(
        subject=subject,
        window=subject.limits.budget_window,
        since=counter.since,
        until=until,
        limit_nusd=limit,
        spent_nusd=Nusd(counter.spent or 0),
        reserved_nusd=Nusd(counter.reserved),
        running=counter.open,
    )


def credit_state(counter: CounterState, subject: Subject, credit_nusd: Nusd) -> BudgetState | None:
    """The prepaid balance of the subject's credit counter; None if the counter is not seeded."""
    if counter.spent is None:
        return None
    return BudgetState(
        subject=subject,
        window=CREDIT,
        since=0.0,
        until=None,
        limit_nusd=credit_nusd,
        spent_nusd=Nusd(credit_nusd + counter.spent),  # the counter has the spend less the credit
        reserved_nusd=Nusd(counter.reserved),
        running=counter.open,
    )
