"""Limits of a key, its project and its organization, and the counters they apply to. Pure: the time is a parameter.

Invariant: a request passes the limit counters of all levels, or it is denied. A limit counter has up to four bounds:
money spent and reserved in one window, requests in 60 s, tokens in 60 s, and parallel exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf

import msgspec

from proxy.billing.entries import EntryKind
from proxy.billing.money import NUSD_PER_USD, Nusd
from proxy.billing.windows import WINDOW_DEFAULT, window_end, window_start

# Sums of these stay far below 2^53, so the database and Redis scripts add them without rounding.
BUDGET_NUSD_MAX = 1_000_000 * NUSD_PER_USD
RATE_MAX = 1_000_000_000


class OnExhausted(StrEnum):
    """The treatment of a running stream that exceeds its budget."""

    FINISH = "finish"
    CUT = "cut"


class OnStoreOutage(StrEnum):
    """The treatment of requests while the budget store is unavailable."""

    FAIL_CLOSED = "fail_closed"
    FAIL_OPEN = "fail_open"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one level; None: unlimited. Money: nUSD."""

    budget_nusd: Nusd | None = msgspec.field(default=None, name="budget_usd")
    budget_window: str = WINDOW_DEFAULT
    """`30d`, any number of h, d or w: consecutive windows from creation on; `calendar_hour`, `_day`, `_week`, `_month`;
    `none`: lifetime"""
    time_zone: str | None = None
    """time zone of windows by the calendar; None: UTC"""
    prepaid: bool = False
    """spending is limited to the top-ups"""
    rpm: int | None = None
    """requests in any 60 s"""
    tpm: int | None = None
    """tokens in any 60 s"""
    parallel: int | None = None
    """exchanges that run at the same time"""
    cost_in_answers: bool = False
    """the usage of each answer includes its cost; no limit, but set, changed and shown with the limits"""

    def window_start(self, created_at: float, now: float) -> float:
        """Start of the budget's window that contains `now`; Unix seconds."""
        return window_start(self.budget_window, self.time_zone, created_at, now)

    def window_end(self, created_at: float, now: float) -> float | None:
        """End of the budget's window that contains `now`; None: it never ends."""
        return window_end(self.budget_window, self.time_zone, created_at, now)

    @property
    def spends(self) -> bool:
        """True if a budget or prepaid credit limits money."""
        return self.budget_nusd is not None or self.prepaid

    @property
    def any(self) -> bool:
        return self.spends or (self.rpm, self.tpm, self.parallel) != (None, None, None)


UNLIMITED = Limits()


class Scope(msgspec.Struct, frozen=True):
    """One level that requests count against: a key, a project, an organization."""

    scope_id: str
    limits: Limits
    created_at: float
    """Unix seconds of creation: the first window of a fixed length begins here"""


class LimitCounter(msgspec.Struct, frozen=True, gc=False):
    """One counter with its bounds. The SQLite store encodes it by field name."""

    counter_id: str = msgspec.field(name="gate_id")
    """the scope's id; `<scope's id>/credit` for lifetime spend minus top-ups"""
    since: float = 0.0
    """Unix seconds; exchanges that began earlier do not count"""
    nusd_max: Nusd | None = None
    """bound of spent (since `since`) plus reserved"""
    rpm: int | None = None
    tpm: int | None = None
    parallel: int | None = None


class ResolvedLimits(msgspec.Struct, frozen=True, gc=False):
    """The limit counters of all levels of a request, valid from `since` until `until` (Unix seconds)."""

    counters: tuple[LimitCounter, ...]
    since: float
    until: float
    spends: bool
    """at least one counter bounds money"""


def resolve_limits(scopes: Sequence[Scope], now: float) -> ResolvedLimits:
    """The limit counters that apply to a request at `now`."""
    counters = tuple([counter for scope in scopes for counter in limit_counters(scope, now)])
    budgets = [one for one in scopes if one.limits.budget_nusd is not None]
    ends = [one.limits.window_end(one.created_at, now) for one in budgets]
    return ResolvedLimits(
        counters,
        since=max([counter.since for counter in counters], default=0.0),
        until=min([end for end in ends if end is not None], default=inf),
        spends=any(counter.nusd_max is not None for counter in counters),
    )


def credit_counter_id(scope_id: str) -> str:
    """The id of the counter of lifetime spend minus top-ups."""
    return f"{scope_id}/{EntryKind.CREDIT}"


def limit_counters(scope: Scope, now: float) -> tuple[LimitCounter, ...]:
    """The counters of one level at `now`; empty if it has no limits."""
    limits = scope.limits
    counters: tuple[LimitCounter, ...] = ()
    if limits.budget_nusd is not None or (limits.rpm, limits.tpm, limits.parallel) != (None, None, None):
        since = 0.0 if limits.budget_nusd is None else limits.window_start(scope.created_at, now)
        counters = (LimitCounter(scope.scope_id, since, limits.budget_nusd, limits.rpm, limits.tpm, limits.parallel),)
    if limits.prepaid:
        counters += (LimitCounter(credit_counter_id(scope.scope_id), nusd_max=Nusd(0)),)
    return counters
