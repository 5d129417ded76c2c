"""Usage and cost in the format of OpenAI's organization APIs, for dashboards made for those.

Invariants:
- A bucket is a whole minute or hour in UTC, or a whole day in UTC or in the time zone of the query.
- Facts that are not recorded (batches, service tiers) are null as a group and refused as a filter.
- The requests without a dimension are a group of their own, so that the groups add up to the total.
- `amount` is the charge of the keys, with corrections and without top-ups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.billing.dimensions import END_USER
from proxy.billing.money import Nusd, usd_text
from proxy.billing.windows import checked_time_zone
from proxy.console.api.dimensions import DimensionValue, value_shown, wanted_values
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint, usd_number
from proxy.console.api.reading import invalid
from proxy.console.ledger_reports import LedgerReports
from proxy.reports.buckets import DAY_S, Buckets
from proxy.reports.dimensions import ShownDimension
from proxy.reports.usage import UsageFilter, UsageTotals

WIDTHS = {"1m": 60, "1h": 3_600, "1d": DAY_S}
LIMITS = {"1m": (60, 1_440), "1h": (24, 168), "1d": (7, 31)}
"""bucket width → default and maximum number of buckets, as in OpenAI's API"""
COSTS_LIMIT_DEFAULT, COSTS_LIMIT_MAX = 7, 180

# About 3 MB; further rows are on the next page.
ROWS_MAX = 10_000
# Two days before the last one that every supported database can store: a bucket in any time zone ends before it.
_TIME_MAX = 253_402_041_600
_PAGE = re.compile(r"page_([0-9]{1,12})", re.ASCII)

Time = Annotated[int, Meta(ge=0, le=_TIME_MAX)]
Zone = Annotated[str, Meta(min_length=1, max_length=64)]
Names = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=200)]
_DIMENSION = "user_id|session|run|tag:[a-z][a-z0-9_.-]{0,31}"
_DIMENSIONS = "user_id, session, run and tag:NAME"
UsageGroup = Annotated[
    str,
    Meta(
        pattern=f"^(project_id|api_key_id|model|batch|service_tier|{_DIMENSION})$",
        description=f"one of project_id, api_key_id, model, batch, service_tier, {_DIMENSIONS}",
    ),
]
CostGroup = Annotated[
    str,
    Meta(
        pattern=f"^(project_id|line_item|api_key_id|{_DIMENSION})$",
        description=f"one of project_id, line_item, api_key_id, {_DIMENSIONS}",
    ),
]
Page = Annotated[
    str, Meta(pattern="^page_[0-9]{1,12}$", description="a page of this query: 'next_page' of the last answer")
]
_NOT_DIMENSIONS = frozenset(("project_id", "api_key_id", "model", "batch", "service_tier", "line_item"))


class UsageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's query without a filter for batches, which are not recorded; with filters for sessions, runs and tags."""

    start_time: Time
    end_time: Time | UnsetType = UNSET
    bucket_width: Literal["1m", "1h", "1d"] = "1d"
    time_zone: Zone | UnsetType = UNSET
    """time zone of buckets of a day, such as `Europe/Berlin`; by default UTC"""
    group_by: tuple[UsageGroup, ...] = ()
    project_ids: Names = ()
    api_key_ids: Names = ()
    models: Names = ()
    user_ids: Names = ()
    sessions: Names = ()
    runs: Names = ()
    tags: Names = ()
    limit: Annotated[int, Meta(ge=1, le=1_440)] | UnsetType = UNSET
    page: Page | UnsetType = UNSET


class CostsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's query, with filters for end users, sessions, runs and tags. A line item is a model."""

    start_time: Time
    end_time: Time | UnsetType = UNSET
    bucket_width: Literal["1d"] = "1d"
    time_zone: Zone | UnsetType = UNSET
    """time zone of the buckets, such as `Europe/Berlin`; by default UTC"""
    group_by: tuple[CostGroup, ...] = ()
    project_ids: Names = ()
    api_key_ids: Names = ()
    user_ids: Names = ()
    sessions: Names = ()
    runs: Names = ()
    tags: Names = ()
    limit: Annotated[int, Meta(ge=1, le=COSTS_LIMIT_MAX)] = COSTS_LIMIT_DEFAULT
    page: Page | UnsetType = UNSET


Grouped = dict[str, DimensionValue | None]
"""the dimension that is grouped by, and its value; null: the requests without it"""


