"""Grants by the admin API: as the command makes them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.stand import Stand

pytestmark = pytest.mark.io

TRIAL = {"account": "proj_default", "name": "trial", "usd": 5, "expires": "14d"}


def test_the_life_of_a_grant(stand: Stand) -> None:
    made = stand.post("/grant/add", TRIAL)
    assert (made["scope_id"], made["granted"], made["left"], made["recurs"]) == ("proj_default", 5, 5, None)
    again = stand("POST", "/grant/add", TRIAL)
    assert (again.status, again.body["error"]["param"]) == (400, "name")
    monthly = {"account": "org_default", "name": "monthly", "usd": 0.5, "recurs": "calendar_month", "begins": "7d"}
    later = stand.post("/grant/add", {**monthly, "time_zone": "Europe/Berlin", "priority": 10})
    assert (later["granted"], later["priority"], later["time_zone"]) == (0, 10, "Europe/Berlin")
    assert stand.get("/grant/list?account=proj_default")["grants"] == [made]
    assert [one["id"] for one in stand.get("/grant/list")["grants"]] == [made["id"], later["id"]]
    ended = stand.post("/grant/revoke", {"grant": made["id"]})
    assert (ended["expired"], ended["left"]) == (5, 0)
    assert [one["credit"] for one in stand.get("/account/list?kind=project")["accounts"]] == [0]
    done = [(one["action"], one["target"], one["result"]) for one in reversed(stand.get("/v1/audit")["data"])]
    assert done == [
        ("grant.add", "proj_default", "done"), ("grant.add", "proj_default", "refused"),
        ("grant.add", "org_default", "done"), ("grant.revoke", made["id"], "done"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("add", {**TRIAL, "usd": 0}, "usd"),
        ("add", {**TRIAL, "expires": "soon"}, "expires"),
        ("add", {**TRIAL, "expires": "never"}, "expires"),
        ("add", {**TRIAL, "begins": "20d"}, "expires"),
        ("add", {**TRIAL, "lasts": "1d"}, "lasts"),
        ("add", {**TRIAL, "time_zone": "Europe/Berlin"}, "time_zone"),
        ("add", {**TRIAL, "key": "key-1"}, "key"),
        ("add", {"name": "trial", "usd": 5}, "key"),
        ("revoke", {"grant": "nobody"}, "grant"),
    ],
)
def test_what_is_wrong_is_named(unchanged: Stand, path: str, body: dict[str, Any], param: str) -> None:
    answer = unchanged("POST", f"/grant/{path}", body)
    assert (answer.status, answer.body["error"]["param"]) == (404 if path == "revoke" else 400, param)
    assert unchanged.get("/grant/list")["grants"] == []
