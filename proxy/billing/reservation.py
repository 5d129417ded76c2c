"""Values of reservations on budgets: quote, reserve, settle, release. The stores are in `budgets/`.

Invariants: For every limit counter, spent plus reserved is at most its bound when a request is admitted. `spent` comes
from the ledger only. A reservation stays, at the actual charge once that is known, until the ledger has the exchange's
entry. So every exchange counts exactly once at any moment, and all of this can be rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from proxy.billing.limits import LimitCounter

RATE_WINDOW_S = 60

NO_AMOUNTS: Mapping[str, int] = {}
"""the amounts at counters of quotas, if there are none"""


class DenialReason(StrEnum):
    """The bound of a limit counter that the request would exceed."""

    MONEY = "money"
    """money, or the amount of a quota"""
    REQUESTS = "requests"
    TOKENS = "tokens"
    PARALLEL = "parallel"
    STORE_UNAVAILABLE = "store_unavailable"
    """the store is unavailable, and the key fails closed"""


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """The reservation of one exchange at its limit counters. Money: nUSD."""

    exchange_id: str
    counters: tuple[LimitCounter, ...]
    nusd: int
    """the quote, an upper bound; once the exchange has ended, its charge"""
    tokens: int
    """tokens of prompt and completion: an upper bound, then the actual number"""
    at: float = 0.0
    """Unix seconds of admission, in the windows of all counters; 0: the store sets it by its clock"""
    amounts: Mapping[str, int] = {}
    """id of the counter of a quota → amount that is reserved there, instead of `nusd`"""

    def amount_at(self, counter: LimitCounter) -> int:
        """The amount that is reserved at one of the counters, in nUSD or in units of its quota."""
        return self.amounts.get(counter.counter_id, self.nusd) if self.amounts else self.nusd

    @property
    def is_free(self) -> bool:
        """True if nothing is reserved at any counter."""
        return not self.nusd and not any(self.amounts.values())


class LimitLevel(msgspec.Struct, frozen=True, gc=False):
    """Remaining rate of a counter after a reservation attempt; None: not bounded there."""

    counter_id: str
    requests_left: int | None = None
    requests_reset_s: float = 0.0
    """seconds until the whole rate is available again"""
    tokens_left: int | None = None
    tokens_reset_s: float = 0.0


class Granted(msgspec.Struct, frozen=True, gc=False):
    """The reservation is made."""

    levels: tuple[LimitLevel, ...] = ()


class Denied(msgspec.Struct, frozen=True, gc=False):
    """No reservation is made."""

    why: DenialReason
    counter_id: str
    """the first counter whose bound the request would exceed"""
    retry_after_s: float | None
    """seconds > 0 until the request may pass; None: waiting alone does not help, or unknown"""
    levels: tuple[LimitLevel, ...]
    spent: int | None = None
    """the amount that the counter has in its window, if that is the reason; None: unknown, or another reason"""
    reserved: int = 0
    """reservations of the counter, if `spent` is known"""
    next_grant_at: float | None = None
    """Unix seconds at which the next grant of a prepaid key or account begins; None: none is planned, or unknown"""


class Unseeded(msgspec.Struct, frozen=True, gc=False):
    """No reservation is made: the spend in the window of these counters is unknown. Seed them, and retry."""

    counters: tuple[LimitCounter, ...]


Verdict = Granted | Denied | Unseeded


class SpendTotal(msgspec.Struct, frozen=True, gc=False):
    """The amount of a counter according to the ledger, including all entries settled up to `as_of_us`."""

    counter_id: str
    since: float
    amount: int
    """in nUSD or in units of the quota"""
    as_of_us: int
    """Unix time in µs, by the ledger's clock"""


class SpendDelta(msgspec.Struct, frozen=True, gc=False):
    """The effect of one ledger entry on limit counters."""

    exchange_id: str
    settled_at_us: int
    started_at: float
    """Unix seconds: an entry counts in the window in which its exchange began"""
    nusd: int
    """added to `spent`; negative for a top-up, or for a correction downwards"""
    counter_ids: tuple[str, ...]
    """the counters it is added to"""
    amounts: Mapping[str, int] = {}
    """id of the counter of a quota → amount that is added there"""

    def amount_at(self, counter_id: str) -> int:
        """The amount that is added at a counter."""
        return self.nusd if counter_id in self.counter_ids else self.amounts.get(counter_id, 0)


class CounterState(msgspec.Struct, frozen=True, gc=False):
    """The state of a limit counter. Amounts: nUSD, or units of the quota."""

    counter_id: str
    since: float
    spent: int | None
    """None: unseeded"""
    reserved: int
    open: int
    """running exchanges"""
    closed: int
    """ended exchanges whose entries are not absorbed from the ledger yet"""
