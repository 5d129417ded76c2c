"""The health of a provider: a circuit breaker, and the time limit of its `Retry-After`.

Invariants: pure; times by `time.monotonic` are passed in. Health only orders several providers; a single one is always
used. A trial is a time, not a flag, since a request that makes it may end without a result.
"""

from __future__ import annotations

from enum import StrEnum

# Consecutive failures that open the breaker.
FAILURES_MAX = 5
# A restarting provider is usually back by then; one request per period is spent on trials.
OPEN_S = 10.0
# A longer Retry-After (such as a daily quota) is cut to an hour: the quota may have been raised.
REST_S_MAX = 3600.0


class BreakerState(StrEnum):
    """The states of a provider's circuit breaker; the values are a metric's labels."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """the open time is over: one trial request is allowed"""


class Health:
    """The health of one provider, as observed by this process."""

    __slots__ = ("_open_until", "_rests_until", "failures")

    def __init__(self) -> None:
        self.failures = 0
        """failures since the last answer"""
        self._open_until = 0.0
        self._rests_until = 0.0

    def state(self, now: float) -> BreakerState:
        """The state of the breaker; `Retry-After` has no influence."""
        if self.failures < FAILURES_MAX:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def away_s(self, now: float) -> float:
        """Seconds until the provider is available; 0: now."""
        until = self._rests_until if self.failures < FAILURES_MAX else max(self._rests_until, self._open_until)
        return max(0.0, until - now)

    def asked(self, now: float) -> None:
        """A request is sent. Unless the breaker is closed, this is the trial, and the breaker stays open for others."""
        if self.failures >= FAILURES_MAX:
            self._open_until = now + OPEN_S

    def answered(self) -> None:
        """The provider answered without a server error, and not with an empty answer."""
        self.failures = 0

    def failed(self, now: float) -> None:
        """The provider was unreachable, disconnected or timed out before an answer, or answered 5xx."""
        self.failures += 1
        if self.failures >= FAILURES_MAX:
            self._open_until = now + OPEN_S

    def rests(self, now: float, for_s: float) -> None:
        """The provider sent a `Retry-After` of `for_s` seconds."""
        self._rests_until = max(self._rests_until, now + min(for_s, REST_S_MAX))
