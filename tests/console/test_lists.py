"""The console's lists of keys and accounts: search, order, status and money as decimal strings."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.billing.limits import Limits
from proxy.billing.reservation import CounterState
from tests.console.entries import entry
from tests.console.stand import Stand
from tests.ledger.priced_entries import settle

pytestmark = pytest.mark.io

USD = 10**9


def aliases(stand: Stand, query: str, **more: Any) -> list[str]:
    page = stand.get(f"/key/list?{query}", **more)
    assert page["total_count"] == len(page["keys"])
    return [one["key_alias"] for one in page["keys"]]


def test_keys_are_found_by_status_and_text(stand: Stand) -> None:
    """Before: a page had the newest keys, and the console could show no more than a thousand of them."""
    secret = stand.key("key-1", alias="anna", limits=Limits(budget_nusd=10 * USD))
    for number, alias in ((2, "bert"), (3, "carl")):
        stand.key(f"key-{number}", alias=alias, limits=Limits(budget_nusd=10 * USD))
    settle(stand.engine, entry(1), node=None)
    stand.budgets.gates = [
        CounterState(f"key-{n}", 0.0, spent, USD, 1, 0) for n, spent in ((1, 9 * USD), (2, 10 * USD))
    ]
    stand.post("/key/block", {"key": "carl"})
    states = {
        name: aliases(stand, f"status={name}") for name in ("active", "exhausted", "blocked", "unused", "revoked")
    }
    assert states == {
        "active": ["anna"], "exhausted": ["bert"], "blocked": ["carl"], "unused": ["carl", "bert"], "revoked": [],
    }  # fmt: skip
    assert aliases(stand, "sort=budget") == ["bert", "anna", "carl"]
    assert aliases(stand, "sort=alias") == ["anna", "bert", "carl"]
    assert aliases(stand, "sort=alias&order=desc&q=AR") == ["carl"]
    assert aliases(stand, "sort=spend&size=50") == ["anna", "carl", "bert"]
    assert aliases(stand, "status=active&sort=budget", key=secret) == ["anna"]
    assert aliases(stand, "q=bert", key=secret) == []
    assert aliases(stand, "project_id=proj_default&organization_id=org_default&q=carl") == ["carl"]
    assert aliases(stand, "team_id=proj_none") == []
    refused = stand("GET", f"/key/list?q=tw-{'a' * 43}")
    assert (refused.status, refused.body["error"]["code"]) == (400, "secret_in_url")
    (line,) = stand.get("/key/list?q=anna")["keys"]
    assert (line["project"], line["organization"], line["organization_id"]) == ("default", "default", "org_default")
    assert line["budget_use"] == {
        "window": "30d", "window_end": None, "budget_usd": "10", "spent_usd": "9", "held_usd": "1", "used_ratio": 0.9,
    }  # fmt: skip
    assert line["spend_usd"] == str(line["spend"]) or float(line["spend_usd"]) == line["spend"]
    assert len(line["last_used"]) == len("2026-11-26")


def test_accounts_are_found_by_text_and_in_order(stand: Stand) -> None:
    for name in ("acme", "borealis"):
        stand.post("/account/new", {"kind": "organization", "name": name})
        stand.post("/account/new", {"kind": "project", "name": f"web of {name}", "organization": name})

    def names(query: str) -> list[str]:
        return [one["name"] for one in stand.get(f"/account/list?{query}")["accounts"]]

    assert names("q=OREAL") == ["borealis", "web of borealis"]
    assert names("kind=project&sort=name&order=desc") == ["web of borealis", "web of acme", "default"]
    assert names("status=exhausted") == []
    (acme,) = stand.get("/account/list?q=acme&kind=project")["accounts"]
    assert (acme["organization"], acme["keys"], acme["status"], acme["budget_use"]) == ("acme", 0, "active", None)
    assert (acme["spend_usd"], acme["credit_usd"], acme["max_budget_usd"]) == ("0", "0", None)
    page = stand.get("/account/list?size=2&page=2")
    assert (page["total_count"], page["total_pages"], len(page["accounts"])) == (6, 3, 2)


def test_budgets_are_found_by_text_and_status_the_fullest_first(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: one answer had all budgets, 3 MB of ten thousand, and the page sorted and searched them."""
    for number, alias in enumerate(("anna", "bert", "carl", "dora"), 1):
        stand.key(f"key-{number}", alias=alias, limits=Limits(budget_nusd=10 * USD))
    own = stand.key("key-5", alias="emil", limits=Limits(budget_nusd=10 * USD, prepaid=True))
    gone = stand.key("key-6", alias="gone", limits=Limits(budget_nusd=10 * USD))
    spent = ((1, 4), (2, 8), (3, 10), (5, 2), (6, 9))
    stand.budgets.gates = [CounterState(f"key-{number}", 0.0, usd * USD, 0, 0, 0) for number, usd in spent]
    stand.post("/key/delete", {"keys": [gone]})
    stand.post("/account/update", {"account": "proj_default", "max_budget": 5})

    def found(query: str, **more: Any) -> list[str]:
        page = stand.get(f"/v1/budgets?{query}", **more)
        assert page["total_count"] >= len(page["data"])
        return [one["name"] for one in page["data"]]

    assert found("") == ["carl", "emil", "bert", "anna", "emil", "default", "dora"], "its credit of 0 is exhausted"
    states = {name: found(f"status={name}&kind=key") for name in ("exhausted", "nearly_exhausted", "active")}
    assert states == {
        "exhausted": ["carl", "emil"], "nearly_exhausted": ["bert"], "active": ["anna", "emil", "dora"],
    }  # fmt: skip
    assert found("q=ER") == ["bert"]
    assert found("q=KEY-1") == ["anna"]
    assert found("kind=project") == ["default"]
    assert found("sort=name&size=3") == ["anna", "bert", "carl"]
    assert found("sort=spend&order=asc&size=2&kind=key") == ["dora", "emil"]
    page = stand.get("/v1/budgets?size=3&page=3")
    assert (page["total_count"], page["total_pages"], len(page["data"])) == (7, 3, 1)
    assert found("", key=own) == ["emil", "emil"]
    (first,) = stand.get("/v1/budgets?size=1")["data"]
    assert (first["status"], first["used_ratio"], first["scope_kind"]) == ("exhausted", 1.0, "key")
    assert stand("GET", "/v1/budgets?status=spent").body["error"]["param"] == "status"
    monkeypatch.setattr("proxy.reports.budget_states.UNUSED_MAX", 0)
    assert found("q=dora") == ["dora"], "a key without charges needs no read of the ledger"


