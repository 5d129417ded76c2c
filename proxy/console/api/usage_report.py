"""Usage of any period for the console: totals and groups with a comparison, buckets of days and hours, and the reasons
for a change.

Invariants:
- The groups, with `other`, add up to the total, in each bucket and in the whole period.
- An unknown amount is never 0: its requests are counted, and the margin leaves their charge out.
- Costs and margins are for operators only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from msgspec import UNSET

from proxy.billing.money import Nusd, usd_text
from proxy.billing.windows import checked_time_zone, day_start, local_day
from proxy.console.api.dimensions import wanted_values
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint
from proxy.console.api.hidden_providers import require_visible
from proxy.console.api.reading import invalid
from proxy.console.api.schemas.usage import (
    BucketNumbers,
    ChangeQuery,
    GroupNumbers,
    ModelReasons,
    Numbers,
    PeriodQuery,
    PeriodShown,
    PreviousPeriod,
    Reasons,
    ReportQuery,
    UsageChange,
    UsageReport,
)
from proxy.console.ledger_reports import LedgerReports
from proxy.foundation.times import iso_time, iso_utc
from proxy.reports.buckets import DAY_S, Buckets
from proxy.reports.previous_period import previous_period
from proxy.reports.usage import UsageFilter, UsageTotals
from proxy.reports.usage_change import Change, explain_change, total_change

HOUR_S = 3_600
BUCKETS_MAX = {"hour": 31 * 25, "day": 400, "total": 1}
# About 6 MB.
ROWS_MAX = 20_000
_TIME_MAX = 253_402_041_600
_UTC = frozenset(("UTC", "Etc/UTC"))

_GROUPS = {
    "organization": "organization_id", "project": "project_id", "key": "key_id", "model": "model",
    "provider": "provider",
}  # fmt: skip
"""group → the column of its ids; every other one is a dimension"""
_FILTERS = {
    "organization_id": "organizations", "project_id": "projects", "key_id": "keys", "model": "models",
    "provider": "providers",
}  # fmt: skip


class _Sums(NamedTuple):
    """Whole numbers that are added and subtracted. Money: nUSD."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    charge: int = 0
    unpriced: int = 0
    cost: int = 0
    unknown: int = 0
    unknown_charge: int = 0

    def less(self, others: Iterable[_Sums]) -> _Sums:
        """Without the others."""
        return _Sums(*(own - sum(rest) for own, *rest in zip(self, *others, strict=True)))

    def plus(self, others: Iterable[_Sums]) -> _Sums:
        """With the others."""
        return _Sums(*map(sum, zip(self, *others, strict=True)))

    def shown(self, *, operator: bool) -> dict[str, Any]:
        """The fields of `Numbers`."""
        for_all = {
            "requests": self.requests,
            "input_tokens": self.prompt,
            "cached_tokens": self.cached,
            "output_tokens": self.completion,
            "charge_usd": usd_text(Nusd(self.charge)),
            "unpriced_requests": self.unpriced,
        }
        if not operator:
            return for_all
        margin = self.charge - self.unknown_charge - self.cost
        return {
            **for_all,
            "cost_usd": usd_text(Nusd(self.cost)),
            "unknown_cost_requests": self.unknown,
            "unknown_cost_charge_usd": usd_text(Nusd(self.unknown_charge)),
            "margin_usd": usd_text(Nusd(margin)),
        }


def _sums(one: UsageTotals) -> _Sums:
    return _Sums(
        one.requests, one.prompt_tokens, one.cached_tokens, one.completion_tokens, one.charge_nusd, one.unpriced,
        one.cost_nusd, one.unknown_cost, one.unknown_cost_charge_nusd,
    )  # fmt: skip


_Groups = Mapping[str | None, _Sums]
"""id → sums"""