class UsageResult(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one bucket and group. A null field is not grouped by, or not recorded."""

    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    project_id: str | None
    user_id: str | None
    """the end user; `(other)` or `(erased …)` without a value"""
    api_key_id: str | None
    model: str | None
    batch: None = None
    service_tier: None = None
    dimensions: Grouped | UnsetType = UNSET


class Amount(msgspec.Struct, frozen=True):
    """An amount of money."""

    value: Decimal
    value_usd: str
    """`value` as a decimal string"""
    currency: Literal["usd"] = "usd"


class CostResult(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one bucket and group."""

    object: Literal["organization.costs.result"] = "organization.costs.result"
    amount: Amount
    """the charge of the keys"""
    provider_amount: Amount | UnsetType = UNSET
    """the cost charged by providers, without the requests whose cost is unknown; for the operator only"""
    unpriced_requests: int
    """requests without a charge, because they have no price"""
    unknown_cost_requests: int | UnsetType = UNSET
    """requests with an unknown cost; for the operator only"""
    unknown_cost_amount: Amount | UnsetType = UNSET
    """the part of `amount` with an unknown cost; for the operator only"""
    line_item: str | None
    project_id: str | None
    api_key_id: str | None
    dimensions: Grouped | UnsetType = UNSET


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A time bucket. Times: Unix seconds; the end is exclusive."""

    object: Literal["bucket"] = "bucket"
    start_time: int
    end_time: int
    results: list[Any]


class UsageBucket(Bucket, frozen=True, kw_only=True):
    """A bucket of usage."""

    results: list[UsageResult]


class CostBucket(Bucket, frozen=True, kw_only=True):
    """A bucket of costs."""

    results: list[CostResult]


class UsagePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of buckets, including empty ones."""

    object: Literal["page"] = "page"
    listed: list[UsageBucket] = msgspec.field(name="data")
    has_more: bool
    next_page: str | None


class CostPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of buckets, including empty ones."""

    object: Literal["page"] = "page"
    basis: Literal["usage"] = "usage"
    """a correction counts in the bucket of its exchange; a statement lists it in the month of its booking"""
    listed: list[CostBucket] = msgspec.field(name="data")
    has_more: bool
    next_page: str | None


@dataclass(frozen=True, slots=True)
class UsageApi:
    """The routes `/v1/organization/usage/completions` and `/v1/organization/costs`."""

    reports: LedgerReports
    unix_time: Callable[[], float]

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield Endpoint(
            method="GET", path="/v1/organization/usage/completions", summary="Tokens and requests in time buckets.",
            serve=self.usage, query=UsageQuery, answers={200: UsagePage},
        )  # fmt: skip
        yield Endpoint(
            method="GET", path="/v1/organization/costs", summary="Charges and costs by day.",
            serve=self.costs, query=CostsQuery, answers={200: CostPage},
        )  # fmt: skip

    async def usage(self, call: ApiCall) -> ApiReply:
        """A page of usage buckets. Raises ApiError, OSError."""
        query: UsageQuery = call.query
        default, most = LIMITS[query.bucket_width]
        limit = default if query.limit is UNSET else query.limit
        if limit > most:
            raise invalid(f"'limit': at most {most} buckets of {query.bucket_width}, not {limit}.", "limit")
        wanted = await self._wanted(
            call, WIDTHS[query.bucket_width], limit, by_model="model" in query.group_by, models=query.models or None
        )
        return await self._page(call, wanted, UsageBucket, UsagePage, _usage_result)

    async def costs(self, call: ApiCall) -> ApiReply:
        """A page of cost buckets. Raises ApiError, OSError."""
        query: CostsQuery = call.query
        wanted = await self._wanted(call, DAY_S, query.limit, by_model="line_item" in query.group_by)
        operator = call.session.key is None
        return await self._page(call, wanted, CostBucket, CostPage, partial(_cost_result, operator=operator))

    async def _wanted(self, call: ApiCall, width: int, limit: int, **groups: Any) -> UsageFilter:
        """The filter of the requested page. Raises ApiError."""
        query, buckets = call.query, _buckets(call.query, width)
        begin, last = buckets.floor(query.start_time), self._end(query, buckets)
        if query.page is not UNSET:
            page = _PAGE.fullmatch(query.page)
            start = -1 if page is None else min(int(page[1]), last + 1)
            if not begin <= start <= last or buckets.floor(start) != start:
                raise invalid("'page': not a page of this query; use 'next_page' of the last answer.", "page")
            begin = start
        end = max(islice(map(buckets.end_of, buckets.between(begin, last)), limit), default=begin)
        own = None if call.session.key is None else {call.session.key.key_id}
        keys = set(query.api_key_ids) if query.api_key_ids else own
        if own is not None and keys is not None:
            keys &= own
        values = wanted_values(query.user_ids, query.sessions, query.runs, query.tags, "tags")
        return UsageFilter(
            begin=begin, end=end, bucket_s=width, time_zone=buckets.time_zone,
            keys=keys, projects=query.project_ids or None,
            by_key="api_key_id" in query.group_by, by_project="project_id" in query.group_by,
            by_dimension=_dimension_of(query.group_by), dimensions=await self.reports.value_ids(values), **groups,
        )  # fmt: skip

    def _end(self, query: Any, buckets: Buckets) -> int:
        """The exclusive end of the last bucket. Raises ApiError."""
        end = int(self.unix_time()) + 1 if query.end_time is UNSET else query.end_time
        if query.end_time is not UNSET and end <= query.start_time:
            raise invalid("'end_time': must be after 'start_time'.", "end_time")
        return buckets.ceil(min(end, _TIME_MAX))

    async def _page(
        self, call: ApiCall, wanted: UsageFilter, bucket: Any, page: Any, result: Callable[..., Any]
    ) -> ApiReply:
        try:
            totals, upto = await self.reports.usage(wanted, ROWS_MAX)
        except ValueError as wrong:  # archived entries
            raise invalid(f"'start_time': {wrong}.", "start_time") from None
        buckets = wanted.buckets
        if upto == wanted.begin < wanted.end:
            raise invalid(f"One bucket has more than {ROWS_MAX} groups; filter, or group by fewer fields.", "group_by")
        shown = await self.reports.shown(total.value_id for total in totals if total.value_id is not None)
        by_bucket: dict[int, list[Any]] = {begin: [] for begin in buckets.between(wanted.begin, upto)}
        for total in totals:
            value = None if total.value_id is None else shown[total.value_id]
            dimensions = {wanted.by_dimension: value and value_shown(value)} if wanted.by_dimension else UNSET
            by_bucket[total.begin].append(result(total, value, dimensions))
        listed = [bucket(start_time=at, end_time=buckets.end_of(at), results=found) for at, found in by_bucket.items()]
        more = upto < self._end(call.query, buckets)
        return ApiReply(page(listed=listed, has_more=more, next_page=f"page_{upto}" if more else None))


def _buckets(query: Any, width: int) -> Buckets:
    """The buckets of a query. Raises ApiError."""
    if query.time_zone is UNSET:
        return Buckets(width)
    if width != DAY_S:
        raise invalid("'time_zone': only with a bucket_width of 1d.", "time_zone")
    try:
        return Buckets(width, checked_time_zone(query.time_zone))
    except ValueError as wrong:
        raise invalid(f"'time_zone': {wrong}.", "time_zone") from None


def _dimension_of(group_by: Iterable[str]) -> str | None:
    """The dimension to group by. Raises ApiError for two of them."""
    names = sorted(set(group_by) - _NOT_DIMENSIONS)
    if len(names) > 1:
        raise invalid(f"'group_by': has {' and '.join(names)}; one of users, sessions, runs and tags.", "group_by")
    return {"user_id": END_USER}.get(names[0], names[0]) if names else None


def _usage_result(totals: UsageTotals, value: ShownDimension | None, dimensions: Grouped | UnsetType) -> UsageResult:
    return UsageResult(
        input_tokens=totals.prompt_tokens,
        input_cached_tokens=totals.cached_tokens,
        output_tokens=totals.completion_tokens,
        num_model_requests=totals.requests,
        project_id=totals.project_id,
        user_id=value.text if value is not None and dimensions and END_USER in dimensions else None,
        api_key_id=totals.key_id,
        model=totals.model,
        dimensions=dimensions,
    )


def _amount(nusd: Nusd) -> Amount:
    return Amount(usd_number(nusd), usd_text(nusd))


def _cost_result(
    totals: UsageTotals, _value: ShownDimension | None, dimensions: Grouped | UnsetType, *, operator: bool
) -> CostResult:
    return CostResult(
        amount=_amount(totals.charge_nusd),
        provider_amount=_amount(totals.cost_nusd) if operator else UNSET,
        unpriced_requests=totals.unpriced,
        unknown_cost_requests=totals.unknown_cost if operator else UNSET,
        unknown_cost_amount=_amount(totals.unknown_cost_charge_nusd) if operator else UNSET,
        line_item=totals.model,
        project_id=totals.project_id,
        api_key_id=totals.key_id,
        dimensions=dimensions,
    )
