"""Limits how often a key reads or changes its own data.

Invariant: a key gets ANSWERS_MAX answers in 60 s from each process, on all of these routes together.
"""

from __future__ import annotations

import time
from math import ceil

from proxy.budgets.rates import Window
from proxy.http.errors import ApiError

# More than a widget that polls each second, or one that asks after every answer, needs.
ANSWERS_MAX = 60
# Keys with a count, up to 2 KiB each.
COUNTED_KEYS_MAX = 4_096


class KeyAllowance:
    """Counts the answers of each key."""

    def __init__(self) -> None:
        self._counts: dict[str, Window] = {}
        """key id → answers in the last 60 s"""

    def count(self, key_id: str) -> None:
        """Raises ApiError 429 if the key has got ANSWERS_MAX answers in 60 s."""
        now = time.time()
        known = self._counts.get(key_id)
        window = Window(None if known is None else known.packed(), now)
        if window.requests >= ANSWERS_MAX:
            wait_s = window.wait_s(requests=1, now=now) or 1.0
            message = f"A key may read its own data {ANSWERS_MAX} times a minute."
            raise ApiError(
                429, message, kind="requests", code="rate_limit_exceeded", retry_after_s=max(1, ceil(wait_s))
            )
        window.add(int(now), 1, 0)
        if known is None and len(self._counts) >= COUNTED_KEYS_MAX:
            self._counts.clear()
        self._counts[key_id] = window
