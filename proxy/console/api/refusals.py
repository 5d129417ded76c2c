"""The requests that the proxy itself refused recently, which leave no entry in the ledger.

Invariant: a key sees its own refusals only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint
from proxy.console.api.schemas.exchanges import LIMIT_DEFAULT, LIMIT_MAX, Name
from proxy.console.api.usage import Time
from proxy.console.ledger_reports import LedgerReports
from proxy.foundation.times import iso_utc
from proxy.http.refused_requests import RefusedRequest
from proxy.ledger.accounts.owners import Owner


class RefusalsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters, combined with AND. Times: Unix seconds."""

    q: Name | UnsetType = UNSET
    """the id that the client got in the header `x-request-id`, or a part of the key's alias, of the model's name or of
    the limit's name; in any case"""
    key_id: Name | UnsetType = UNSET
    project_id: Name | UnsetType = UNSET
    organization_id: Name | UnsetType = UNSET
    model: Name | UnsetType = UNSET
    status: Annotated[int, Meta(ge=400, le=599)] | UnsetType = UNSET
    code: Name | UnsetType = UNSET
    start_time: Time | UnsetType = UNSET
    end_time: Time | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT
    after: Name | UnsetType = UNSET
    """the id of the last refusal that is already listed"""


class RefusalLine(msgspec.Struct, frozen=True, kw_only=True):
    """A refused request. It has no entry in the ledger, and costs nothing."""

    object: Literal["refusal"] = "refusal"
    id: str
    """the client got it in the header `x-request-id`"""
    at: str
    status: int
    code: str | None
    type: str
    message: str
    """the message that the client got"""
    limit: str | None
    """the level or the limit by rule that was reached"""
    key_id: str | None
    """null: the request had no valid key"""
    key_alias: str | None
    project_id: str | None
    project: str | None
    organization_id: str | None
    organization: str | None
    endpoint: str | None
    model: str | None


class RefusalPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of refusals, newest first. At most 2,000 of each process are kept, 200 of each key, and of an organization
    with more than an equal share only until others need the place; all until the process ends."""

    object: Literal["list"] = "list"
    listed: list[RefusalLine] = msgspec.field(name="data")
    has_more: bool
    next_after: str | None


@dataclass(frozen=True, slots=True)
class RefusalsApi:
    """The route `/v1/refusals`."""

    latest: Callable[[], Awaitable[Sequence[RefusedRequest]]]
    """the newest first"""
    reports: LedgerReports

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoint of this API."""
        yield Endpoint(
            method="GET", path="/v1/refusals", summary="Requests that the proxy itself refused recently.",
            serve=self.listed, query=RefusalsQuery, answers={200: RefusalPage},
        )  # fmt: skip

    async def listed(self, call: ApiCall) -> ApiReply:
        """A page of refusals. Raises OSError."""
        query: RefusalsQuery = call.query
        session = call.session
        visible = [
            one
            for one in await self.latest()
            if session.key is None or (one.key_id is not None and session.may_see(one.key_id))
        ]
        owners = await self.reports.owners(one.key_id for one in visible if one.key_id is not None)
        found = [one for one in visible if _matches(one, query, owners)]
        page, more = found[: query.limit], len(found) > query.limit
        return ApiReply(
            RefusalPage(
                listed=[_line(one, owners.get(one.key_id or "")) for one in page],
                has_more=more,
                next_after=page[-1].id if more else None,
            )
        )


def _matches(one: RefusedRequest, query: RefusalsQuery, owners: Mapping[str, Owner]) -> bool:
    owner = owners.get(one.key_id or "")
    given = (
        (query.key_id, one.key_id),
        (query.project_id, owner and owner.project_id),
        (query.organization_id, owner and owner.organization_id),
        (query.model, one.model),
        (query.status, one.status),
        (query.code, one.code),
    )
    if any(wanted is not UNSET and wanted != value for wanted, value in given):
        return False
    if query.start_time is not UNSET and one.at < query.start_time:
        return False
    if query.end_time is not UNSET and one.at >= query.end_time:
        return False
    if query.after is not UNSET and one.id >= query.after:
        return False
    if query.q is UNSET or query.q == one.id:
        return True
    text = query.q.lower()
    return any(text in part.lower() for part in (one.key_alias, one.model, one.limit) if part is not None)


def _line(one: RefusedRequest, owner: Owner | None) -> RefusalLine:
    return RefusalLine(
        id=one.id,
        at=iso_utc(one.at),
        status=one.status,
        code=one.code,
        type=one.kind,
        message=one.message,
        limit=one.limit,
        key_id=one.key_id,
        key_alias=one.key_alias,
        project_id=None if owner is None else owner.project_id,
        project=None if owner is None else owner.project,
        organization_id=None if owner is None else owner.organization_id,
        organization=None if owner is None else owner.organization,
        endpoint=one.endpoint,
        model=one.model,
    )
