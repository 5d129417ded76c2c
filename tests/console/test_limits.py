"""Limits by rule, by the admin API: as the command makes them, and no person's id in the audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.console.stand import Stand

pytestmark = pytest.mark.io

NEXT_YEAR = datetime.now(UTC).year + 1

EACH = {"name": "per-user", "account": "proj_default", "split_by": ["End_User"], "max_budget": 5}


def test_the_life_of_a_limit(stand: Stand) -> None:
    made = stand.post("/limit/new", {**EACH, "budget_duration": "calendar_day", "time_zone": "Europe/Berlin"})
    assert made["id"].startswith("rule_")
    assert (made["scope_id"], made["split_by"], made["max_budget"]) == ("proj_default", ["end_user"], 5)
    assert (made["budget_duration"], made["time_zone"], made["required"]) == ("calendar_day", "Europe/Berlin", False)
    assert (made["quotas"], made["thresholds"], made["budget_raise"], made["alert_only"]) == ({}, None, None, False)
    new = {"max_budget": 8, "models": ["gpt-4*"], "required": True, "fallback_model": "gpt-3"}
    changed = stand.post("/limit/update", {"limit": "per-user", **new})
    assert changed == {**made, **new, "max_budget_usd": "8"}
    more = {"usd": 2.5, "until": f"{NEXT_YEAR}-01-31"}
    own = {"quotas": {"requests": 9}, "thresholds": [70, 90], "budget_duration": "1d"}
    plain = stand.post(
        "/limit/new",
        {"name": "all", "max_budget": 3, **own, "budget_raise": more, "alert_only": True, "providers": ["one"]},
    )
    assert {name: plain[name] for name in own} == own
    assert plain["budget_raise"] == {"usd": 2.5, "amount_usd": "2.5", "until": f"{NEXT_YEAR}-01-31T00:00:00.000000Z"}
    less = {"quotas": {"requests": 8}, "budget_raise": None, "alert_only": False}
    plain = stand.post("/limit/update", {"limit": "all", **less})
    assert {name: plain[name] for name in less} == less
    assert changed["providers"] == []
    assert stand.get("/limit/list")["limits"] == [changed, plain]
    unset = stand.post("/limit/update", {"limit": made["id"], "fallback_model": None})
    assert unset == {**changed, "fallback_model": None}
    assert stand.post("/limit/delete", {"limit": made["id"]}) == unset
    assert stand.get("/limit/list")["limits"] == [plain]
    done = [(one["action"], one["target"]) for one in reversed(stand.get("/v1/audit")["data"])]
    assert done == [
        ("limit.create", made["id"]), ("limit.update", "per-user"), ("limit.create", plain["id"]),
        ("limit.update", "all"),
        ("limit.update", made["id"]), ("limit.delete", made["id"]),
    ]  # fmt: skip


def test_one_list_of_all_limits(stand: Stand) -> None:
    project = stand.post("/account/new", {"kind": "project", "name": "chat", "organization": "default", "rpm_limit": 9})
    keys = [
        stand.post("/key/generate", {"key_alias": f"app-{number}", "team_id": project["id"], "max_budget": 5})
        for number in range(3)
    ]
    stand.post("/key/generate", {"key_alias": "unlimited"})
    rule = stand.post("/limit/new", {**EACH, "account": "chat"})
    first, last = (stand.get(f"/limit/list?all=true&size=3&page={page}") for page in (1, 2))
    assert (first["total_count"], last["total_count"]) == (5, 5)
    found = [*first["limits"], *last["limits"]]
    assert found[0] == rule
    assert [(one["kind"], one["name"]) for one in found[1:]] == [
        ("project", "project chat"), ("key", "key app-2"), ("key", "key app-1"), ("key", "key app-0"),
    ]  # fmt: skip
    assert (found[1]["id"], found[1]["rpm_limit"]) == (project["id"], 9)
    assert (found[-1]["id"], found[-1]["max_budget"], found[-1]["prepaid"]) == (keys[0]["token"], 5, False)
    (own, *others) = stand.get("/limit/list?key=app-1")["limits"]
    assert [own, *others] == [found[3], found[1], rule]
    assert stand("GET", "/limit/list?key=nobody").status == 404
    refused = stand("POST", "/limit/update", {"limit": project["id"], "max_budget": 1})
    assert refused.status == 404
    assert "the limits of a project are changed with" in str(refused.body)


def test_one_value_is_shown_and_not_in_the_audit_log(stand: Stand) -> None:
    only = {"end_user": "alice@example.com", "tag:stage": "test"}
    made = stand.post("/limit/new", {"name": "alice", "account": "proj_default", "only": only, "max_budget": 50})
    assert made["only"] == only
    assert stand.get("/limit/list")["limits"] == [made]
    assert "alice@" not in str(stand.get("/v1/audit"))


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("new", {**EACH, "split_by": ["user"]}, "split_by", "'user' is no dimension"),
        ("new", {**EACH, "only": {"end_user": " "}}, "only", "a value is empty"),
        ("new", {"name": "a", "max_budget": 5, "only": {"run": "1"}}, "only", "needs a key or a project"),
        ("new", {**EACH, "max_budget": None}, "max_budget", "give at least one"),
        ("new", {**EACH, "key": "k"}, "key", "not both"),
        ("new", {**EACH, "required": True, "split_by": []}, "required", "needs split_by"),
        ("new", {**EACH, "prepaid": True}, "prepaid", "prepaid"),
        ("new", {**EACH, "time_zone": "Berlin", "budget_duration": "calendar_day"}, "time_zone", "not a time zone"),
        ("new", {**EACH, "models": ["a*b"]}, "models", "must be names of models"),
        ("new", {**EACH, "providers": ["One"]}, "providers", "names of providers"),
        ("new", {**EACH, "quotas": {"days": 1}}, "quotas", "one of requests, input_tokens"),
        ("new", {**EACH, "budget_raise": {"usd": 1, "until": "never"}}, "budget_raise", "must end"),
        ("new", {"name": "a", "rpm_limit": 1, "alert_only": True}, "alert_only", "needs a budget"),
        ("new", {**EACH, "fallback_model": "m"}, "fallback_model", "counts in this limit, too"),
        ("update", {"limit": "nobody", "rpm_limit": 5}, "limit", "no limit has the id or the name 'nobody'"),
    ],
)
def test_what_is_wrong_is_named(unchanged: Stand, path: str, body: dict[str, Any], param: str, words: str) -> None:
    answer = unchanged("POST", f"/limit/{path}", body)
    assert answer.status == (404 if path == "update" else 400)
    assert answer.body["error"]["param"] == param
    assert words in answer.body["error"]["message"]
    assert unchanged.get("/limit/list")["limits"] == []
