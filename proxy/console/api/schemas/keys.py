"""Request and answer types of keys, with the field names of LiteLLM's `/key/*`.

Invariant: a field has LiteLLM's meaning, or it does not exist here.

A team is a project. As in LiteLLM, `max_budget` without `budget_duration` is a lifetime budget.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.billing.byok import terms_of, terms_text
from proxy.billing.dimensions import PRESETS, KeyDimensions
from proxy.billing.keys import Account, ApiKey, expires_at_from
from proxy.billing.limits import (
    BUDGET_NUSD_MAX,
    THRESHOLD_MAX,
    THRESHOLDS_MAX,
    Limits,
    OnExhausted,
    OnStoreOutage,
    Raise,
)
from proxy.billing.money import NUSD_PER_USD, Nusd, nusd_from_usd, usd_text
from proxy.billing.reservation import CounterState
from proxy.billing.windows import LIFETIME
from proxy.budgets.budget_state import BudgetState
from proxy.console.api.endpoints import usd_number
from proxy.foundation.times import iso_utc
from proxy.ledger.limits import LIMITS
from proxy.reports.key_list import KeyStatus
from proxy.reports.totals import SpendAndCredit

Text = Annotated[str, Meta(min_length=1, max_length=128)]
Usd = Annotated[float, Meta(ge=0, le=BUDGET_NUSD_MAX // NUSD_PER_USD)]
Rate = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Models = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=1_000)]
Tags = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=20)]
DimensionSources = Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=len(PRESETS))]
Byok = Annotated[str, Meta(min_length=1, max_length=32)]
FixedDimensions = Annotated[dict[str, Annotated[str, Meta(min_length=1, max_length=1024)]], Meta(max_length=16)]

Thresholds = Annotated[tuple[Annotated[int, Meta(ge=1, le=THRESHOLD_MAX)], ...], Meta(max_length=THRESHOLDS_MAX)]

PaidOf = Callable[[Collection[str]], dict[str, SpendAndCredit]]
"""scope ids → spend and credit of these keys and accounts; raises OSError"""

CounterStatesOf = Callable[[Collection[str] | None], Awaitable[Sequence[CounterState]]]
"""counter ids (None: all) → the states of these limit counters; raises OSError"""

NOTHING_PAID = SpendAndCredit(Nusd(0), Nusd(0))


class BudgetRaise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """More budget until a time."""

    usd: Annotated[float, Meta(gt=0, le=BUDGET_NUSD_MAX // NUSD_PER_USD)]
    """the amount that is added to the budget of each window"""
    until: Annotated[str, Meta(max_length=40)]
    """a duration from now (`3d`), or a date (`2027-01-31`, at its beginning in UTC)"""


class BoundFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits that keys, accounts and rules have. Null: no limit; absent: unchanged, or no limit if new."""

    max_budget: Usd | UnsetType | None = UNSET
    budget_duration: Text | UnsetType | None = UNSET
    """`30d`, …, `calendar_day`, `calendar_week`, `calendar_month`; null: lifetime"""
    time_zone: Text | UnsetType | None = UNSET
    """time zone of a window by the calendar, as `Europe/Berlin`; null: UTC"""
    thresholds: Thresholds | UnsetType | None = UNSET
    """percentages of the budget at which alerts are sent; null: the usual ones"""
    budget_raise: BudgetRaise | UnsetType | None = UNSET
    """an increase of the budget until a time; null: none"""
    rpm_limit: Rate | UnsetType | None = UNSET
    tpm_limit: Rate | UnsetType | None = UNSET
    max_parallel_requests: Rate | UnsetType | None = UNSET


