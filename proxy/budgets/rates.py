"""Requests and tokens of the last 60 s, for one gate. Pure: time is given, as Unix seconds.

Law: never more than the bound in any 60 s, wherever they begin; and what was counted is free again within 61 s. Counts
are kept in buckets of one second, and a bucket counts until all of it is older than the window.
"""

from __future__ import annotations

from array import array
from itertools import chain

from proxy.billing.reservation import RATE_WINDOW_S

# From the beginning of a bucket until the last of it is older than the window.
BUCKET_S = RATE_WINDOW_S + 1


class Window:
    """The buckets of one gate, oldest first: the second it began, requests, tokens."""

    __slots__ = ("_buckets",)

    def __init__(self, kept: bytes | None, now: float) -> None:
        """`kept`: what `packed` gave; of it, what still counts at `now`.

        A clock that was put back leaves buckets in the future. They count, but for no longer than two windows.
        """
        buckets = array("q", kept or b"")
        second = int(now)
        oldest, newest = second - RATE_WINDOW_S, second + RATE_WINDOW_S
        if buckets and not oldest <= buckets[0] <= buckets[-3] <= newest:
            triples = zip(buckets[0::3], buckets[1::3], buckets[2::3], strict=True)
            buckets = array("q", chain.from_iterable(one for one in triples if oldest <= one[0] <= newest))
        self._buckets = buckets

    @property
    def requests(self) -> int:
        """How many count."""
        return sum(self._buckets[1::3])

    @property
    def tokens(self) -> int:
        """How many count."""
        return sum(self._buckets[2::3])

    def add(self, second: int, requests: int, tokens: int) -> None:
        """Count these in the bucket of `second`. Either may be negative: a correction, never to below 0."""
        buckets = self._buckets
        at = len(buckets)
        while at and buckets[at - 3] > second:
            at -= 3
        if at and buckets[at - 3] == second:
            buckets[at - 2] = max(0, buckets[at - 2] + requests)
            buckets[at - 1] = max(0, buckets[at - 1] + tokens)
        elif requests > 0:
            buckets[at:at] = array("q", (second, requests, max(0, tokens)))

    def correct(self, second: int, tokens: int) -> None:
        """So many tokens more, or fewer, in that bucket, if it is still there."""
        self.add(second, 0, tokens)

    def wait_s(self, *, requests: int = 0, tokens: int = 0, now: float) -> float | None:
        """Until so many of those that count do so no longer; seconds > 0. None: there are not so many."""
        buckets = self._buckets
        for at in range(0, len(buckets), 3):
            requests -= buckets[at + 1]
            tokens -= buckets[at + 2]
            if requests <= 0 and tokens <= 0:
                return buckets[at] + BUCKET_S - now
        return None

    def requests_reset_s(self, now: float) -> float:
        """Until no request counts any more."""
        return self._reset_s(1, now)

    def tokens_reset_s(self, now: float) -> float:
        """Until no token does."""
        return self._reset_s(2, now)

    def packed(self) -> bytes:
        """To be kept, on this machine: its words are in the order of the machine's own bytes."""
        return self._buckets.tobytes()

    def _reset_s(self, column: int, now: float) -> float:
        buckets = self._buckets
        for at in range(len(buckets) - 3, -1, -3):
            if buckets[at + column]:
                return buckets[at] + BUCKET_S - now
        return 0.0
