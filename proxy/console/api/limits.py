"""Limits by rule; uses the same functions as `tokenweir limits`.

Invariants: those of accounts.py; the audit log contains no value of a dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.billing.dimensions import END_USER, dimension, hashed, value_of
from proxy.billing.keys import Account, ApiKey
from proxy.billing.limit_rules import RULE_ID, LimitRule
from proxy.billing.limits import QUOTA_MAX, Measure
from proxy.console.api.audited_operations import AuditedOperations, checked
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint, operation
from proxy.console.api.keys import PAGE_DEFAULT, PAGE_MAX
from proxy.console.api.schemas.keys import (
    BoundFields,
    BoundsShown,
    Models,
    Text,
    bounds_shown,
    changes,
    made_limits,
)
from proxy.foundation.ids import new_id
from proxy.foundation.times import iso_utc
from proxy.http.errors import bad_request
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.audit_log import PendingEntry
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.dimensions.values import DimensionValues
from proxy.ledger.limit_list import LimitKind, LimitList, ListedLimit
from proxy.ledger.limit_rules import RuleStore
from proxy.settings.operators import OperatorRole
from proxy.storage.executor import BoundedExecutor

Dimensions = Annotated[tuple[Text, ...], Meta(max_length=8)]
Values = Annotated[dict[str, Annotated[str, Meta(min_length=1, max_length=1_024)]], Meta(max_length=8)]


Quotas = dict[Measure, Annotated[int, Meta(ge=1, le=QUOTA_MAX)]]


class NewLimit(BoundFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new limit: for each value of some dimensions, or for a part of the requests."""

    name: Text
    key: Text | UnsetType = UNSET
    """only requests of this key: its id or alias"""
    account: Text | UnsetType = UNSET
    """only requests of this project or organization: its id or name"""
    models: Models | UnsetType | None = UNSET
    """only requests for these models, or models that begin so (`gpt-4*`); an empty list or null: all"""
    providers: Models = ()
    """only requests that one of these providers of the configuration serves count; a budget then needs a
    `budget_duration` of at most a day"""
    split_by: Dimensions = ()
    """each value has its own limits: `end_user`, `session`, `run`, `tag:NAME`"""
    only: Values = msgspec.field(default_factory=dict)
    """only requests with these values: dimension → value; needs a `key` or a project"""
    required: bool = False
    """refuse requests that lack a dimension of `split_by`"""
    quotas: Quotas = msgspec.field(default_factory=dict)
    """the maximum of `requests`, `input_tokens`, `output_tokens`, `tokens` in each window of the budget"""
    alert_only: bool = False
    """the budget sends alerts, but refuses no request"""
    fallback_model: Text | None = None
    """the model that answers a request instead, if this limit refuses it; not one of `models`"""