class LimitFields(BoundFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a key, project or organization."""

    prepaid: bool | UnsetType = UNSET
    """the spend is limited to the credit"""
    cost_in_answers: bool | UnsetType = UNSET
    """answers contain their cost, in the usage"""


class KeyFields(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a key. Null: none or no limit; absent: unchanged, or the default if new."""

    key_alias: Text | UnsetType = UNSET
    models: Models | UnsetType | None = UNSET
    """an empty list or null: all models"""
    duration: Text | UnsetType = UNSET
    """lifetime from now: `90d` (the default), …, `never`"""
    tags: Tags | UnsetType | None = UNSET
    on_exhausted: Literal["finish", "cut"] | UnsetType = UNSET
    on_store_outage: Literal["fail_closed", "fail_open"] | UnsetType | None = UNSET
    dimension_sources: DimensionSources | UnsetType | None = UNSET
    """the presets that name the dimensions of the key's requests; null: the deployment's"""
    dimensions: FixedDimensions | UnsetType | None = UNSET
    """fixed dimensions of the key's requests: `end_user`, `session`, `run`, `tag:NAME`"""
    byok: Byok | UnsetType | None = UNSET
    """the terms of billing for clients that send their own provider credential: `free`, a share of the list price
    (`5%`), or a fee for each request (`0.002usd/request`); null: the operator's credential is used"""


class GenerateBody(KeyFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new key."""

    team_id: Text | UnsetType = UNSET
    """a project's id or name"""
    narrowable: bool = False
    """its holder can make narrower keys from it without the proxy"""

    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"project_id": "team_id"}


class UpdateBody(KeyFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of an existing key."""

    key: Text
    """the key's id, alias or secret"""


class NamedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a key."""

    key: Text


class DeleteBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names at least one key."""

    keys: Annotated[tuple[Text, ...], Meta(max_length=1_000)] = ()
    key_aliases: Annotated[tuple[Text, ...], Meta(max_length=1_000)] = ()


class RegenerateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a new secret."""

    grace_period: Text = "24h"
    """how long the old secret stays valid; `now`: it becomes invalid at once"""
    narrowable: bool = False
    """the holder of the new secret can make narrower keys from it without the proxy"""


class RaiseShown(msgspec.Struct, frozen=True, kw_only=True):
    """More budget until a time."""

    usd: Decimal
    amount_usd: str
    """`usd` as a decimal string"""
    until: str


class BoundsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that keys, accounts and rules have. Money: USD."""

    max_budget: Decimal | None
    max_budget_usd: str | None
    """`max_budget` as a decimal string"""
    budget_duration: str | None
    time_zone: str | None
    thresholds: list[int] | None
    """percentages of the budget at which alerts are sent; null: the usual ones"""
    budget_raise: RaiseShown | None
    rpm_limit: int | None
    tpm_limit: int | None
    max_parallel_requests: int | None


class LimitsShown(BoundsShown, frozen=True, kw_only=True):
    """Limits, spend and credit of a key, project or organization. Money: USD."""

    prepaid: bool
    cost_in_answers: bool
    blocked: bool
    spend: Decimal
    """lifetime charges"""
    credit: Decimal
    """top-ups of this key or account itself; the balance is credit less spend"""
    spend_usd: str
    """`spend` as a decimal string"""
    credit_usd: str
    """`credit` as a decimal string"""


class KeyInfo(LimitsShown, frozen=True, kw_only=True):
    """A key."""

    token: str
    """the key's id"""
    key_name: str
    """prefix and last four characters of the key's secret"""
    old_secret_valid_until: str | None
    """the end of the grace of the secret before; null: no secret was replaced"""
    key_alias: str
    team_id: str
    models: list[str]
    """empty: all models"""
    on_exhausted: Literal["finish", "cut"]
    on_store_outage: Literal["fail_closed", "fail_open"] | None
    tags: list[str]
    dimension_sources: list[str] | None
    dimensions: dict[str, str]
    byok: str | None
    expires: str | None
    created_at: str
    revoked: bool


class NewKey(KeyInfo, frozen=True, kw_only=True):
    """A key with its secret, which is never shown again."""

    key: str


class KeyShown(msgspec.Struct, frozen=True, kw_only=True):
    """One key."""

    key: str
    found: KeyInfo = msgspec.field(name="info")


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the budget of a key or account in its window, or of its prepaid credit. Money: decimal strings of
    USD."""

    window: str
    """the window of the limit; `credit`: a prepaid balance without a window"""
    window_end: str | None
    budget_usd: str
    spent_usd: str
    held_usd: str
    """reserved by running exchanges"""
    used_ratio: float
    """spent part of the budget; 0.5 is 50 %"""


class ListedKey(KeyInfo, frozen=True, kw_only=True):
    """A key in a list."""

    project: str | None
    """the name of its project"""
    organization_id: str | None
    organization: str | None
    """the name of the project's organization"""
    status: KeyStatus
    last_used: str | None
    """the last UTC day with requests, as 2026-11-26"""
    month_usd: str
    """charges of this UTC month by usage date, as a decimal string of USD"""
    budget_use: BudgetUse | None
    """the use of its own budget or prepaid credit, whichever is used more; null: none, or not used yet"""


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of keys."""

    keys: list[ListedKey]
    total_count: int
    current_page: int
    total_pages: int


class KeysBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names some keys."""

    keys: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=100)]
    """ids or aliases"""


