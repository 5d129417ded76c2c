"""Bounds request bodies that are still arriving: of each key in number, and of all keys together in bytes.

Admission needs a request's body, so its limits can only count requests that have one. Until then these bounds hold: a
key uploads no more bodies at once than it may run requests, and all bodies together have a maximum. A body that is
complete when its request is read (at most some 64 KiB) is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from proxy.billing.limits import Scope
from proxy.billing.reservation import DenialReason, Denied
from proxy.gateway.exchange.rate_limits import refusal
from proxy.http import errors

# Four bodies of the default `request_bytes_max`; a small machine has four times as much memory.
ALL_BYTES_MAX = 256 * 1024 * 1024


class Uploads:
    """The bodies that are arriving in this process. `bytes_max`: of all of them, and never less than one body."""

    def __init__(self, *, body_bytes_max: int, bytes_max: int = ALL_BYTES_MAX) -> None:
        self._bytes_left = max(bytes_max, body_bytes_max)
        self._running: Counter[str] = Counter()

    @contextmanager
    def upload(self, key_id: str, scopes: Sequence[Scope]) -> Iterator[Callable[[int], None]]:
        """One body, until it has arrived. Yields a function to be called with the size of each piece; it raises
        ApiError 503 if there is too much of all. Raises ApiError 429: the key has too many."""
        limits = [scope.limits.parallel for scope in scopes if scope.limits.parallel is not None]
        if limits and self._running[key_id] >= min(limits):
            raise refusal(Denied(DenialReason.PARALLEL, "", None, ()), (), exceeded_status=429)
        self._running[key_id] += 1
        size = 0

        def grew(piece: int) -> None:
            nonlocal size
            if piece > self._bytes_left:
                raise errors.overloaded(
                    "Too many request bodies are arriving. Please try again later.", code="not_accepting"
                )
            size += piece
            self._bytes_left -= piece

        try:
            yield grew
        finally:
            self._bytes_left += size
            self._running[key_id] -= 1
            if not self._running[key_id]:
                del self._running[key_id]
