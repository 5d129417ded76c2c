"""The hold on a budget: quote, hold, settle, release. Pure values; who keeps them is in `keys/`.

Law: for every gate, what is spent and what is held is at most its bound when a request is admitted. `spent` comes from
the ledger and from nowhere else; a hold stays, at the actual charge once that is known, until the ledger has the
exchange's entry. So at every moment each exchange counts exactly once, and everything here can be made anew.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from proxy.billing.limits import LimitCounter

RATE_WINDOW_S = 60


class DenialReason(StrEnum):
    """Which bound of a gate would have been passed."""

    MONEY = "money"
    REQUESTS = "requests"
    TOKENS = "tokens"
    PARALLEL = "parallel"
    STORE_UNAVAILABLE = "store_unavailable"
    """nobody can say what is left, and this key may not go on without"""


class Hold(msgspec.Struct, frozen=True, gc=False):
    """What one exchange keeps from others. Money: nUSD."""

    exchange_id: str
    gates: tuple[LimitCounter, ...]
    nusd: int
    """its quote, an upper bound; once it is closed, its charge"""
    tokens: int
    """of prompt and completion, likewise"""
    at: float = 0.0
    """Unix seconds, when it was admitted; set by the store's clock where it is 0"""


class LimitLevel(msgspec.Struct, frozen=True, gc=False):
    """How a gate that bounds requests or tokens stands after an attempt; None: not bounded there."""

    gate_id: str
    requests_left: int | None = None
    requests_reset_s: float = 0.0
    """until as many requests are free as there can be"""
    tokens_left: int | None = None
    tokens_reset_s: float = 0.0


class Granted(msgspec.Struct, frozen=True, gc=False):
    """It is held."""

    levels: tuple[LimitLevel, ...] = ()


class Denied(msgspec.Struct, frozen=True, gc=False):
    """Nothing is held."""

    why: DenialReason
    gate_id: str
    """the first gate that it does not pass"""
    retry_after_s: float | None
    """when it could pass, if time alone helps: seconds > 0; None: it does not, or nobody knows"""
    levels: tuple[LimitLevel, ...]


class Unseeded(msgspec.Struct, frozen=True, gc=False):
    """Nothing is held: of these gates it is not known what was spent in their window. Seed them, and ask again."""

    gates: tuple[LimitCounter, ...]


Verdict = Granted | Denied | Unseeded


class SpendTotal(msgspec.Struct, frozen=True, gc=False):
    """What the ledger says was spent, all entries settled up to `as_of_us` included."""

    gate_id: str
    since: float
    nusd: int
    as_of_us: int
    """the ledger's clock: Unix time in microseconds"""


class SpendDelta(msgspec.Struct, frozen=True, gc=False):
    """One entry of the ledger, as far as gates are concerned."""

    exchange_id: str
    settled_at_us: int
    started_at: float
    """Unix seconds: an entry counts in the window in which its exchange began"""
    nusd: int
    """what is added to what was spent; negative for a top-up or a correction"""
    gate_ids: tuple[str, ...]
    """where it counts"""


class CounterState(msgspec.Struct, frozen=True, gc=False):
    """What is known of a gate. Money: nUSD."""

    gate_id: str
    since: float
    spent: int | None
    """None: unseeded"""
    held: int
    open: int
    """exchanges that run"""
    closed: int
    """exchanges that ended, and that the ledger is not known to have"""
