"""The latest requests that the proxy itself refused, of one process, in memory.

Invariants: at most KEPT_MAX refusals are kept, at most OF_KEY_MAX of one key, so that a client that repeats its request
displaces no other key's. A new refusal displaces the oldest of an organization that has at least the average number: an
organization with many keys displaces those of others only down to an equal share. None has a part of a body or a
secret: a model's name is all that comes from the client.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import NamedTuple

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


class _Kept(NamedTuple):
    """A refusal with its owner."""

    one: RefusedRequest
    organization_id: str | None
    """None: the request had no key that is known"""


class RefusalLog:
    """The refusals of this process."""

    def __init__(
        self, *, unix_time: Callable[[], float], organization_of: Callable[[str], str | None] = lambda _key_id: None
    ) -> None:
        """`organization_of`: key id → organization id; None: unknown."""
        self._unix_time = unix_time
        self._organization_of = organization_of
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        # The ids of the refusals of each key and organization, the oldest first; none is empty.
        self._of_key: defaultdict[str | None, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._of_organization: defaultdict[str | None, OrderedDict[str, None]] = defaultdict(OrderedDict)

    def note(self, refusal: ApiError) -> str:
        """Keep it. Returns its id."""
        about = refusal.about
        assert about is not None, "only refusals of requests to models are kept"
        one = RefusedRequest(
            id=exchange_id(),
            at=self._unix_time(),
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
        organization_id = None if one.key_id is None else self._organization_of(one.key_id)
        self._kept[one.id] = _Kept(one, organization_id)
        self._of_key[one.key_id][one.id] = None
        self._of_organization[organization_id][one.id] = None
        if len(self._of_key[one.key_id]) > OF_KEY_MAX:
            self._drop_oldest(self._of_key[one.key_id])
        elif len(self._kept) > KEPT_MAX:
            self._drop_oldest(self._longest(organization_id))
        return one.id

    def latest(self) -> list[RefusedRequest]:
        """All that are kept, the oldest first."""
        return [one for one, _ in self._kept.values()]

    def _longest(self, organization_id: str | None) -> OrderedDict[str, None]:
        """The refusals of this organization, if it has at least the average number, or else of the one with the
        most."""
        own = self._of_organization[organization_id]
        if len(own) * len(self._of_organization) >= len(self._kept):
            return own  # so that an organization that repeats its requests costs no search
        return max(self._of_organization.values(), key=len)

    def _drop_oldest(self, ids: OrderedDict[str, None]) -> None:
        dropped = next(iter(ids))
        one, organization_id = self._kept.pop(dropped)
        for kept, owner in ((self._of_key, one.key_id), (self._of_organization, organization_id)):
            del kept[owner][dropped]
            if not kept[owner]:
                del kept[owner]
