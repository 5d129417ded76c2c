"""Dimensions in the admin API: usage by end user or tag, and filters."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from proxy.billing.dimensions import OVERFLOW
from proxy.ledger.dimensions.sums import add_up
from proxy.ledger.dimensions.values import DimensionValues
from proxy.reports import exchange_search
from proxy.reports.buckets import DAY_S
from tests.console.entries import TODAY, YESTERDAY, entry
from tests.console.stand import Stand
from tests.ledger.dimensions.filled import ids_of, with_dimensions
from tests.ledger.priced_entries import settle

pytestmark = pytest.mark.io


@pytest.fixture
def ids(stand: Stand) -> dict[str, str]:
    """Five exchanges of yesterday: two of Alice, one of Bob in the red team, one without an id, one of nobody; some of
    them are in the daily sums. Returns the value ids."""
    alice, bob = ids_of(stand.engine, end_user="alice", run="42"), ids_of(stand.engine, end_user="bob", tag_team="red")
    settle(stand.engine, with_dimensions(entry(0), alice), with_dimensions(entry(1), bob), node=None)
    add_up(stand.engine)
    other = {"end_user": OVERFLOW}
    settle(stand.engine, with_dimensions(entry(2), alice), with_dimensions(entry(3), other), entry(4), node=None)
    return {"alice": alice["end_user"], "bob": bob["end_user"], "red": bob["tag:team"]}


def usage(stand: Stand, query: str, path: str = "usage/completions") -> list[Any]:
    """The results of yesterday."""
    page = stand.get(f"/v1/organization/{path}?start_time={TODAY - DAY_S}&end_time={TODAY}&{query}")
    return [result for bucket in page["data"] for result in bucket["results"]]


def test_usage_and_costs_by_end_user_add_up_to_those_of_all(stand: Stand, ids: dict[str, str]) -> None:
    results = {one["user_id"]: one for one in usage(stand, "group_by=user_id")}
    assert {name: one["num_model_requests"] for name, one in results.items()} == {
        "alice": 2, "bob": 1, "(other)": 1, None: 1,
    }  # fmt: skip
    assert results["alice"]["dimensions"] == {"end_user": {"value": "alice", "value_id": ids["alice"]}}
    assert results["(other)"]["dimensions"] == {"end_user": {"value": None, "value_id": OVERFLOW}}
    assert results[None]["dimensions"] == {"end_user": None}
    (every,) = usage(stand, "")
    assert sum(one["input_tokens"] for one in results.values()) == every["input_tokens"]
    assert "dimensions" not in every
    (costs,) = usage(stand, "", "costs")
    by_user = usage(stand, "group_by[]=user_id&group_by[]=line_item", "costs")
    nusd = [round(one["amount"]["value"] * 10**9) for one in by_user]
    assert sum(nusd) == round(costs["amount"]["value"] * 10**9)
    charge = sum(entry(number).charge_nusd for number in (0, 2))
    found = [one["dimensions"]["end_user"] for one in by_user]
    assert nusd[found.index({"value": "alice", "value_id": ids["alice"]})] == charge


def test_usage_is_filtered_by_dimensions(stand: Stand, ids: dict[str, str]) -> None:
    def requests(query: str) -> list[int]:
        return [one["num_model_requests"] for one in usage(stand, query)]

    assert requests("user_ids=alice") == [2]
    assert requests("user_ids=alice&user_ids=bob") == [3]
    assert requests(f"user_ids={ids['bob']}") == [1]
    assert requests(f"user_ids={quote('(other)')}") == [1]
    assert requests("user_ids=nobody") == []
    assert requests("tags=team%3Dred") == requests("user_ids=bob&tags=Team%3Dred") == [1]
    assert requests("user_ids=alice&tags=team%3Dred") == []
    assert requests("runs=42&user_ids=alice&bucket_width=1h&limit=24") == [2]
    by_tag = usage(stand, "group_by=tag:team&user_ids=bob")
    assert [one["dimensions"] for one in by_tag] == [{"tag:team": {"value": "red", "value_id": ids["red"]}}]


def test_an_erased_value_is_shown_and_found_by_its_id(stand: Stand, ids: dict[str, str]) -> None:
    DimensionValues(stand.engine).erase([ids["alice"]])
    names = {one["user_id"]: one["num_model_requests"] for one in usage(stand, "group_by=user_id")}
    assert names[f"(erased {ids['alice']})"] == 2
    (found,) = usage(stand, f"user_ids={ids['alice']}&group_by=user_id")
    assert found["dimensions"]["end_user"] == {"value": None, "value_id": ids["alice"]}


# -- exchanges ---------------------------------------------------------------------------------------------------


def listed(stand: Stand, query: str) -> list[int]:
    """The numbers of the exchanges, read page by page."""
    numbers, after = [], ""
    while True:
        page = stand.get(f"/v1/exchanges?{query}{after}")
        numbers += [int(one["id"][-4:], 16) for one in page["data"]]
        if not page["has_more"]:
            return numbers
        after = f"&after={page['next_after']}"


@pytest.mark.parametrize("scanned_max", [1, 5_000])
def test_exchanges_are_filtered_by_dimensions(
    stand: Stand, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch, scanned_max: int
) -> None:
    """Also where a page may look at one exchange only."""
    monkeypatch.setattr(exchange_search, "PAIRS_MAX", scanned_max)
    assert listed(stand, "end_user=alice") == listed(stand, "run=42&limit=1") == [2, 0]
    assert listed(stand, f"end_user={ids['alice']}&run=42&key_id=key-1&model=tera-large&outcome=served") == [2, 0]
    assert listed(stand, "tag=team%3Dred&end_user=bob") == [1]
    assert listed(stand, "tag=team%3Dred&end_user=alice") == listed(stand, "session=x") == []
    assert listed(stand, "end_user=alice&key_id=key-2") == []
    began = int(YESTERDAY)
    assert listed(stand, f"end_user=alice&start_time={began + 1}") == [2]
    assert listed(stand, f"end_user=alice&end_time={began + 2}&start_time={began}") == [0]
    assert stand("GET", "/v1/exchanges?tag=red").status == 400


def test_an_exchange_shows_who_used_it(stand: Stand, ids: dict[str, str]) -> None:
    lines = stand.get("/v1/exchanges")["data"]
    alice, bob = ({"value": name, "value_id": ids[name]} for name in ("alice", "bob"))
    other = {"value": None, "value_id": OVERFLOW}
    assert [one["dimensions"].get("end_user") for one in lines] == [None, other, alice, bob, alice]
    shown = stand.get(f"/v1/exchanges/{lines[3]['id']}")
    assert shown["dimensions"] == {"end_user": bob, "tag:team": {"value": "red", "value_id": ids["red"]}}
    assert "dimensions" not in shown["details"]
