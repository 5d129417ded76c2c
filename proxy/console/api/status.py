"""The signed-in caller, the state of budgets, and the audit log."""

from __future__ import annotations

import heapq
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Engine

from proxy.billing.limits import scope_of
from proxy.billing.money import usd_text
from proxy.billing.reservation import CounterState
from proxy.budgets.budget_state import BudgetState
from proxy.budgets.thresholds import RULE
from proxy.console.api.dimensions import DimensionValue, dimensions_shown
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint
from proxy.console.api.schemas.exchanges import CURSOR, Name
from proxy.console.api.usage import Time
from proxy.foundation.times import iso_utc
from proxy.ledger.accounts.audit_log import AuditEntry, AuditFilter, AuditLog
from proxy.reports.budget_states import read_budget_states
from proxy.reports.dimensions import ShownDimension, ValueReader
from proxy.settings.operators import OperatorRole
from proxy.storage.executor import BoundedExecutor

AUDIT_DEFAULT, AUDIT_MAX = 50, 500
# A rule may have a counter for each of a million end users.
RULES_SHOWN_MAX = 500


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of the request."""

    role: Literal["operator", "key"]
    name: str | None = None
    """the operator's name in the audit log; None: the caller is a key"""
    may: OperatorRole | None = None
    """the operator's role, which limits the allowed routes"""
    key_id: str | None
    key_alias: str | None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One budget in its window. Money: decimal strings of USD."""

    scope_id: str
    scope_kind: str
    name: str
    dimensions: dict[str, DimensionValue]
    """what all requests of the budget share; empty except for a limit by rule"""
    window: str
    """the window of the limit; `credit`: a prepaid balance without a window"""
    window_start: str | None
    window_end: str | None
    budget_usd: str
    spent_usd: str
    """spend by usage date: charges of exchanges that began in the window, corrections included"""
    held_usd: str
    """reserved by running exchanges"""
    used_ratio: float
    """spent part of the budget; 0.5 is 50 %"""
    running: int


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """The budgets that at least one request has used."""

    object: Literal["list"] = "list"
    listed: list[Budget] = msgspec.field(name="data")


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


async def me(call: ApiCall) -> ApiReply:
    """The caller."""
    key, operator = call.session.key, call.session.operator
    if operator is not None:
        return ApiReply(Me(role="operator", name=operator.name, may=operator.role, key_id=None, key_alias=None))
    assert key is not None
    return ApiReply(Me(role="key", key_id=key.key_id, key_alias=key.alias))


@dataclass(frozen=True, slots=True)
class StatusApi:
    """The routes `/v1/me`, `/v1/budgets` and `/v1/audit`."""

    threads: BoundedExecutor
    audit_log: AuditLog
    engine: Engine
    counter_states: Callable[[], Awaitable[Sequence[CounterState]]]
    """the states of all limit counters; raises OSError"""
    values: ValueReader

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield Endpoint(method="GET", path="/v1/me", summary="The signed-in caller.", serve=me, answers={200: Me})
        yield Endpoint(
            method="GET", path="/v1/budgets", summary="Spent and reserved amounts of each budget.",
            serve=self.budgets, answers={200: Budgets},
        )  # fmt: skip
        yield Endpoint(
            method="GET", path="/v1/audit", summary="The audit log, newest first.",
            serve=self.audit, query=AuditQuery, answers={200: AuditPage}, role=OperatorRole.READ,
        )  # fmt: skip

    async def budgets(self, call: ApiCall) -> ApiReply:
        """The budgets that the caller may see. Raises OSError."""
        counters = [one for one in await self.counter_states() if call.session.may_see(scope_of(one.counter_id))]
        own = None if call.session.key is None else [call.session.key.key_id]
        found = await self.threads.run(read_budget_states, self.engine, counters, time.time(), own)
        shown = _bounded(found)
        ids = {value_id for one in shown for value_id in one.subject.dimensions.values()}
        values = await self.threads.run(self.values.shown, ids) if ids else {}
        return ApiReply(Budgets(listed=[_shown(one, values) for one in shown]))

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


def _bounded(states: Sequence[BudgetState]) -> list[BudgetState]:
    """All budgets of keys and accounts, and the RULES_SHOWN_MAX fullest ones of rules."""
    of_rules = [one for one in states if one.subject.kind == RULE]
    fullest = heapq.nlargest(RULES_SHOWN_MAX, of_rules, key=lambda one: one.used_ratio)
    return [*(one for one in states if one.subject.kind != RULE), *fullest]


def _shown(state: BudgetState, values: Mapping[str, ShownDimension]) -> Budget:
    """`values`: by value id."""
    return Budget(
        scope_id=state.subject.scope_id,
        scope_kind=state.subject.kind,
        name=state.subject.name,
        dimensions=dimensions_shown(state.subject.dimensions, values),
        window=state.window,
        window_start=iso_utc(state.since) if state.since else None,
        window_end=None if state.until is None else iso_utc(state.until),
        budget_usd=usd_text(state.limit_nusd),
        spent_usd=usd_text(state.spent_nusd),
        held_usd=usd_text(state.reserved_nusd),
        used_ratio=state.used_ratio,
        running=state.running,
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
