"""Requests and tokens of the last 60 s at one limit counter. Pure: the time is a parameter, in Unix seconds.

Invariants: In no period of 60 s more than the bound is counted; a count no longer applies after 61 s. Counts are in
buckets of one second, and a bucket counts until all of it is older than the window.
"""

from __future__ import annotations

from array import array
from itertools import chain

from proxy.billing.reservation import RATE_WINDOW_S

# From the start of a bucket until its end is older than the window.
BUCKET_S = RATE_WINDOW_S + 1


class Window:
    """Buckets, oldest first: start in Unix seconds, requests, tokens."""

    __slots__ = ("_buckets",)

    def __init__(self, stored: bytes | None, now: float) -> None:
        """`stored`: the result of `packed`. Buckets that do not count at `now` any more are dropped.

        A clock that was set back leaves buckets in the future. They count, but for at most two windows.
        """
        buckets = array("q", stored or b"")
        second = int(now)
        oldest, newest = second - RATE_WINDOW_S, second + RATE_WINDOW_S
        if buckets and not oldest <= buckets[0] <= buckets[-3] <= newest:
            triples = zip(buckets[0::3], buckets[1::3], buckets[2::3], strict=True)
            buckets = array("q", chain.from_iterable(one for one in triples if oldest <= one[0] <= newest))
        self._buckets = buckets

    @property
    def requests(self) -> int:
        """Requests in the window."""
        return sum(self._buckets[1::3])

    @property
    def tokens(self) -> int:
        """Tokens in the window."""
        return sum(self._buckets[2::3])

    def add(self, second: int, requests: int, tokens: int) -> None:
        """Count requests and tokens in the bucket of `second`. Negative numbers correct the bucket, but never to below
        0."""
        buckets = self._buckets
        at = len(buckets)
        while at and buckets[at - 3] > second:
            at -= 3
        if at and buckets[at - 3] == second:
            buckets[at - 2] = max(0, buckets[at - 2] + requests)
            buckets[at - 1] = max(0, buckets[at - 1] + tokens)
        elif requests > 0:
            buckets[at:at] = array("q", (second, requests, max(0, tokens)))

    def wait_s(self, *, requests: int = 0, tokens: int = 0, now: float) -> float | None:
        """Seconds > 0 until so many requests and tokens leave the window; None: the window has fewer."""
        buckets = self._buckets
        for at in range(0, len(buckets), 3):
            requests -= buckets[at + 1]
            tokens -= buckets[at + 2]
            if requests <= 0 and tokens <= 0:
                return buckets[at] + BUCKET_S - now
        return None

    def requests_reset_s(self, now: float) -> float:
        """Seconds until the window has no requests."""
        return self._reset_s(1, now)

    def tokens_reset_s(self, now: float) -> float:
        """Seconds until the window has no tokens."""
        return self._reset_s(2, now)

    def packed(self) -> bytes:
        """The buckets for storage on this machine only: 64-bit integers in native byte order."""
        return self._buckets.tobytes()

    def _reset_s(self, column: int, now: float) -> float:
        buckets = self._buckets
        for at in range(len(buckets) - 3, -1, -3):
            if buckets[at + column]:
                return buckets[at] + BUCKET_S - now
        return 0.0
