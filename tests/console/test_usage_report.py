"""The console's usage reports: periods, groups, buckets, comparisons, and the reasons for a change."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.console.api.usage_report import UsageReportApi
from proxy.http.errors import ApiError
from proxy.reports.previous_period import previous_period
from proxy.reports.usage import UsageFilter
from tests.console.entries import TODAY, YESTERDAY, entry
from tests.console.stand import Stand
from tests.ledger.priced_entries import settle

pytestmark = pytest.mark.io

DAY = datetime.fromtimestamp(YESTERDAY, UTC).date().isoformat()


def usd(numbers: dict[str, Any], *names: str) -> list[int]:
    return [int(Decimal(numbers[f"{name}_usd"]).scaleb(9)) for name in names]


@pytest.fixture
def filled(stand: Stand) -> tuple[Stand, str]:
    secret = stand.key("key-1")
    stand.key("key-2", alias="bert")
    entries = [
        entry(0), replace(entry(1, key="key-2"), cost_nusd=None, provider="borealis"),
        replace(entry(2), charge_nusd=None, cost_nusd=None), entry(3, model="small"),
    ]  # fmt: skip
    settle(stand.engine, *entries, node=None)
    return stand, secret


def test_groups_with_the_others_add_up_in_each_bucket(filled: tuple[Stand, str]) -> None:
    """Before: no period but 7, 30, 90 days, no group by organization or provider, no filter, no comparison."""
    stand, _ = filled
    for group in ("organization", "key", "provider", "end_user"):
        for bucket in ("day", "hour", "total"):
            report = stand.get(f"/v1/usage?from={DAY}&group_by={group}&bucket={bucket}&limit=1&compare=previous")
            every = [*report["groups"], *([report["other"]] if report["other"] else [])]
            for name in ("requests", "unpriced_requests", "unknown_cost_requests", "input_tokens"):
                assert sum(one[name] for one in every) == report["total"][name], (group, bucket, name)
            for name in ("charge", "cost", "margin", "unknown_cost_charge"):
                assert sum(sum(usd(one, name)) for one in every) == usd(report["total"], name)[0]
                if bucket != "total":
                    assert sum(usd(one, name)[0] for one in report["buckets"]) == usd(report["total"], name)[0]
            of_groups = [one for each in report["buckets"] for one in each["groups"]]
            assert sum(one["requests"] for one in of_groups) == (
                0 if bucket == "total" else report["groups"][0]["requests"]
            )
            assert report["groups"][0]["previous"]["requests"] == report["previous"]["total"]["requests"] == 0


def test_an_unknown_amount_is_never_0(filled: tuple[Stand, str]) -> None:
    stand, secret = filled
    total = stand.get(f"/v1/usage?from={int(YESTERDAY)}&to={TODAY}&bucket=total")["total"]
    assert (total["requests"], total["unpriced_requests"], total["unknown_cost_requests"]) == (4, 1, 2)
    charge, unknown, cost, margin = usd(total, "charge", "unknown_cost_charge", "cost", "margin")
    assert (unknown, margin) == (entry(1).charge_nusd, charge - unknown - cost)
    own = stand.get(f"/v1/usage?from={DAY}&group_by=key", key=secret)
    assert own["total"]["requests"] == 3
    assert [one["id"] for one in own["groups"]] == ["key-1"]
    assert not [name for name in own["total"] if "cost" in name or "margin" in name]
    assert stand.get(f"/v1/usage?from={DAY}&key_id=key-2", key=secret)["total"]["requests"] == 0


def test_filters_names_and_zones(filled: tuple[Stand, str]) -> None:
    stand, _ = filled

    def requests(query: str) -> int:
        found: int = stand.get(f"/v1/usage?from={DAY}&{query}")["total"]["requests"]
        return found

    assert requests("key_id=key-2&key_id=key-1") == 4
    assert (
        requests("provider=borealis")
        == requests("key_id=key-2")
        == requests("organization_id=org_default&key_id=key-2")
        == 1
    )
    assert requests("model=small&project_id=proj_default") == 1
    assert requests("end_user=alice") == 0
    groups = stand.get(f"/v1/usage?from={DAY}&group_by=key")["groups"]
    assert {one["id"]: one["name"] for one in groups} == {"key-1": "key-1", "key-2": "bert"}
    shown = stand.get(f"/v1/usage?from={DAY}&to={DAY}T12:00:00&time_zone=Europe/Berlin&bucket=total")
    at = datetime.fromisoformat(shown["to"]) - datetime.fromisoformat(shown["from"])
    assert at.total_seconds() == 12 * 3_600
    assert shown["from"] != f"{DAY}T00:00:00.000000Z"
    booked = stand.get(f"/v1/usage?from={DAY}&basis=booking&group_by=model")
    assert (booked["basis"], booked["total"]) == ("booking", stand.get(f"/v1/usage?from={DAY}")["total"])


WRONG = {
    "from=yesterday": "from", f"from={DAY}&to={DAY}": "to", f"from={DAY}&time_zone=Berlin": "time_zone",
    "from=0": "from", f"from={DAY}&group_by=colour": "group_by", f"from={DAY}&basis=x": "basis",
    f"from={DAY}&tag=red": "tag", "from=1&from=2": "from",
}  # fmt: skip


def test_groups_of_too_many_buckets_are_refused() -> None:
    """Before: the groups of the last buckets were left out, without a word, where one group is the rest."""
    wanted = UsageFilter(begin=0, end=7_200, bucket_s=3_600)

    class Reports:
        async def usage(self, _wanted: UsageFilter, rows_max: int) -> tuple[list[Any], int]:
            return [], 7_200 if rows_max > 5 else 3_600

    api = UsageReportApi(Reports(), lambda: 0.0, lambda: False)  # type: ignore[arg-type]
    assert asyncio.run(api._read(wanted, 6)) == []
    with pytest.raises(ApiError) as refused:
        asyncio.run(api._read(wanted, 5))
    assert (refused.value.status, refused.value.param) == (400, "bucket")


def test_what_is_no_period_is_refused_by_its_name(filled: tuple[Stand, str]) -> None:
    stand, _ = filled
    for query, param in WRONG.items():
        refused = stand("GET", f"/v1/usage?{query}")
        assert (refused.status, refused.body["error"]["param"]) == (400, param), (query, refused.body)
    refused = stand("GET", f"/v1/usage/change?from={DAY}&previous_from={DAY}")
    assert (refused.status, refused.body["error"]["param"]) == (400, "previous_from")


def test_why_a_bill_is_higher(filled: tuple[Stand, str]) -> None:
    """Before: by an export and a script of one's own."""
    stand, secret = filled
    change = stand.get(f"/v1/usage/change?from={DAY}")
    reasons = [usd(change["total"], name)[0] for name in ("volume", "mix", "price", "adjustments")]
    (difference,) = usd(change["total"], "difference")
    assert sum(reasons) == difference == usd(change, "charge")[0] - usd(change, "previous_charge")[0] > 0
    assert reasons == [difference, 0, 0, 0], "there was nothing before"
    assert {one["model"]: one["requests"] for one in change["models"]} == {"tera-large": 3, "small": 1}
    own = stand.get(f"/v1/usage/change?from={DAY}&previous_from=2026-01-01&previous_to=2026-02-01", key=secret)
    assert sum(one["requests"] for one in own["models"]) == 3
    assert own["previous"] == {"from": "2026-01-01T00:00:00.000000Z", "to": "2026-02-01T00:00:00.000000Z"}


def test_the_previous_period() -> None:
    def at(text: str) -> int:
        return int(datetime.fromisoformat(f"{text}+00:00").timestamp())

    months = previous_period(at("2026-11-01"), at("2026-12-01"), None)
    assert months == (at("2026-10-01"), at("2026-11-01"))
    assert previous_period(at("2026-01-01"), at("2026-04-01"), None) == (at("2025-10-01"), at("2026-01-01"))
    assert previous_period(at("2026-11-02"), at("2026-11-09"), None) == (at("2026-10-26"), at("2026-11-02"))
    assert previous_period(at("2026-11-02T06:00"), at("2026-11-02T09:00"), None)[0] == at("2026-11-02T03:00")
    clocks_change = previous_period(at("2026-10-25T23:00"), at("2026-10-26T23:00"), "Europe/Berlin")
    assert clocks_change == (at("2026-10-24T22:00"), at("2026-10-25T23:00")), "a day of 25 hours"
