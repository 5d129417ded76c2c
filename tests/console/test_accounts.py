"""Organizations, projects and what is paid in, by the console: each change is put down, each payment counts once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from proxy.billing.limits import Limits, credit_counter_id
from proxy.billing.money import usd_text
from proxy.billing.reservation import CounterState
from proxy.foundation.ids import exchange_id
from proxy.keys.narrowing import narrowed_text
from proxy.reports.totals import read_paid
from tests.console.entries import entry
from tests.console.stand import Stand
from tests.ledger.priced_entries import settle

pytestmark = pytest.mark.io

USD = 10**9


def did(stand: Stand) -> list[tuple[str, str, str]]:
    """What was done, oldest first."""
    return [(one["action"], one["target"], one["result"]) for one in reversed(stand.get("/v1/audit")["data"])]


def test_the_life_of_a_project(stand: Stand) -> None:
    acme = stand.post("/account/new", {"kind": "organization", "name": "acme", "max_budget": 50, "rpm_limit": 9})
    made = stand.post("/account/new", {"kind": "project", "name": "web", "organization": "acme", "prepaid": True})
    assert (acme["max_budget"], acme["budget_duration"], acme["organization_id"]) == (50, None, None)
    assert (made["kind"], made["organization_id"], made["prepaid"], made["credit"]) == (
        "project", acme["id"], True, 0,
    )  # fmt: skip
    changed = {"account": made["id"], "name": "shop", "budget_duration": "30d", "organization_id": acme["id"]}
    named = stand.post("/account/update", changed)
    assert named == {**made, "name": "shop"}
    secret = stand.post("/key/generate", {"key_alias": "anna", "team_id": "shop"})["key"]
    narrowable = stand.post("/key/generate", {"key_alias": "bert", "narrowable": True})
    again = stand.post("/key/bert/regenerate", {"narrowable": True})
    assert {one["key"].partition(".")[0] for one in (narrowable, again)} == {f"tw-{narrowable['token']}"}
    assert stand.get("/v1/me", key=again["key"])["key_id"] == narrowable["token"]
    assert stand.post("/key/update", {"key": again["key"], "rpm_limit": 5})["token"] == narrowable["token"]
    narrowed = narrowed_text(again["key"], ["usd=5"])
    refused = stand("GET", "/v1/me", key=narrowed)
    assert (refused.status, refused.body["error"]["code"]) == (403, "narrowed_key")
    assert "Use the key that it was made from." in refused.body["error"]["message"]
    assert stand("POST", "/key/update", {"key": narrowed, "rpm_limit": 6}).status == 404
    assert stand("GET", "/v1/me", key=f"{again['key'][:-9]}AAAAAAAAA").status == 401
    assert stand.post("/account/block", {"account": "acme"})["blocked"] is True
    assert stand("GET", "/v1/me", key=secret).status == 401
    assert stand.post("/account/unblock", {"account": "acme"}) == acme
    assert stand.get("/v1/me", key=secret)["role"] == "key"
    unknown = stand("POST", "/account/block", {"account": "nobody"})
    assert (unknown.status, unknown.body["error"]["code"]) == (404, "account_not_found")
    every = stand.get("/account/list?size=3&page=1")
    assert [one["name"] for one in every["accounts"]] == ["default", "default", "acme"]
    assert (every["total_count"], every["total_pages"]) == (4, 2)
    assert [one["name"] for one in stand.get("/account/list?kind=project")["accounts"]] == ["default", "shop"]
    assert did(stand) == [
        ("account.create-organization", acme["id"], "done"),
        ("account.create-project", made["id"], "done"),
        ("account.update", made["id"], "done"),
        ("key.generate", stand.get("/v1/me", key=secret)["key_id"], "done"),
        ("key.generate", narrowable["token"], "done"),
        ("key.regenerate", narrowable["token"], "done"),
        ("key.update", narrowable["token"], "done"),
        ("account.block", acme["id"], "done"),
        ("account.unblock", acme["id"], "done"),
        ("account.block", "nobody", "refused"),
    ]


def test_a_field_has_the_name_of_the_answers(stand: Stand) -> None:
    """Before: a project was listed with `organization_id`, and `organization_id` was refused for a new one."""
    acme = stand.post("/account/new", {"kind": "organization", "name": "acme"})["id"]
    for number, name in enumerate(("organization_id", "organization")):
        made = stand.post("/account/new", {"kind": "project", "name": f"web {number}", name: acme})
        assert made["organization_id"] == acme
    for number, name in enumerate(("team_id", "project_id")):
        stand.post("/key/generate", {"key_alias": f"key {number}", name: "web 0"})
        assert stand.get(f"/key/list?{name}={stand.get('/account/list?q=web%200')['accounts'][0]['id']}")["keys"]
    documented = stand("GET", "/openapi.json", key=None).body["components"]["schemas"]["NewAccount"]["properties"]
    assert [name for name in documented if "organ" in name] == ["organization_id"]


def test_what_is_paid_in_counts_once_however_often_it_is_asked_for(stand: Stand) -> None:
    stand.key(alias="anna", limits=Limits(prepaid=True))
    settle(stand.engine, entry(1), node=None)
    used = entry(1).charge_nusd
    paid = {"key": "anna", "usd": 25.5, "reason": "invoice 7", "id": exchange_id()}
    first = stand.post("/credit/add", paid)
    assert (first["scope_id"], first["usd"], first["credit"], first["spend"]) == ("key-1", 25.5, 25.5, used / USD)
    assert stand.post("/credit/add", paid) == first
    other = stand("POST", "/credit/add", {**paid, "usd": 26})
    assert (other.status, other.body["error"]["param"]) == (400, "id")
    assert stand.post("/credit/add", {"key": "key-1", "usd": -0.5, "reason": "paid back"})["credit"] == 25
    assert stand.post("/credit/add", {"account": "proj_default", "usd": 3, "reason": "card"})["spend"] == used / USD
    assert read_paid(stand.engine, ["key-1"])["key-1"].left_nusd == 25 * USD - used
    (info,) = stand.get("/key/list")["keys"]
    assert (info["credit"], info["spend"]) == (25, used / USD)
    assert [one[1:] for one in did(stand)] == [
        ("key-1", "done"), ("key-1", "done"), ("key-1", "refused"), ("key-1", "done"), ("proj_default", "done"),
    ]  # fmt: skip
    (act,) = [one for one in stand.get("/v1/audit")["data"] if one["result"] == "refused"]
    assert (act["details"]["usd"], act["details"]["reason"]) == (26.0, "invoice 7")


def test_prepaid_stands_among_the_budgets(stand: Stand) -> None:
    secret = stand.key(limits=Limits(prepaid=True))
    stand.key("key-2", limits=Limits())
    stand.post("/credit/add", {"key": "key-1", "usd": 10, "reason": "card"})
    gates = [CounterState(credit_counter_id(name), 0.0, -4 * USD, USD, 1, 0) for name in ("key-1", "key-2")]
    stand.budgets.gates = [*gates, CounterState(credit_counter_id("gone"), 0.0, None, 0, 0, 0)]
    for key in ({}, {"key": secret}):
        (shown,) = stand.get("/v1/budgets", **key)["data"]
        assert (shown["window"], shown["budget_usd"], shown["spent_usd"], shown["held_usd"], shown["used_ratio"]) == (
            "credit", "10", "6", "1", 0.6,
        )  # fmt: skip
        assert (shown["name"], shown["window_end"]) == ("key-1", None)


def test_a_budget_without_a_counter_has_the_spend_of_the_ledger(stand: Stand) -> None:
    """Before: no budget was shown until its first request after the store was emptied, and a new one never."""
    secret = stand.key(limits=Limits(budget_nusd=10 * USD, budget_window="none"))
    stand.key("key-2", limits=Limits(budget_nusd=5 * USD, prepaid=True))
    stand.key("key-3", limits=Limits(rpm=5))
    settle(stand.engine, entry(1), node=None)
    spent = usd_text(entry(1).charge_nusd or 0)
    stand.budgets.gates = [CounterState("key-2", 0.0, None, USD, 1, 0)]  # emptied while a request ran

    def budgets(**key: str) -> list[tuple[str, ...]]:
        found = stand.get("/v1/budgets", **key)["data"]
        return sorted(
            (one["name"], one["window"], one["budget_usd"], one["spent_usd"], one["held_usd"]) for one in found
        )

    own = ("key-1", "none", "10", spent, "0")
    assert budgets() == [own, ("key-2", "30d", "5", "0", "1"), ("key-2", "credit", "0", "0", "0")]
    assert budgets(key=secret) == [own]
    (line,) = stand.get("/key/list?q=key-1")["keys"]
    assert line["budget_use"]["spent_usd"] == spent


def test_acts_are_paged_without_a_gap(stand: Stand) -> None:
    for number in range(5):
        stand.post("/account/update", {"account": "proj_default", "rpm_limit": number + 1})
    found: list[Any] = []
    page = stand.get("/v1/audit?limit=2")
    while True:
        found += page["data"]
        if not page["has_more"]:
            break
        page = stand.get(f"/v1/audit?limit=2&after={page['next_after']}")
    assert [one["details"]["rpm_limit"] for one in found] == [5, 4, 3, 2, 1]
    assert page["next_after"] is None


def test_acts_are_filtered(stand: Stand) -> None:
    stand.key("key-1", alias="anna")
    stand.post("/key/block", {"key": "anna"})
    stand.post("/account/update", {"account": "proj_default", "rpm_limit": 5})
    stand("POST", "/account/block", {"account": "nobody"})

    def found(query: str) -> list[str]:
        return [one["action"] for one in stand.get(f"/v1/audit?{query}")["data"]]

    assert found("") == ["account.block", "account.update", "key.block"]
    assert found("action=account") == ["account.block", "account.update"]
    assert found("action=key.block&actor=admin") == found("q=KEY-") == found("target=key-1") == ["key.block"]
    assert found("result=refused") == ["account.block"]
    assert found("start_time=0&end_time=5") == found("actor=ben") == found("action=acc") == []
    assert stand("GET", "/v1/audit?result=lost").status == 400


def test_a_wrong_type_is_named_as_json_names_it(stand: Stand) -> None:
    wrong: list[tuple[str, Any, str]] = [
        ("max_budget", "5", "'max_budget': must be a number from 0 to 1,000,000 or null, not text."),
        ("max_budget", 1e9, "'max_budget': must be a number from 0 to 1,000,000 or null."),
        ("rpm_limit", 1.5,
         "'rpm_limit': must be a whole number from 1 to 1,000,000,000 or null, not a decimal number."),
        ("prepaid", 1, "'prepaid': must be true or false, not a whole number."),
        ("models", "one", "'models': must be a list of at most 1,000 elements or null, not text."),
        ("key_alias", "", "'key_alias': must be text of 1 to 128 characters."),
        ("on_exhausted", "stop", "'on_exhausted': must be one of cut and finish."),
        ("tags", ["a", 5], "'tags' (tags[1]): must be text of 1 to 64 characters, not a whole number."),
        (
            "budget_raise", {"usd": 0, "until": "3d"},
            "'budget_raise' (budget_raise.usd): must be a number above 0 and at most 1,000,000.",
        ),
    ]  # fmt: skip
    for name, value, message in wrong:
        refused = stand("POST", "/key/generate", {name: value})
        assert (refused.status, refused.body["error"]["message"]) == (400, message)
    outcomes = "served client_left upstream_failed upstream_stalled budget_cut shut_down crashed refused_upstream"
    groups = "one of organization, project, key, model, provider, end_user, session, run and tag:NAME"
    refused = stand("GET", "/v1/exchanges?outcome=zzz").body["error"]["message"]
    assert sorted(re.split(", | and ", refused.removeprefix("'outcome': must be one of ").removesuffix("."))) == sorted(
        outcomes.split()
    )
    queries = {
        "/v1/exchanges?limit=soon": "'limit': must be a whole number from 1 to 200, not text.",
        "/v1/exchanges?after=1": "'after': must be a cursor of this list: 'next_after' of the last page.",
        "/v1/usage?group_by=colour": f"'group_by': must be {groups}.",
    }
    assert {path: stand("GET", path).body["error"]["message"] for path in queries} == queries
