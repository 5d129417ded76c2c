"""Limits request bodies: the number of those that are still arriving, for each key; the bytes of all in memory.

Admission needs a request's body, so its limits count only requests whose body has arrived. Until then, a key may upload
as many bodies at once as it may run requests. Invariant: a body counts from its first byte until a provider has
accepted the request, or the exchange has ended: until then it may be sent again. A body that is complete when its
request is read (at most some 64 KiB) is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from proxy.billing.limits import Scope
from proxy.gateway.exchange.refusals import too_many_at_once
from proxy.http import errors

# Eight bodies of the default `request_bytes_max`, or a thousand of 200,000 tokens. Each is in memory twice, as a
# document and as the bytes of the upstream request: together half of the memory limit in the Helm chart.
ALL_BYTES_MAX = 512 * 1024 * 1024


class Uploads:
    """The bodies in this process. `bytes_max`: the limit of all together, at least that of one body."""

    def __init__(self, *, body_bytes_max: int, bytes_max: int = ALL_BYTES_MAX) -> None:
        self.bytes_left = max(bytes_max, body_bytes_max)
        self.arriving: Counter[str] = Counter()
        """key id → bodies that are arriving"""

    def begin(self, key_id: str, scopes: Sequence[Scope]) -> Upload:
        """Count a body that begins to arrive. Raises ApiError 429 if the key has too many."""
        limits = [scope.limits.parallel for scope in scopes if scope.limits.parallel is not None]
        if limits and self.arriving[key_id] >= min(limits):
            message = f"{min(limits)} request bodies of this key are arriving: it may run no more requests at once."
            raise too_many_at_once(f"{message} Please try again later.")
        self.arriving[key_id] += 1
        return Upload(self, key_id)

    def take(self, size: int) -> bool:
        """Count bytes that come into memory, of a body or of a WebSocket message. False: the limit is reached."""
        if size > self.bytes_left:
            return False
        self.bytes_left -= size
        return True

    def give_back(self, size: int) -> None:
        """Count bytes that left memory."""
        self.bytes_left += size


class Upload:
    """One body. Call `grew` while it arrives, then `arrived`, and in any case `free` when it has left memory."""

    __slots__ = ("_arriving", "_key_id", "_size", "_uploads")

    def __init__(self, uploads: Uploads, key_id: str) -> None:
        self._uploads = uploads
        self._key_id = key_id
        self._arriving = True
        self._size = 0

    def grew(self, piece: int) -> None:
        """Count arrived bytes. Raises ApiError 503 if the limit is reached."""
        if not self._uploads.take(piece):
            raise errors.overloaded("Too many large requests at once. Please try again later.", code="not_accepting")
        self._size += piece

    def arrived(self) -> None:
        """The body is complete: the key may upload another one."""
        if self._arriving:
            self._arriving = False
            arriving = self._uploads.arriving
            arriving[self._key_id] -= 1
            if not arriving[self._key_id]:
                del arriving[self._key_id]

    def free(self) -> None:
        """Release the body's bytes. Idempotent."""
        self.arrived()
        self._uploads.give_back(self._size)
        self._size = 0