@dataclass(frozen=True, slots=True)
class UsageReportApi:
    """The routes `/v1/usage` and `/v1/usage/change`."""

    reports: LedgerReports
    unix_time: Callable[[], float]
    hides_providers: Callable[[], bool]
    """the setting `hide_providers`"""

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield Endpoint(
            method="GET", path="/v1/usage", summary="Usage of a period, in groups and buckets, with a comparison.",
            serve=self.report, query=ReportQuery, answers={200: UsageReport},
        )  # fmt: skip
        yield Endpoint(
            method="GET", path="/v1/usage/change", summary="The reasons for a change of charges between two periods.",
            serve=self.change, query=ChangeQuery, answers={200: UsageChange},
        )  # fmt: skip

    async def report(self, call: ApiCall) -> ApiReply:
        """The usage of a period. Raises ApiError, OSError."""
        query: ReportQuery = call.query
        wanted, operator = await self._wanted(call), call.session.key is None
        group = None if query.group_by is UNSET else query.group_by
        grouped = wanted if group is None else _by(wanted, group)
        in_buckets = await self._bucket_totals(query, wanted)
        total = await self._total(wanted) if query.bucket == "total" else _Sums().plus(in_buckets.values())
        groups = {} if group is None else await self._groups(grouped, query.limit)
        grouped = _only(grouped, group, groups)
        names = await self._names(group, groups)
        before = previous_period(wanted.begin, wanted.end, wanted.time_zone)
        previous, previous_groups = None, dict[str | None, _Sums]()
        if query.compare is not UNSET:
            previous = await self._total(replace(wanted, begin=before[0], end=before[1]))
            if groups:
                earlier = replace(grouped, begin=before[0], end=before[1])
                previous_groups = dict(await self._groups(earlier, ROWS_MAX))
        shown = [
            GroupNumbers(
                id=group_id,
                name=names.get(group_id),
                previous=UNSET
                if previous is None
                else Numbers(**previous_groups.get(group_id, _Sums()).shown(operator=operator)),
                **sums.shown(operator=operator),
            )
            for group_id, sums in groups.items()
        ]
        other = total.less(groups.values())
        return ApiReply(
            UsageReport(
                **_period(wanted.begin, wanted.end),
                time_zone=query.time_zone,
                basis=query.basis,
                bucket=query.bucket,
                group_by=group,
                total=Numbers(**total.shown(operator=operator)),
                groups=shown,
                other=Numbers(**other.shown(operator=operator)) if groups and any(other) else None,
                buckets=await self._buckets(in_buckets, grouped, names, _buckets_of(query, wanted), operator=operator),
                previous=PreviousPeriod(
                    **_period(*before),
                    total=UNSET if previous is None else Numbers(**previous.shown(operator=operator)),
                ),
            )
        )

    async def change(self, call: ApiCall) -> ApiReply:
        """The reasons for a change. Raises ApiError, OSError."""
        query: ChangeQuery = call.query
        wanted = await self._wanted(call)
        before = self._previous(query, wanted)
        try:
            periods = [
                await self.reports.charges(one) for one in (replace(wanted, begin=before[0], end=before[1]), wanted)
            ]
        except ValueError as wrong:
            raise invalid(f"'from': {wrong}.", "from") from None
        changes = explain_change(*periods)
        charged = [{model: one.charge_nusd + one.adjusted_nusd for model, one in period.items()} for period in periods]
        models = [
            ModelReasons(
                model=model,
                requests=periods[1][model].requests if model in periods[1] else 0,
                previous_requests=periods[0][model].requests if model in periods[0] else 0,
                charge_usd=usd_text(Nusd(charged[1].get(model, 0))),
                previous_charge_usd=usd_text(Nusd(charged[0].get(model, 0))),
                **_reasons(one),
            )
            for model, one in sorted(changes.items(), key=lambda item: (-abs(item[1].total_nusd), item[0]))
        ]
        return ApiReply(
            UsageChange(
                **_period(wanted.begin, wanted.end),
                time_zone=query.time_zone,
                basis=query.basis,
                previous=PeriodShown(**_period(*before)),
                charge_usd=usd_text(Nusd(sum(charged[1].values()))),
                previous_charge_usd=usd_text(Nusd(sum(charged[0].values()))),
                total=Reasons(**_reasons(total_change(changes))),
                models=models,
            )
        )

    # -- the period and its filter

    async def _wanted(self, call: ApiCall) -> UsageFilter:
        """The filter of the period as a whole. Raises ApiError."""
        query: PeriodQuery = call.query
        hides = self.hides_providers()
        require_visible(call.session, "provider", query.provider, hides=hides)
        if isinstance(query, ReportQuery) and query.group_by == "provider":
            require_visible(call.session, "group_by", [query.group_by], hides=hides)
        zone = _zone(query.time_zone)
        begin, end = self._span(query, zone)
        if isinstance(query, ReportQuery) and query.bucket != "total":
            buckets = Buckets(HOUR_S) if query.bucket == "hour" else Buckets(DAY_S, zone)
            begin, end = buckets.floor(begin), buckets.ceil(end)
            if end - begin > BUCKETS_MAX[query.bucket] * buckets.width_s:
                most = BUCKETS_MAX[query.bucket]
                raise invalid(f"'from': the period has more than {most} {query.bucket}s.", "from")
        given: dict[str, Any] = {ours: set(getattr(query, name)) or None for name, ours in _FILTERS.items()}
        if call.session.key is not None:
            own = {call.session.key.key_id}
            given["keys"] = own if given["keys"] is None else own & given["keys"]
        values = wanted_values(query.end_user, query.session, query.run, query.tag, "tag")
        return UsageFilter(
            begin=begin, end=end, bucket_s=DAY_S, time_zone=zone, is_total=True, is_booked=query.basis == "booking",
            dimensions=await self.reports.value_ids(values), **given,
        )  # fmt: skip

    def _span(self, query: PeriodQuery, zone: str | None) -> tuple[int, int]:
        """Raises ApiError."""
        now = int(self.unix_time()) + 1
        end = now if query.until is UNSET else _moment("to", query.until, zone)
        if query.since is UNSET:
            begin = int(day_start(zone, local_day(zone, end - 1).replace(day=1)))
        else:
            begin = _moment("from", query.since, zone)
        if end <= begin:
            raise invalid("'to': must be after 'from'.", "to")
        return begin, end

    def _previous(self, query: ChangeQuery, wanted: UsageFilter) -> tuple[int, int]:
        """Raises ApiError."""
        if (query.previous_from is UNSET) is not (query.previous_to is UNSET):
            raise invalid("'previous_from': must be given together with 'previous_to'.", "previous_from")
        if query.previous_from is UNSET or query.previous_to is UNSET:
            return previous_period(wanted.begin, wanted.end, wanted.time_zone)
        begin = _moment("previous_from", query.previous_from, wanted.time_zone)
        end = _moment("previous_to", query.previous_to, wanted.time_zone)
        if end <= begin:
            raise invalid("'previous_to': must be after 'previous_from'.", "previous_to")
        return begin, end

    # -- sums

    async def _read(self, wanted: UsageFilter, rows_max: int) -> list[UsageTotals]:
        """Totals; of a single bucket, the groups with the highest charges. Raises ApiError, also if buckets are left
        out; OSError."""
        try:
            totals, until = await self.reports.usage(wanted, rows_max)
        except ValueError as wrong:  # archived entries
            raise invalid(f"'from': {wrong}.", "from") from None
        if until < wanted.end:
            message = (
                f"'bucket': the buckets of this period have more than {rows_max:,} groups: choose a longer bucket."
            )
            raise invalid(message, "bucket")
        return totals

    async def _total(self, wanted: UsageFilter) -> _Sums:
        return next(map(_sums, await self._read(wanted, 1)), _Sums())

    async def _groups(self, wanted: UsageFilter, limit: int) -> _Groups:
        return {_id(one): _sums(one) for one in await self._read(wanted, limit)}

    async def _bucket_totals(self, query: ReportQuery, wanted: UsageFilter) -> dict[int, _Sums]:
        """Begin → sums, of all buckets; empty for the period as a whole. Raises ApiError, OSError."""
        if query.bucket == "total":
            return {}
        buckets = _buckets_of(query, wanted)
        divided = _divided(wanted, buckets)
        found = {one.begin: _sums(one) for one in await self._read(divided, ROWS_MAX)}
        return {begin: found.get(begin, _Sums()) for begin in buckets.between(wanted.begin, wanted.end)}

    async def _buckets(
        self,
        totals: Mapping[int, _Sums],
        grouped: UsageFilter,
        names: Mapping[str | None, str | None],
        buckets: Buckets,
        *,
        operator: bool,
    ) -> list[BucketNumbers]:
        """The buckets with these totals, and their groups. Raises ApiError, OSError."""
        if len(totals) * max(1, len(names)) > ROWS_MAX:
            raise invalid(f"'limit': {len(names)} groups in {len(totals)} buckets are too many.", "limit")
        by_bucket: dict[int, list[GroupNumbers]] = {}
        for one in await self._read(_divided(grouped, buckets), ROWS_MAX) if names and totals else ():
            if _id(one) in names:
                numbers = _sums(one).shown(operator=operator)
                shown = GroupNumbers(id=_id(one), name=names[_id(one)], **numbers)
                by_bucket.setdefault(one.begin, []).append(shown)
        return [
            BucketNumbers(
                **_period(begin, buckets.end_of(begin)),
                groups=by_bucket.get(begin, []),
                **sums.shown(operator=operator),
            )
            for begin, sums in totals.items()
        ]

    async def _names(self, group: str | None, groups: _Groups) -> Mapping[str | None, str | None]:
        """Id → name. Raises OSError."""
        ids = [one for one in groups if one is not None]
        if group in ("organization", "project", "key"):
            owners = await self.reports.owners(ids)
            named: dict[str, str | None] = {one: owners[one].name if one in owners else None for one in ids}
        elif group in _GROUPS:
            named = dict(zip(ids, ids, strict=True))
        else:
            named = {one: value.value for one, value in (await self.reports.shown(ids)).items()}
        return {one: None if one is None else named[one] for one in groups}


