"""Query and answer types of usage reports.

Invariants:
- Money is a decimal string of USD; times in answers are ISO 8601 in UTC, and the end of a period is not part of it.
- Fields for the operator only are absent in an answer to a key.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.console.api.usage import Names, Zone

GROUPS_DEFAULT, GROUPS_MAX = 20, 1_000

Moment = Annotated[str, Meta(min_length=1, max_length=40)]
Group = Annotated[
    str,
    Meta(
        pattern="^(organization|project|key|model|provider|end_user|session|run|tag:[a-z][a-z0-9_.-]{0,31})$",
        description="one of organization, project, key, model, provider, end_user, session, run and tag:NAME",
    ),
]


class PeriodQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A period, and filters, combined with AND; of one filter, any of its values."""

    since: Moment | UnsetType = msgspec.field(default=UNSET, name="from")
    """a date (2026-11-01, in `time_zone`), an ISO time, or Unix seconds; by default the first of this month"""
    until: Moment | UnsetType = msgspec.field(default=UNSET, name="to")
    """end of the period, exclusive; default: now"""
    time_zone: Zone = "UTC"
    basis: Literal["usage", "booking"] = "usage"
    """`usage`: a correction counts when its exchange began; `booking`: when it was settled, as on statements. Requests
    with unknown amounts are by usage date in any case"""
    organization_id: Names = ()
    project_id: Names = ()
    key_id: Names = ()
    model: Names = ()
    provider: Names = ()
    end_user: Names = ()
    session: Names = ()
    run: Names = ()
    tag: Names = ()
    """each as `team=red`"""


class ReportQuery(PeriodQuery, frozen=True, forbid_unknown_fields=True):
    """A period, its division, and its groups."""

    bucket: Literal["day", "hour", "total"] = "day"
    """days of `time_zone`, hours, or the period as a whole, from its first to its last second"""
    group_by: Group | UnsetType = UNSET
    compare: Literal["previous"] | UnsetType = UNSET
    """with the totals of the previous period"""
    limit: Annotated[int, Meta(ge=1, le=GROUPS_MAX)] = GROUPS_DEFAULT
    """the groups with the highest charge; `other` is the rest"""


class ChangeQuery(PeriodQuery, frozen=True, forbid_unknown_fields=True):
    """Two periods; by default, the one before the first."""

    previous_from: Moment | UnsetType = UNSET
    previous_to: Moment | UnsetType = UNSET


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of requests. Money: decimal strings of USD."""

    requests: int
    input_tokens: int
    cached_tokens: int
    """part of `input_tokens`"""
    output_tokens: int
    charge_usd: str
    unpriced_requests: int
    """requests without a charge, because they have no price"""
    cost_usd: str | UnsetType = UNSET
    """the known cost; for operators"""
    unknown_cost_requests: int | UnsetType = UNSET
    unknown_cost_charge_usd: str | UnsetType = UNSET
    """the part of `charge_usd` with an unknown cost"""
    margin_usd: str | UnsetType = UNSET
    """charge less cost, of the requests with a known cost"""


class GroupNumbers(Numbers, frozen=True, kw_only=True):
    """The sums of one group."""

    id: str | None
    """id or name; null: the requests without the dimension"""
    name: str | None
    """the name of an account, the alias of a key, the value of a dimension"""
    previous: Numbers | UnsetType = UNSET
    """in the previous period"""


class BucketNumbers(Numbers, frozen=True, kw_only=True):
    """The sums of one bucket. Times: ISO 8601, UTC; the end is exclusive."""

    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    groups: list[GroupNumbers]


class PeriodShown(msgspec.Struct, frozen=True, kw_only=True):
    """A period. Times: ISO 8601, UTC; the end is exclusive."""

    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")


class PreviousPeriod(PeriodShown, frozen=True, kw_only=True):
    """The previous period, and its sums if they were requested."""

    total: Numbers | UnsetType = UNSET


class UsageReport(PeriodShown, frozen=True, kw_only=True):
    """Usage of a period."""

    object: Literal["usage"] = "usage"
    time_zone: str
    basis: Literal["usage", "booking"]
    bucket: Literal["day", "hour", "total"]
    group_by: str | None
    total: Numbers
    groups: list[GroupNumbers]
    """the highest charge first"""
    other: Numbers | None
    """the groups that are left out; null: none"""
    buckets: list[BucketNumbers]
    """empty with `bucket=total`"""
    previous: PreviousPeriod


class Reasons(msgspec.Struct, frozen=True, kw_only=True):
    """Signed amounts that add up to `difference_usd`, exactly. Decimal strings of USD."""

    difference_usd: str
    volume_usd: str
    """more or fewer requests"""
    mix_usd: str
    """other models, or more or fewer tokens for each request"""
    price_usd: str
    """other prices of the same units"""
    adjustments_usd: str
    """more or fewer corrections"""


class ModelReasons(Reasons, frozen=True, kw_only=True):
    """The reasons of one model."""

    model: str
    requests: int
    previous_requests: int
    charge_usd: str
    previous_charge_usd: str


class UsageChange(PeriodShown, frozen=True, kw_only=True):
    """Why the charges of a period differ from those of another one."""

    object: Literal["usage.change"] = "usage.change"
    time_zone: str
    basis: Literal["usage", "booking"]
    previous: PeriodShown
    charge_usd: str
    previous_charge_usd: str
    total: Reasons
    models: list[ModelReasons]
    """the largest difference first; their reasons add up to `total`"""
