"""The signed-in caller, and the audit log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint
from proxy.console.api.schemas.exchanges import CURSOR, Name
from proxy.console.api.usage import Time
from proxy.foundation.times import iso_utc
from proxy.ledger.accounts.audit_log import AuditEntry, AuditFilter, AuditLog
from proxy.settings.operators import OperatorRole
from proxy.storage.executor import BoundedExecutor

AUDIT_DEFAULT, AUDIT_MAX = 50, 500


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of the request."""

    role: Literal["operator", "key"]
    name: str | None = None
    """the operator's name in the audit log; None: the caller is a key"""
    may: OperatorRole | None = None
    """the operator's role, which limits the allowed routes"""
    key_id: str | None
    key_alias: str | None
    may_rotate: bool = False
    """true for a key if its holder may replace its secret"""


class AuditQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters (combined with AND), page size and cursor. Times: Unix seconds."""

    q: Name | UnsetType = UNSET
    """a part of the actor, the action or the target, in any case"""
    actor: Name | UnsetType = UNSET
    action: Name | UnsetType = UNSET
    """`key.block`; or its first part, `key`"""
    target: Name | UnsetType = UNSET
    result: Literal["begun", "done", "refused", "failed"] | UnsetType = UNSET
    start_time: Time | UnsetType = UNSET
    end_time: Time | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=AUDIT_MAX)] = AUDIT_DEFAULT
    after: Annotated[str, Meta(pattern="^[0-9]{17}-[0-9a-f]{16}$", description=CURSOR)] | UnsetType = UNSET


class AuditEntryShown(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the audit log."""

    id: str
    at: str
    actor: str
    via: str
    origin: str | None
    action: str
    target: str | None
    details: dict[str, Any] | None
    result: str
    """begun, done, refused or failed; an old `begun` means that the result is unknown"""
    message: str | None


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the audit log, newest first."""

    object: Literal["list"] = "list"
    listed: list[AuditEntryShown] = msgspec.field(name="data")
    has_more: bool
    next_after: str | None


async def me(call: ApiCall, *, allows_rotation: Callable[[], bool]) -> ApiReply:
    """The caller. `allows_rotation`: the setting `key_rotation`."""
    key, operator = call.session.key, call.session.operator
    if operator is not None:
        return ApiReply(Me(role="operator", name=operator.name, may=operator.role, key_id=None, key_alias=None))
    assert key is not None
    return ApiReply(Me(role="key", key_id=key.key_id, key_alias=key.alias, may_rotate=allows_rotation()))


@dataclass(frozen=True, slots=True)
class StatusApi:
    """The routes `/v1/me` and `/v1/audit`."""

    threads: BoundedExecutor
    audit_log: AuditLog
    allows_rotation: Callable[[], bool]

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield Endpoint(
            method="GET", path="/v1/me", summary="The signed-in caller.",
            serve=partial(me, allows_rotation=self.allows_rotation), answers={200: Me},
        )  # fmt: skip
        yield Endpoint(
            method="GET", path="/v1/audit", summary="The audit log, newest first.",
            serve=self.audit, query=AuditQuery, answers={200: AuditPage}, role=OperatorRole.READ,
        )  # fmt: skip

    async def audit(self, call: ApiCall) -> ApiReply:
        """A page of the audit log. Raises OSError."""
        query: AuditQuery = call.query
        before = None if query.after is UNSET else query.after
        given = {
            "text": query.q, "actor": query.actor, "action": query.action, "target": query.target,
            "result": query.result, "since": query.start_time, "until": query.end_time,
        }  # fmt: skip
        wanted: Any = {name: value for name, value in given.items() if value is not UNSET}
        found = await self.threads.run(self.audit_log.latest, query.limit + 1, before, AuditFilter(**wanted))
        page, more = found[: query.limit], len(found) > query.limit
        return ApiReply(
            AuditPage(
                listed=[_act(one) for one in page],
                has_more=more,
                next_after=page[-1].act_id if more else None,
            )
        )


def _act(line: AuditEntry) -> AuditEntryShown:
    return AuditEntryShown(
        id=line.act_id,
        at=iso_utc(line.at),
        actor=line.actor,
        via=line.via,
        origin=line.origin,
        action=line.action,
        target=line.target,
        details=None if line.details is None else dict(line.details),
        result=line.result,
        message=line.words,
    )
