"""The amount that keys that fail open may use while the budget store is unavailable. Pure: the time is a parameter.

Invariants: the used amount never exceeds the allowance by more than running exchanges exceed their quotes. Outages that
are less than APART_S apart are one outage: a store that fails repeatedly does not grant a new allowance each time.
"""

from __future__ import annotations

from math import inf

# A store that has answered for this long is well; until then its next failure belongs to the same outage.
APART_S = 60.0


class OutageAllowance:
    """The allowance of one node, in nUSD."""

    def __init__(self, nusd: int) -> None:
        self.nusd_max = nusd
        self._used = 0
        self._well_since = -inf
        self._ill = False

    def take(self, nusd: int, now: float) -> bool:
        """Use `nusd` of the allowance for an exchange that is admitted without the store; False: not enough is left.
        `now`: seconds of a monotonic clock."""
        if not self._ill and now - self._well_since >= APART_S:
            self._used = 0
        self._ill = True
        if self._used + nusd > self.nusd_max:
            return False
        self._used += nusd
        return True

    def settle(self, quoted: int, charged: int) -> None:
        """An exchange that took `quoted` has ended: it used `charged`."""
        self._used = max(0, self._used + charged - quoted)

    def store_answered(self, now: float) -> None:
        """The store has decided about an exchange."""
        if self._ill:
            self._ill = False
            self._well_since = now