def _by(wanted: UsageFilter, group: str) -> UsageFilter:
    chosen: dict[str, Any] = {f"by_{group}": True} if group in _GROUPS else {"by_dimension": group}
    return replace(wanted, **chosen)


def _only(wanted: UsageFilter, group: str | None, groups: _Groups) -> UsageFilter:
    """Only these groups, so that a bucket has no other ones."""
    ids = {one for one in groups if one is not None}
    if group is None or None in groups:
        return wanted
    dimensions = {**wanted.dimensions, group: ids}
    chosen: dict[str, Any] = {_FILTERS[_GROUPS[group]]: ids} if group in _GROUPS else {"dimensions": dimensions}
    return replace(wanted, **chosen)


def _id(one: UsageTotals) -> str | None:
    """The id of the only group."""
    ids = (one.organization_id, one.project_id, one.key_id, one.model, one.provider, one.value_id)
    return next((each for each in ids if each is not None), None)


def _period(begin: int, end: int) -> dict[str, Any]:
    return {"since": iso_utc(begin), "until": iso_utc(end)}


def _reasons(change: Change) -> dict[str, str]:
    return {
        "difference_usd": usd_text(change.total_nusd),
        "volume_usd": usd_text(change.volume_nusd),
        "mix_usd": usd_text(change.mix_nusd),
        "price_usd": usd_text(change.price_nusd),
        "adjustments_usd": usd_text(change.adjustments_nusd),
    }


def _buckets_of(query: ReportQuery, wanted: UsageFilter) -> Buckets:
    return Buckets(HOUR_S) if query.bucket == "hour" else Buckets(DAY_S, wanted.time_zone)


def _divided(wanted: UsageFilter, buckets: Buckets) -> UsageFilter:
    return replace(wanted, is_total=False, bucket_s=buckets.width_s, time_zone=buckets.time_zone)


def _zone(name: str) -> str | None:
    """The time zone; None: UTC. Raises ApiError."""
    if name in _UTC:
        return None
    try:
        return checked_time_zone(name)
    except ValueError as wrong:
        raise invalid(f"'time_zone': {wrong}.", "time_zone") from None


def _moment(param: str, text: str, zone: str | None) -> int:
    """Unix seconds. Raises ApiError."""
    if text.isdecimal() and text.isascii():
        at: float | None = float(text) if len(text) <= 12 else None
    else:
        at = iso_time(text, UTC if zone is None else ZoneInfo(zone))
    if at is None or not 0 <= at <= _TIME_MAX:
        raise invalid(f"'{param}': must be a date (2026-11-01), a time (2026-11-01T12:00:00Z) or Unix seconds.", param)
    return int(at)
