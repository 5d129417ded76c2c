"""Limits by rule, by the admin API: as the command makes them, and no person's id in the audit log."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.stand import Stand

pytestmark = pytest.mark.io

EACH = {"name": "per-user", "account": "proj_default", "split_by": ["End_User"], "max_budget": 5}


def test_the_life_of_a_limit(stand: Stand) -> None:
    made = stand.post("/limit/new", {**EACH, "budget_duration": "calendar_day", "time_zone": "Europe/Berlin"})
    assert made["id"].startswith("rule_")
    assert (made["scope_id"], made["split_by"], made["max_budget"]) == ("proj_default", ["end_user"], 5)
    assert (made["budget_duration"], made["time_zone"], made["required"]) == ("calendar_day", "Europe/Berlin", False)
    new = {"max_budget": 8, "models": ["gpt-4*"], "required": True, "fallback_model": "gpt-3"}
    changed = stand.post("/limit/update", {"limit": "per-user", **new})
    assert changed == {**made, **new}
    plain = stand.post("/limit/new", {"name": "all", "rpm_limit": 100, "providers": ["one"]})
    assert (plain["providers"], changed["providers"]) == (["one"], [])
    assert stand.get("/limit/list")["limits"] == [changed, plain]
    unset = stand.post("/limit/update", {"limit": made["id"], "fallback_model": None})
    assert unset == {**changed, "fallback_model": None}
    assert stand.post("/limit/delete", {"limit": made["id"]}) == unset
    assert stand.get("/limit/list")["limits"] == [plain]
    done = [(one["action"], one["target"]) for one in reversed(stand.get("/v1/audit")["data"])]
    assert done == [
        ("limit.create", made["id"]), ("limit.update", "per-user"), ("limit.create", plain["id"]),
        ("limit.update", made["id"]), ("limit.delete", made["id"]),
    ]  # fmt: skip


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
        ("new", {**EACH, "fallback_model": "m"}, "fallback_model", "counts in this limit, too"),
        ("update", {"limit": "nobody", "rpm_limit": 5}, "limit", "no limit has the id or the name 'nobody'"),
    ],
)
def test_what_is_wrong_is_named(stand: Stand, path: str, body: dict[str, Any], param: str, words: str) -> None:
    answer = stand("POST", f"/limit/{path}", body)
    assert answer.status == (404 if path == "update" else 400)
    assert answer.body["error"]["param"] == param
    assert words in answer.body["error"]["message"]
    assert stand.get("/limit/list")["limits"] == []
