"""Keys as LiteLLM's `/key/*` names them. Law: every field does what it says there, or there is no such field here.

A team is a project. `max_budget` without `budget_duration` is for the key's whole life, as it is there.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.billing.keys import ApiKey
from proxy.billing.limits import BUDGET_NUSD_MAX, LIFETIME, OnExhausted, WhenDown
from proxy.billing.money import NUSD_PER_USD, nusd_from_usd
from proxy.console.api import usd_number
from proxy.ledger.reports import iso_utc

Text = Annotated[str, Meta(min_length=1, max_length=128)]
Usd = Annotated[float, Meta(ge=0, le=BUDGET_NUSD_MAX // NUSD_PER_USD)]
Rate = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Models = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=1_000)]
Tags = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=20)]


class KeyFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set. Null: none, or no limit; not given: as it is, or the default."""

    key_alias: Text | UnsetType = UNSET
    models: Models | UnsetType | None = UNSET
    """an empty list or null: all"""
    max_budget: Usd | UnsetType | None = UNSET
    budget_duration: Text | UnsetType | None = UNSET
    """`30d` (rolling), …, `calendar_month`; null: the key's whole life"""
    duration: Text | UnsetType = UNSET
    """how long from now the key lives: `90d` (the default), …, `never`"""
    rpm_limit: Rate | UnsetType | None = UNSET
    tpm_limit: Rate | UnsetType | None = UNSET
    max_parallel_requests: Rate | UnsetType | None = UNSET
    tags: Tags | UnsetType | None = UNSET
    prepaid: bool | UnsetType = UNSET
    on_exhausted: Literal["finish", "cut"] | UnsetType = UNSET
    when_down: Literal["closed", "open"] | UnsetType | None = UNSET


class GenerateBody(KeyFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new key."""

    team_id: Text | UnsetType = UNSET
    """a project's id or name"""


class UpdateBody(KeyFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that is there."""

    key: Text
    """its id, its alias or its secret"""


class NamedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which key."""

    key: Text


class DeleteBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which keys: at least one."""

    keys: Annotated[tuple[Text, ...], Meta(max_length=1_000)] = ()
    key_aliases: Annotated[tuple[Text, ...], Meta(max_length=1_000)] = ()


class RegenerateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new secret."""

    grace_period: Text = "24h"
    """how long the old one goes on counting; `now`: not at all"""


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key. Money: USD."""

    token: str
    """its id"""
    key_name: str
    """enough to recognise its secret by"""
    key_alias: str
    team_id: str
    models: list[str]
    """none: all"""
    max_budget: Decimal | None
    budget_duration: str | None
    rpm_limit: int | None
    tpm_limit: int | None
    max_parallel_requests: int | None
    prepaid: bool
    on_exhausted: Literal["finish", "cut"]
    when_down: Literal["closed", "open"] | None
    tags: list[str]
    expires: str | None
    created_at: str
    blocked: bool
    revoked: bool
    spend: Decimal
    """charged in all its life"""


class NewKey(KeyInfo, frozen=True, kw_only=True):
    """With its secret, which is never shown again."""

    key: str


class KeyShown(msgspec.Struct, frozen=True, kw_only=True):
    """One key."""

    key: str
    found: KeyInfo = msgspec.field(name="info")


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some keys, newest first."""

    keys: list[KeyInfo]
    total_count: int
    current_page: int
    total_pages: int


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """Their ids."""

    deleted_keys: list[str]


def shown(key: ApiKey, spent_nusd: int) -> dict[str, Any]:
    """The fields of `KeyInfo`."""
    limits = key.limits
    budgeted = limits.budget_usd is not None
    return {
        "token": key.key_id,
        "key_name": key.hint,
        "key_alias": key.alias,
        "team_id": key.project_id,
        "models": sorted(key.models or ()),
        "max_budget": None if limits.budget_usd is None else usd_number(limits.budget_usd),
        "budget_duration": limits.budget_window if budgeted and limits.budget_window != LIFETIME else None,
        "rpm_limit": limits.rpm,
        "tpm_limit": limits.tpm,
        "max_parallel_requests": limits.parallel,
        "prepaid": limits.prepaid,
        "on_exhausted": key.on_exhausted.value,
        "when_down": None if key.when_down is None else key.when_down.value,
        "tags": list(key.tags),
        "expires": None if key.expires_at is None else iso_utc(key.expires_at),
        "created_at": iso_utc(key.created_at),
        "blocked": key.blocked_at is not None,
        "revoked": key.revoked_at is not None,
        "spend": usd_number(spent_nusd),
    }


def changes(fields: KeyFields) -> dict[str, Any]:
    """What is given, as `KeyStore.update` takes it; the lifetime apart. Raises ValueError, naming the field."""
    given: dict[str, Any] = {
        name: value for name in KeyFields.__struct_fields__ if (value := getattr(fields, name)) is not UNSET
    }
    found = {ours: given[name] for name, ours in _PLAIN.items() if name in given}
    if "models" in given:
        found["models"] = given["models"] or None
    if "tags" in given:
        found["tags"] = given["tags"] or ()
    if "max_budget" in given:
        found["budget_usd"] = None if given["max_budget"] is None else nusd_from_usd(repr(given["max_budget"]))
    if "budget_duration" in given:
        found["budget_window"] = given["budget_duration"] or LIFETIME
    if "on_exhausted" in given:
        found["on_exhausted"] = OnExhausted(given["on_exhausted"])
    if "when_down" in given:
        found["when_down"] = None if given["when_down"] is None else WhenDown(given["when_down"])
    return found


_PLAIN = {
    "key_alias": "alias",
    "rpm_limit": "rpm",
    "tpm_limit": "tpm",
    "max_parallel_requests": "parallel",
    "prepaid": "prepaid",
}

FIELDS = {
    **{ours: name for name, ours in _PLAIN.items()},
    "models": "models",
    "tags": "tags",
    "budget_usd": "max_budget",
    "budget_window": "budget_duration",
    "expires": "duration",
    "project": "team_id",
    "key": "key",
}
"""the names that refusals of the store begin with → the field of the request"""
