"""The latest requests that the proxy itself refused, of one process, in memory.

Invariants: at most KEPT_MAX refusals are kept, at most OF_KEY_MAX of one key, so that a client that repeats its request
displaces no other key's. None has a part of a body or a secret: a model's name is all that comes from the client.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable

import msgspec

from proxy.foundation.ids import exchange_id
from proxy.foundation.secret import masked
from proxy.http.errors import ApiError

# 0.5 kB each.
KEPT_MAX = 2_000
OF_KEY_MAX = 200
_TEXT_CHARS_MAX = 500

REQUEST_ID = "x-request-id"
"""the header that SDKs show with an error; in an answer of the proxy itself, the id of the refusal"""


class RefusedRequest(msgspec.Struct, frozen=True):
    """A refusal."""

    id: str
    """a UUIDv7, which the client got in the header `x-request-id`"""
    at: float
    """Unix seconds"""
    status: int
    """HTTP status"""
    code: str | None
    kind: str
    """`type` of the error"""
    message: str
    """the message that the client got"""
    key_id: str | None
    """None: the request had no key that is known"""
    key_alias: str | None
    endpoint: str | None
    model: str | None
    limit: str | None
    """the level or the rule whose limit is reached, as in the message"""


class RefusalLog:
    """The refusals of this process."""

    def __init__(self, *, unix_time: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._kept: OrderedDict[str, RefusedRequest] = OrderedDict()
        self._of_key: defaultdict[str | None, deque[str]] = defaultdict(deque)

    def note(self, refusal: ApiError) -> str:
        """Keep it. Returns its id."""
        about = refusal.about
        assert about is not None, "only refusals of requests to models are kept"
        at = self._unix_time()
        one = RefusedRequest(
            id=exchange_id(),
            at=at,
            status=refusal.status,
            code=refusal.code,
            kind=refusal.kind,
            message=masked(refusal.message[:_TEXT_CHARS_MAX]),
            key_id=about.key_id,
            key_alias=about.key_alias,
            endpoint=about.endpoint,
            model=None if about.model is None else masked(about.model[:_TEXT_CHARS_MAX]),
            limit=refusal.limit,
        )
        self._kept[one.id] = one
        of_key = self._of_key[one.key_id]
        of_key.append(one.id)
        if len(of_key) > OF_KEY_MAX:
            del self._kept[of_key.popleft()]
        elif len(self._kept) > KEPT_MAX:
            self._drop_oldest()
        return one.id

    def latest(self) -> list[RefusedRequest]:
        """All that are kept, the oldest first."""
        return list(self._kept.values())

    def _drop_oldest(self) -> None:
        _, oldest = self._kept.popitem(last=False)
        of_key = self._of_key[oldest.key_id]
        of_key.popleft()
        if not of_key:
            del self._of_key[oldest.key_id]