class ChangedLimit(BoundFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of an existing limit."""

    limit: Text
    """the limit's id or name"""
    name: Text | UnsetType = UNSET
    models: Models | UnsetType | None = UNSET
    required: bool | UnsetType = UNSET
    quotas: Quotas | UnsetType = UNSET
    """new amounts of the limit's quotas"""
    alert_only: bool | UnsetType = UNSET
    fallback_model: Text | UnsetType | None = UNSET


class NamedLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a limit."""

    limit: Text


class LimitsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The listed limits; by default all limits by rule."""

    all: bool = False
    """also those of keys, projects and organizations themselves, in pages"""
    key: Text | UnsetType = UNSET
    """only those that requests of this key (its id or alias) can count against"""
    page: Annotated[int, Meta(ge=1, le=100_000)] = 1
    size: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT


class LimitInfo(BoundsShown, frozen=True, kw_only=True):
    """A limit."""

    id: str
    kind: LimitKind
    """`rule`; the limits of a `key`, a `project` or an `organization` are changed with `/key/update` or
    `/account/update`"""
    name: str
    scope_id: str | None
    """id of a key or an account; null: all requests"""
    models: list[str]
    """empty: all models"""
    providers: list[str]
    """empty: all providers"""
    only: dict[str, str]
    """dimension → value; the value id of an erased one"""
    split_by: list[str]
    required: bool
    quotas: dict[str, int]
    alert_only: bool
    prepaid: bool
    """spending is limited to the top-ups of the key or account"""
    fallback_model: str | None
    created_at: str


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits by rule, oldest first; then those of accounts and keys."""

    limits: list[LimitInfo]
    total_count: int


@dataclass(frozen=True, slots=True)
class LimitsApi:
    """The routes `/limit/*`."""

    rules: RuleStore
    keys: KeyStore
    accounts: AccountStore
    limits: LimitList
    values: DimensionValues
    operations: AuditedOperations
    threads: BoundedExecutor
    pepper: bytes | None
    """the pepper for values of end users; None: these are not hashed"""

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield operation(
            "/limit/new", "Limit each end user, session, run or tag, or a part of the requests.", self.new, NewLimit,
            LimitInfo,
        )  # fmt: skip
        yield operation("/limit/update", "Change a limit.", self.update, ChangedLimit, LimitInfo)
        yield operation("/limit/delete", "Limit no new request by it.", self.delete, NamedLimit, LimitInfo)
        yield Endpoint(
            method="GET", path="/limit/list", summary="All limits by rule, or all limits.", serve=self.listed,
            query=LimitsQuery, answers={200: Limits}, role=OperatorRole.READ,
        )  # fmt: skip

    async def new(self, call: ApiCall) -> ApiReply:
        """Create a limit. Raises ApiError, OSError."""
        body: NewLimit = call.body
        if body.key is not UNSET and body.account is not UNSET:
            raise bad_request("Give 'key' or 'account', not both.", param="key", code="invalid_value")
        fields = checked("max_budget", changes, body)
        fields.pop("name", None)
        fields |= {"quotas": body.quotas, "alert_only": body.alert_only}
        models, limits = fields.pop("models", None) or (), made_limits(fields)
        only = {checked("only", _dimension, name): checked("only", _value, value) for name, value in body.only.items()}
        split_by = [checked("split_by", _dimension, name) for name in body.split_by]
        key = None if body.key is UNSET else await self.operations.key_named(body.key)

        def work(act: PendingEntry) -> LimitRule:
            scope = None if key is None else self.keys.one(key)
            account = None if body.account is UNSET else self.accounts.one(body.account)
            rule = self.rules.create(
                rule_id=new_id(RULE_ID), name=body.name, limits=limits, models=models, split_by=split_by,
                providers=body.providers,
                scope_id=_id_of(scope or account), values=self._value_ids(only, _project_of(scope or account)),
                required=body.required, fallback_model=body.fallback_model,
            )  # fmt: skip
            act.target = rule.rule_id
            return rule

        noted = {**msgspec.to_builtins(body), "only": dict.fromkeys(only, "…")}
        rule = await self.operations.run(call, "limit.create", body.name, noted, work)
        return ApiReply((await self._shown([ListedLimit.of_rule(rule)]))[0])

    async def update(self, call: ApiCall) -> ApiReply:
        """Change a limit. Raises ApiError, OSError."""
        body: ChangedLimit = call.body
        fields = checked("max_budget", changes, body)
        if "models" in fields:
            fields["models"] = tuple(fields["models"] or ())
        for name in ("required", "fallback_model", "quotas", "alert_only"):
            if (value := getattr(body, name)) is not UNSET:
                fields[name] = value
        done = await self.operations.run(
            call, "limit.update", body.limit, body, lambda _act: self.rules.update(body.limit, **fields)
        )
        return ApiReply((await self._shown([ListedLimit.of_rule(done)]))[0])

    async def delete(self, call: ApiCall) -> ApiReply:
        """Delete a limit: it no longer applies to new requests. Raises ApiError, OSError."""
        named: str = call.body.limit
        done = await self.operations.run(call, "limit.delete", named, call.body, lambda _act: self.rules.delete(named))
        return ApiReply((await self._shown([ListedLimit.of_rule(done)]))[0])

    async def listed(self, call: ApiCall) -> ApiReply:
        """The limits of the query. Raises ApiError, OSError."""
        query: LimitsQuery = call.query
        if query.key is not UNSET:
            named = query.key
            found = await self.operations.call_store(lambda: self.limits.of_key(self.keys.one(named)))
            total = len(found)
        elif query.all:
            first = (query.page - 1) * query.size
            found, total = await self.threads.run(self.limits.page, first, query.size)
        else:
            found = await self.threads.run(self.limits.of_rules)
            total = len(found)
        return ApiReply(Limits(limits=await self._shown(found), total_count=total))

    def _value_ids(self, values: Mapping[str, str], project_id: str | None) -> dict[str, str]:
        if values and project_id is None:
            raise ValueError("only: needs a key or a project: a value belongs to one project")
        stored = {
            name: hashed(value, self.pepper) if name == END_USER and self.pepper is not None else value
            for name, value in values.items()
        }
        return self.values.ids_of(project_id or "", stored)

    async def _shown(self, found: Sequence[ListedLimit]) -> list[LimitInfo]:
        ids = {value_id for one in found for value_id in one.rule.values.values()}
        names = await self.threads.run(self.values.names, ids) if ids else {}
        return [
            LimitInfo(
                **bounds_shown(rule.limits),
                id=rule.rule_id,
                kind=kind,
                name=rule.name,
                scope_id=rule.scope_id,
                models=list(rule.models),
                providers=list(rule.providers),
                only={name: names.get(value_id, value_id) for name, value_id in rule.values.items()},
                split_by=list(rule.split_by),
                required=rule.required,
                quotas={measure.value: most for measure, most in rule.limits.quotas.items()},
                alert_only=rule.limits.alert_only,
                prepaid=rule.limits.prepaid,
                fallback_model=rule.fallback_model,
                created_at=iso_utc(rule.created_at),
            )
            for kind, _, rule in found
        ]


def _dimension(text: str) -> str:
    found = dimension(text)
    if found is None:
        raise ValueError(f"{text!r} is no dimension: end_user, session, run, or a tag as tag:team")
    return found


def _value(text: str) -> str:
    found = value_of(text)
    if found is None:
        raise ValueError("a value is empty, or has characters that cannot be printed")
    return found


def _id_of(scope: ApiKey | Account | None) -> str | None:
    if scope is None:
        return None
    return scope.key_id if isinstance(scope, ApiKey) else scope.account_id


def _project_of(scope: ApiKey | Account | None) -> str | None:
    """The project that all requests of the scope belong to."""
    if isinstance(scope, ApiKey):
        return scope.project_id
    return None if scope is None or scope.parent_id is None else scope.account_id
