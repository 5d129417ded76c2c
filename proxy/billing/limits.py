"""Limits of a key, its project and its organization, and the counters they apply to. Pure: the time is a parameter.

Invariants: A request passes the limit counters of all levels, or it is denied. The counter of a level has up to four
bounds: money spent and reserved in one window, requests in 60 s, tokens in 60 s, and parallel exchanges. Each quota of
a level has a counter of its own, which counts requests or tokens, instead of money, in the same window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import inf

import msgspec

from proxy.billing.entries import EntryKind
from proxy.billing.money import NUSD_PER_USD, Nusd
from proxy.billing.windows import WINDOW_DEFAULT, window_end, window_start
from proxy.metering.usage import Usage

# Sums of these stay far below 2^53, so the database and Redis scripts add them without rounding.
BUDGET_NUSD_MAX = 1_000_000 * NUSD_PER_USD
RATE_MAX = 1_000_000_000
QUOTA_MAX = 10**12
# The highest threshold, in percent of a budget, and the most thresholds.
THRESHOLD_MAX, THRESHOLDS_MAX = 1_000, 10


class OnExhausted(StrEnum):
    """The treatment of a running stream that exceeds its budget."""

    FINISH = "finish"
    CUT = "cut"


class OnStoreOutage(StrEnum):
    """The treatment of requests while the budget store is unavailable."""

    FAIL_CLOSED = "fail_closed"
    FAIL_OPEN = "fail_open"


class Measure(StrEnum):
    """The quantities that a quota can count."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOKENS = "tokens"
    """input and output tokens"""


Measured = Mapping[Measure, int]
"""measure → amount"""

NOTHING_MEASURED: Measured = dict.fromkeys(Measure, 0)


def measured(requests: int, input_tokens: int, output_tokens: int) -> Measured:
    """The amounts of requests and tokens, by measure."""
    counts = requests, input_tokens, output_tokens, input_tokens + output_tokens
    return dict(zip(Measure, counts, strict=True))


def counted(usage: Usage) -> Measured:
    """The amounts of one request with this usage."""
    return measured(1, usage.prompt_tokens or 0, usage.completion_tokens or 0)


class Raise(msgspec.Struct, frozen=True):
    """An increase of a budget until a time."""

    nusd: Nusd = msgspec.field(name="usd")
    """the amount that is added to the budget of each window"""
    until: float
    """Unix seconds"""


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
    quotas: Measured = {}
    """the maximum of requests and tokens in each window of the budget; only for rules"""
    alert_only: bool = False
    """the budget refuses no request: its thresholds only make alerts"""
    thresholds: tuple[int, ...] = ()
    """percentages of the budget that make alerts; empty: the usual ones"""
    raised: Raise | None = None

    def window_start(self, created_at: float, now: float) -> float:
        """Start of the budget's window that contains `now`; Unix seconds."""
        return window_start(self.budget_window, self.time_zone, created_at, now)

    def window_end(self, created_at: float, now: float) -> float | None:
        """End of the budget's window that contains `now`; None: it never ends."""
        return window_end(self.budget_window, self.time_zone, created_at, now)

    def budget_at(self, now: float) -> Nusd | None:
        """The budget of the window that contains `now`, raised if it is raised then."""
        if self.budget_nusd is None or self.raised is None or now >= self.raised.until:
            return self.budget_nusd
        return Nusd(self.budget_nusd + self.raised.nusd)

    @property
    def has_budget(self) -> bool:
        """True if a budget limits money."""
        return self.budget_nusd is not None and not self.alert_only

    @property
    def has_window(self) -> bool:
        """True if a limit depends on the budget's window."""
        return self.has_budget or bool(self.quotas)

    @property
    def spends(self) -> bool:
        """True if a budget or prepaid credit limits money."""
        return self.has_budget or self.prepaid

    @property
    def any(self) -> bool:
        """True if it limits requests."""
        return self.spends or bool(self.quotas) or (self.rpm, self.tpm, self.parallel) != (None, None, None)


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
    """the scope's id; `<scope's id>/credit` for lifetime spend minus top-ups; `<scope's id>#<measure>` of a quota"""
    since: float = 0.0
    """Unix seconds; exchanges that began earlier do not count"""
    nusd_max: int | None = None
    """bound of spent (since `since`) plus reserved, in nUSD or in units of the quota"""
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
    quotas: tuple[LimitCounter, ...] = ()
    """the counters that count requests or tokens"""


def resolve_limits(scopes: Sequence[Scope], now: float) -> ResolvedLimits:
    """The limit counters that apply to a request at `now`."""
    counters = tuple([counter for scope in scopes for counter in limit_counters(scope, now)])
    ends = [end for one in scopes for end in _ends(one, now)]
    quotas = tuple([counter for counter in counters if quota_of(counter.counter_id) is not None])
    return ResolvedLimits(
        counters,
        since=max([counter.since for counter in counters], default=0.0),
        until=min(ends, default=inf),
        spends=any(scope.limits.spends for scope in scopes),
        quotas=quotas,
    )


def _ends(scope: Scope, now: float) -> Iterable[float]:
    """The times at which the counters of the level get other bounds."""
    limits = scope.limits
    if limits.has_window and (end := limits.window_end(scope.created_at, now)) is not None:
        yield end
    if limits.raised is not None and now < limits.raised.until:
        yield limits.raised.until


_CREDIT = f"/{EntryKind.CREDIT}"


def credit_counter_id(scope_id: str) -> str:
    """The id of the counter of lifetime spend minus top-ups."""
    return f"{scope_id}{_CREDIT}"


def quota_counter_id(scope_id: str, measure: Measure) -> str:
    """The id of the counter of a quota of this level."""
    return f"{scope_id}#{measure}"


def quota_of(counter_id: str) -> Measure | None:
    """The measure of the counter's quota; None: the counter counts money."""
    _, mark, measure = counter_id.partition("#")
    return Measure(measure) if mark else None


def scope_of(counter_id: str) -> str:
    """The id of the key or account that the counter belongs to, or of the counter of money of the rule."""
    return counter_id.partition("#")[0].removesuffix(_CREDIT)


def amounts_at(counters: Iterable[LimitCounter], amounts: Measured) -> dict[str, int]:
    """Counter id → amount at the counter, for the counters of quotas."""
    quotas = ((one.counter_id, quota_of(one.counter_id)) for one in counters)
    return {counter_id: amounts[measure] for counter_id, measure in quotas if measure is not None}


def limit_counters(scope: Scope, now: float) -> tuple[LimitCounter, ...]:
    """The counters of one level at `now`; empty if it has no limits."""
    limits = scope.limits
    counters: tuple[LimitCounter, ...] = ()
    since = limits.window_start(scope.created_at, now) if limits.has_window else 0.0
    budget = limits.budget_at(now) if limits.has_budget else None
    if budget is not None or (limits.rpm, limits.tpm, limits.parallel) != (None, None, None):
        began = 0.0 if budget is None else since
        counters = (LimitCounter(scope.scope_id, began, budget, limits.rpm, limits.tpm, limits.parallel),)
    if limits.prepaid:
        counters += (LimitCounter(credit_counter_id(scope.scope_id), nusd_max=0),)
    for measure, most in limits.quotas.items():
        counters += (LimitCounter(quota_counter_id(scope.scope_id, measure), since, most),)
    return counters
