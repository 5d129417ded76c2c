"""What is known of a provider's health: a circuit breaker, and how long it wants to be left alone.

Law: pure; times by `time.monotonic` are given. It says who is worth asking where there are several; a provider that is
the only one is asked whatever is known of it. A trial is a time, not a flag: whoever makes it may end unheard.
"""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum

# So many failures one after the other are no accident.
FAILURES_MAX = 5
# A process that restarts is back by then; and one request in this time is what finding out may cost.
OPEN_S = 10.0
# A provider that names a longer time (a daily quota) is asked again after an hour: somebody may have paid.
REST_S_MAX = 3600.0


class BreakerState(StrEnum):
    """Of the breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """it was open for long enough: one request may try"""


class Health:
    """Of one provider, as this process sees it."""

    __slots__ = ("_failures", "_open_until", "_rests_until")

    def __init__(self) -> None:
        self._failures = 0
        self._open_until = 0.0
        self._rests_until = 0.0

    def state(self, now: float) -> BreakerState:
        """Of the breaker; what the provider asks for is not in it."""
        if self._failures < FAILURES_MAX:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def away_s(self, now: float) -> float:
        """How long it is not to be asked; 0: it can be."""
        until = self._rests_until if self._failures < FAILURES_MAX else max(self._rests_until, self._open_until)
        return max(0.0, until - now)

    def asked(self, now: float) -> None:
        """It is being asked: while the breaker is not closed, by nobody else for a while."""
        if self._failures >= FAILURES_MAX:
            self._open_until = now + OPEN_S

    def answered(self) -> None:
        """It answered, and not that it is broken."""
        self._failures = 0

    def failed(self, now: float) -> None:
        """It could not be reached, broke off before it answered, was silent, or answered 5xx."""
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._open_until = now + OPEN_S

    def rests(self, now: float, for_s: float) -> None:
        """It wants to be left alone for so long."""
        self._rests_until = max(self._rests_until, now + min(for_s, REST_S_MAX))


def retry_after_s(value: str, unix_now: float) -> float | None:
    """Seconds that a `Retry-After` header means, in digits or as a date; None: it is neither."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])  # 30 years; a longer number of digits is no time
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    zoned = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, zoned.timestamp() - unix_now)
