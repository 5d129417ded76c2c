"""Answer types of exchanges.

Invariants:
- Money is a decimal string of USD, a time is ISO 8601 in UTC.
- Fields for the operator only are absent in an answer to a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.console.api.dimensions import DimensionValue
from proxy.console.api.usage import Names, Time

LIMIT_DEFAULT, LIMIT_MAX = 50, 200

CURSOR = "a cursor of this list: 'next_after' of the last page"

Name = Annotated[str, Meta(min_length=1, max_length=256)]
OutcomeName = Literal[
    "served", "client_left", "upstream_failed", "upstream_stalled", "budget_cut", "shut_down", "crashed",
    "refused_upstream",
]  # fmt: skip


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters, combined with AND. Times: Unix seconds of the start of an exchange."""

    q: Name | UnsetType = UNSET
    """the id of the exchange or its beginning (8 characters or more), the provider's id of the response
    (`chatcmpl-…`) or of the batch, or a part of the key's alias or of the model's name, in any case"""
    key_id: Name | UnsetType = UNSET
    project_id: Name | UnsetType = UNSET
    organization_id: Name | UnsetType = UNSET
    provider: Name | UnsetType = UNSET
    batch_id: Name | UnsetType = UNSET
    """the provider's id of a batch: the batch and its lines"""
    model: Name | UnsetType = UNSET
    outcome: OutcomeName | UnsetType = UNSET
    usage_source: Literal["reported", "estimated", "none"] | UnsetType = UNSET
    end_user: Name | UnsetType = UNSET
    session: Name | UnsetType = UNSET
    run: Name | UnsetType = UNSET
    tag: Names = ()
    """each as `team=red`"""
    start_time: Time | UnsetType = UNSET
    end_time: Time | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT
    sort: Literal["started", "charge", "duration", "output"] = "started"
    """the highest value first; by a value, the 100,000 newest exchanges of the time span are ranked"""
    after: Annotated[str, Meta(pattern="^[0-9]{1,17}\\.[0-9a-f-]{36}$", description=CURSOR)] | UnsetType = UNSET


class ExchangeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange in a list. Money: decimal strings of USD, corrections included."""

    object: Literal["exchange"] = "exchange"
    id: str
    key_id: str
    key_alias: str
    project_id: str | None
    project: str | None
    organization_id: str | None
    organization: str | None
    provider: str | None
    """null: hidden from keys"""
    model: str
    endpoint: str
    streamed: bool
    started_at: str
    duration_ms: float
    first_token_ms: float | None
    outcome: str
    stopped_by_operator: bool
    usage_source: str
    batch_id: str | None
    """the provider's id of the batch that it belongs to"""
    is_batch: bool
    """it is the batch itself, and not one of its lines"""
    prompt_tokens: int | None
    completion_tokens: int | None
    charge_usd: str | None
    """null: the model has no price"""
    cost_usd: str | UnsetType | None = UNSET
    """null: unknown"""
    margin_usd: str | UnsetType | None = UNSET
    """charge less cost; null if one of them is unknown"""
    adjustments: int
    dimensions: dict[str, DimensionValue]


class ExchangePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list."""

    object: Literal["list"] = "list"
    listed: list[ExchangeLine] = msgspec.field(name="data")
    has_more: bool
    next_after: str | None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Times: ISO 8601, UTC."""

    started_at: str
    first_token_at: str | None
    ended_at: str
    settled_at: str
    first_token_ms: float | None
    duration_ms: float
    provider_timings: dict[str, Any]


class UsageShown(msgspec.Struct, frozen=True, kw_only=True):
    """Counts after all corrections, with their source and evidence."""

    source: str
    counts: dict[str, int]
    """name → reported, estimated or corrected count"""
    estimator: str | None
    expected_error: float | None
    """typical relative error of the estimate: 0.1 is 10 %"""
    evidence: Mapping[str, Any] | None
    """input of the estimate"""
    reported: Mapping[str, Any] | None
    """the provider's usage object"""
    flags: list[str]


class MoneyShown(msgspec.Struct, frozen=True, kw_only=True):
    """The calculation of an amount when the exchange ended. Money: decimal strings of USD."""

    usd: str | None
    price: Mapping[str, Any] | None
    billed: str | None
    """the billed part: prompt, output, both or nothing"""
    addends: list[dict[str, Any]]
    """items whose rounded sum is `usd`"""
    formula: str
    """the calculation as text"""


class PriceChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A price of the used units before and after a correction, per its unit quantity. Null: no price."""

    price: str
    old_usd: str | None
    new_usd: str | None
    per: str
    """the quantity that the prices are for"""


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """A correction of the exchange; every number is a difference, except `total_usd`."""

    entry_id: str
    settled_at: str
    reason: str
    actor: str | None
    """the operator's name for an operator; else, and if it is not recorded, `operator` or `rerate`"""
    charge_usd: str | None
    cost_usd: str | UnsetType | None = UNSET
    counts: dict[str, int]
    price_version: str | None
    """the price list of the charge after the correction"""
    prices: list[PriceChanged]
    """the prices that the correction changed"""
    total_usd: str | None
    """the charge after the correction; that of the last correction is the exchange's `charge_usd`"""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange with the explanation of its charge."""

    object: Literal["exchange"] = "exchange"
    status: Literal["settled"] = "settled"
    id: str
    entry_id: str
    key_id: str
    key_alias: str
    provider: str | None
    """null: hidden from keys"""
    model: str
    upstream_model: str | None
    """null: hidden from keys"""
    endpoint: str
    streamed: bool
    outcome: str
    stopped_by_operator: bool
    situation: str | None
    finish_reason: str | None
    provider_response_id: str | None
    charge_usd: str | None
    """the charge, with corrections"""
    cost_usd: str | UnsetType | None = UNSET
    explanation: str
    timeline: Timeline
    usage: UsageShown
    charge: MoneyShown
    cost: MoneyShown | UnsetType = UNSET
    held_usd: str | None
    """the reservation while the exchange ran"""
    price_version: str | None
    dimensions: dict[str, DimensionValue]
    events: int
    bytes: int
    attempts: Sequence[Mapping[str, Any]]
    details: dict[str, Any]
    """all other details of the entry"""
    adjustments: list[Adjustment]


class Unsettled(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange that runs or has just ended."""

    object: Literal["exchange"] = "exchange"
    status: Literal["unsettled"] = "unsettled"
    id: str