def test_exchanges_are_found_by_what_people_have(stand: Stand) -> None:
    secret = stand.key("key-1")
    stand.key("key-2")
    unpriced = replace(entry(2, key="key-2"), charge_nusd=None, provider_response_id="chatcmpl-2")
    settle(stand.engine, entry(1), unpriced, entry(3), node=None)

    def found(query: str, **more: Any) -> list[int]:
        return [int(one["id"][-4:], 16) for one in stand.get(f"/v1/exchanges?{query}", **more)["data"]]

    assert found("q=chatcmpl-2") == [2]
    assert found("q=chatcmpl-2", key=secret) == []
    assert found("q=TERA-L", key=secret) == [3, 1]
    assert found("project_id=proj_default&organization_id=org_default&provider=tera&sort=charge") == [3, 1, 2]
    first = stand.get("/v1/exchanges?sort=charge&limit=2")
    second = stand.get(f"/v1/exchanges?sort=charge&limit=2&after={first['next_after']}")
    assert [len(first["data"]), len(second["data"]), second["has_more"]] == [2, 1, False]
    priced, (line,) = first["data"][0], second["data"]
    assert (line["charge_usd"], line["margin_usd"], line["batch_id"], line["is_batch"]) == (None, None, None, False)
    assert Decimal(priced["margin_usd"]) == Decimal(priced["charge_usd"]) - Decimal(priced["cost_usd"])
    assert (priced["project"], priced["organization"]) == ("default", "default")
    (own, _) = stand.get("/v1/exchanges", key=secret)["data"]
    assert {"margin_usd", "cost_usd"}.isdisjoint(own)