class KeyRefused(msgspec.Struct, frozen=True):
    """A key that was not changed, and why."""

    key: str
    message: str


class KeysChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each of some keys."""

    done: list[str]
    """as they were named"""
    failed: list[KeyRefused]


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the revoked keys."""

    deleted_keys: list[str]


def shown(key: ApiKey, paid: SpendAndCredit) -> dict[str, Any]:
    """The fields of `KeyInfo`."""
    own = key.dimensions or KeyDimensions()
    return {
        **limits_shown(key, paid),
        "token": key.key_id,
        "key_name": key.hint,
        "old_secret_valid_until": None if key.old_until is None else iso_utc(key.old_until),
        "key_alias": key.alias,
        "team_id": key.project_id,
        "models": sorted(key.models or ()),
        "on_exhausted": key.on_exhausted.value,
        "on_store_outage": None if key.on_store_outage is None else key.on_store_outage.value,
        "tags": list(key.tags),
        "dimension_sources": None if own.sources is None else list(own.sources),
        "dimensions": dict(own.fixed),
        "byok": None if key.byok is None else terms_text(key.byok),
        "expires": None if key.expires_at is None else iso_utc(key.expires_at),
        "created_at": iso_utc(key.created_at),
        "revoked": key.revoked_at is not None,
    }


def limits_shown(key: ApiKey | Account, paid: SpendAndCredit) -> dict[str, Any]:
    """The fields of `LimitsShown`."""
    limits = key.limits
    return {
        **bounds_shown(limits),
        "prepaid": limits.prepaid,
        "cost_in_answers": limits.cost_in_answers,
        "blocked": key.blocked_at is not None,
        "spend": usd_number(paid.used_nusd),
        "credit": usd_number(paid.credit_nusd),
        "spend_usd": usd_text(paid.used_nusd),
        "credit_usd": usd_text(paid.credit_nusd),
    }


def budget_shown(state: BudgetState | None) -> BudgetUse | None:
    """The use of a budget; None: there is none, or no request has used it."""
    if state is None:
        return None
    return BudgetUse(
        window=state.window,
        window_end=None if state.until is None else iso_utc(state.until),
        budget_usd=usd_text(state.limit_nusd),
        spent_usd=usd_text(state.spent_nusd),
        held_usd=usd_text(state.reserved_nusd),
        used_ratio=state.used_ratio,
    )


def bounds_shown(limits: Limits) -> dict[str, Any]:
    """The fields of `BoundsShown`."""
    budgeted = limits.budget_nusd is not None or bool(limits.quotas)
    return {
        "max_budget": None if limits.budget_nusd is None else usd_number(limits.budget_nusd),
        "max_budget_usd": None if limits.budget_nusd is None else usd_text(limits.budget_nusd),
        "budget_duration": limits.budget_window if budgeted and limits.budget_window != LIFETIME else None,
        "time_zone": limits.time_zone,
        "thresholds": list(limits.thresholds) or None,
        "budget_raise": None
        if limits.raised is None
        else RaiseShown(
            usd=usd_number(limits.raised.nusd),
            amount_usd=usd_text(limits.raised.nusd),
            until=iso_utc(limits.raised.until),
        ),
        "rpm_limit": limits.rpm,
        "tpm_limit": limits.tpm,
        "max_parallel_requests": limits.parallel,
    }


