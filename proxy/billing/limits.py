"""How much a key, its project and its organization may use. Pure: time is given, never asked for.

Law: a request passes every gate of every level, or none. A gate is one sum with its bounds: what was spent and is held
in one window of time, requests and tokens in 60 s, exchanges at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from math import inf

import msgspec

from proxy.billing.entries import EntryKind
from proxy.billing.money import NUSD_PER_USD
from proxy.foundation.durations import seconds_from

WINDOW_DEFAULT = "30d"
CALENDAR_MONTH = "calendar_month"
LIFETIME = "none"
_ROLLING = re.compile(r"[1-9][0-9]{0,9}[hdw]", re.ASCII)

# What the database and Redis's scripts can add up without rounding, with room to spare.
BUDGET_NUSD_MAX = 1_000_000 * NUSD_PER_USD
RATE_MAX = 1_000_000_000


class OnExhausted(StrEnum):
    """What becomes of a running stream that passes what is left of a budget."""

    FINISH = "finish"
    CUT = "cut"


class OnStoreOutage(StrEnum):
    """What becomes of requests while nobody can say what is left."""

    FAIL_CLOSED = "fail_closed"
    FAIL_OPEN = "fail_open"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one level may use; None: as much as it wants. Money: nUSD."""

    budget_usd: int | None = None
    budget_window: str = WINDOW_DEFAULT
    """`30d`, any number of h, d or w: rolling, from mint; `calendar_month` (UTC); `none`: the whole lifetime"""
    prepaid: bool = False
    """it may use what was paid in before, and no more"""
    rpm: int | None = None
    """requests in any 60 s"""
    tpm: int | None = None
    """tokens in any 60 s"""
    parallel: int | None = None
    """exchanges at once"""

    @property
    def spends(self) -> bool:
        """True if money is limited."""
        return self.budget_usd is not None or self.prepaid

    @property
    def any(self) -> bool:
        """True if anything is limited."""
        return self.spends or (self.rpm, self.tpm, self.parallel) != (None, None, None)


UNLIMITED = Limits()


class Scope(msgspec.Struct, frozen=True):
    """One level that requests are counted at: a key, a project, an organization."""

    scope_id: str
    limits: Limits
    minted_at: float
    """Unix seconds: where rolling windows begin"""


class LimitCounter(msgspec.Struct, frozen=True, gc=False):
    """One sum with its bounds. `nusd_max` bounds what was spent since `since`, and is held."""

    gate_id: str
    """the scope's id; `<scope's id>/credit` for the sum of all that was ever spent, less what was paid in"""
    since: float = 0.0
    """Unix seconds; entries of exchanges that began before do not count"""
    nusd_max: int | None = None
    rpm: int | None = None
    tpm: int | None = None
    parallel: int | None = None


class ResolvedLimits(msgspec.Struct, frozen=True, gc=False):
    """The gates of all levels of a request; from `since` until `until` (Unix seconds) they are these."""

    gates: tuple[LimitCounter, ...]
    since: float
    until: float
    spends: bool
    """one of them bounds money"""


def resolve_limits(scopes: Sequence[Scope], now: float) -> ResolvedLimits:
    """What a request at `now` has to pass."""
    passed = tuple([gate for scope in scopes for gate in limit_counters(scope, now)])
    budgets = [one for one in scopes if one.limits.budget_usd is not None]
    ends = [window_end(one.limits.budget_window, one.minted_at, now) for one in budgets]
    return ResolvedLimits(
        passed,
        since=max([gate.since for gate in passed], default=0.0),
        until=min([end for end in ends if end is not None], default=inf),
        spends=any(gate.nusd_max is not None for gate in passed),
    )


def credit_gate(scope_id: str) -> str:
    """The id of the gate that counts top-ups."""
    return f"{scope_id}/{EntryKind.CREDIT}"


def limit_counters(scope: Scope, now: float) -> tuple[LimitCounter, ...]:
    """The gates of a level at `now`; none if nothing is limited there."""
    limits = scope.limits
    found: tuple[LimitCounter, ...] = ()
    if limits.budget_usd is not None or (limits.rpm, limits.tpm, limits.parallel) != (None, None, None):
        since = 0.0 if limits.budget_usd is None else window_start(limits.budget_window, scope.minted_at, now)
        found = (LimitCounter(scope.scope_id, since, limits.budget_usd, limits.rpm, limits.tpm, limits.parallel),)
    if limits.prepaid:
        found += (LimitCounter(credit_gate(scope.scope_id), nusd_max=0),)
    return found


def window_start(window: str, minted_at: float, now: float) -> float:
    """When the window that `now` is in began; Unix seconds. `window` has passed `checked_window`."""
    if window == LIFETIME:
        return 0.0
    if window == CALENDAR_MONTH:
        return _month_start(now, 0)
    length_s = seconds_from(window)
    return minted_at + max(0, int((now - minted_at) // length_s)) * length_s


def window_end(window: str, minted_at: float, now: float) -> float | None:
    """When it ends; None: never."""
    if window == LIFETIME:
        return None
    if window == CALENDAR_MONTH:
        return _month_start(now, 1)
    return window_start(window, minted_at, now) + seconds_from(window)


def checked_window(text: str) -> str:
    """`text`, if it is a window. Raises ValueError, saying what was expected."""
    if text not in (CALENDAR_MONTH, LIFETIME):
        if not _ROLLING.fullmatch(text):
            raise ValueError(f"not a budget window: {text!r} (30d, 12h, 4w, {CALENDAR_MONTH} or {LIFETIME})")
        seconds_from(text)
    return text


def _month_start(now: float, later: int) -> float:
    """The first instant of the month of `now`, or so many months later. UTC."""
    at = datetime.fromtimestamp(now, UTC)
    years, month = divmod(at.month - 1 + later, 12)
    return datetime(at.year + years, month + 1, 1, tzinfo=UTC).timestamp()