def changes(fields: BoundFields) -> dict[str, Any]:
    """The given fields under the store's names, without `duration`. Raises ValueError that names the field."""
    given: dict[str, Any] = {
        name: value for name in fields.__struct_fields__ if (value := getattr(fields, name)) is not UNSET
    }
    found = {ours: given[name] for name, ours in _PLAIN.items() if name in given}
    if "models" in given:
        found["models"] = given["models"] or None
    if "tags" in given:
        found["tags"] = given["tags"] or ()
    if "dimension_sources" in given:
        found["dimension_sources"] = given["dimension_sources"]
    if "dimensions" in given:
        found["dimensions"] = given["dimensions"] or {}
    if "byok" in given:
        found["byok"] = None if given["byok"] is None else _terms(given["byok"])
    if "max_budget" in given:
        found["budget_nusd"] = None if given["max_budget"] is None else nusd_from_usd(repr(given["max_budget"]))
    if "budget_duration" in given:
        found["budget_window"] = given["budget_duration"] or LIFETIME
    if "thresholds" in given:
        found["thresholds"] = tuple(sorted(set(given["thresholds"] or ())))
    if "budget_raise" in given:
        found["raised"] = _raised(given["budget_raise"])
    if "on_exhausted" in given:
        found["on_exhausted"] = OnExhausted(given["on_exhausted"])
    if "on_store_outage" in given:
        found["on_store_outage"] = None if given["on_store_outage"] is None else OnStoreOutage(given["on_store_outage"])
    return found


def _terms(text: str) -> str:
    try:
        return terms_of(text)
    except ValueError as wrong:
        raise ValueError(f"byok: {wrong}") from None


def _raised(given: BudgetRaise | None) -> Raise | None:
    if given is None:
        return None
    try:
        ends = expires_at_from(given.until, time.time())
    except ValueError as wrong:
        raise ValueError(f"raised: {wrong}") from None
    if ends is None:
        raise ValueError("raised: must end; to raise the budget for ever, change the budget")
    return Raise(nusd_from_usd(repr(given.usd)), ends)


def made_limits(given: dict[str, Any]) -> Limits:
    """Moves the limits out of `given`; a budget or a quota without a window counts the lifetime."""
    limits = {name: given.pop(name) for name in LIMITS & given.keys()}
    if limits.get("budget_nusd") is not None or limits.get("quotas"):
        limits.setdefault("budget_window", LIFETIME)
    return Limits(**limits)


_PLAIN = {
    "key_alias": "alias",
    "name": "name",
    "rpm_limit": "rpm",
    "tpm_limit": "tpm",
    "max_parallel_requests": "parallel",
    "time_zone": "time_zone",
    "prepaid": "prepaid",
    "cost_in_answers": "cost_in_answers",
}

FIELDS = {
    **{ours: name for name, ours in _PLAIN.items()},
    "models": "models",
    "tags": "tags",
    "dimension_sources": "dimension_sources",
    "dimensions": "dimensions",
    "byok": "byok",
    "budget_usd": "max_budget",
    "budget_window": "budget_duration",
    "expires": "duration",
    "project": "team_id",
    "key": "key",
    "account": "account",
    "organization": "organization_id",
    "limit": "limit",
    "limits": "max_budget",
    "split_by": "split_by",
    "required": "required",
    "fallback_model": "fallback_model",
    "providers": "providers",
    "only": "only",
    "time_zone": "time_zone",
    "thresholds": "thresholds",
    "raised": "budget_raise",
    "quotas": "quotas",
    "alert_only": "alert_only",
    "to": "to",
    "month": "month",
    "usd": "usd",
    "reason": "reason",
    "charge_usd": "charge_usd",
    "cost_usd": "cost_usd",
    "id": "id",
    "grant": "grant",
    "name": "name",
    "begins": "begins",
    "expiry": "expires",
    "lasts": "lasts",
    "priority": "priority",
    "recurs": "recurs",
}
"""field name in the store's error messages → field of the request"""
