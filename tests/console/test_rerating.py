"""Past requests are repriced in the console's API, as by `tokenweir rerate`: the numbers agree everywhere."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from proxy.console.api import rerating
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.settling import corrections
from tests.console.entries import TODAY, YESTERDAY, entry
from tests.console.stand import CONFIG, READER, SECRET, WORKER, Stand
from tests.ledger.entries import a_ledger
from tests.ledger.priced_entries import a_real_store, assert_right, settle

pytestmark = pytest.mark.io

PRICE = {"input": "0.333333333", "output": 0.7}
"""whose charges are no round numbers"""
SPAN = {
    "since": f"{datetime.fromtimestamp(YESTERDAY, UTC):%Y-%m-%d}",
    "until": f"{datetime.fromtimestamp(TODAY, UTC):%Y-%m-%d}",
}
BODY: dict[str, Any] = {"models": ["tera-large"], **SPAN, "price": PRICE}
MONTH = f"{datetime.now(UTC):%Y-%m}"


@pytest.fixture
def used(stand: Stand) -> Stand:
    """Two organizations have sent seven requests for a model, and one for another."""
    accounts = AccountStore(stand.engine, clock=time.time)
    accounts.create_organization(account_id="org_acme", name="acme")
    accounts.create_project(account_id="proj_web", name="web", organization="org_acme")
    stand.key("key-1")
    stand.key("key-2", project_id="proj_web")
    entries = [entry(number, key=f"key-{number % 2 + 1}") for number in range(7)]
    settle(stand.engine, *entries, entry(8, model="tera-small"), node=None)
    return stand


def usd(text: str) -> Decimal:
    return Decimal(text)


def repriced(stand: Stand, preview: Any, **more: Any) -> Any:
    """The answer to applying a preview."""
    sent = {**BODY, **{name: preview[name] for name in ("since", "until")}, **more}
    return stand("POST", "/v1/rerate", {"difference_usd": preview["total"]["difference_usd"], **sent})


def adjusted_on_statements(stand: Stand) -> dict[str, Decimal]:
    return {
        one["scope_id"]: usd(stand.get(f"/v1/statements/{one['scope_id']}?month={MONTH}")["adjustments_usd"])
        for one in stand.get(f"/v1/statements?month={MONTH}")["data"]
    }


def test_preview_adjustments_and_statements_agree_to_the_nano_dollar(used: Stand) -> None:
    """Before: only the command repriced."""
    preview = used("POST", "/v1/rerate/preview", BODY, key=READER)
    assert preview.status == 200, preview
    total, customers = preview.body["total"], preview.body["customers"]
    assert {one["name"]: one["requests"] for one in customers} == {"default": 4, "acme": 3}
    assert total["requests"] == 7
    for name in ("charge_usd", "new_charge_usd", "difference_usd"):
        assert usd(total[name]) == sum(usd(one[name]) for one in customers)
    assert usd(total["new_charge_usd"]) - usd(total["charge_usd"]) == usd(total["difference_usd"]) > 0
    assert (total["cost_usd"], used.get("/v1/audit")["data"]) == (total["new_cost_usd"], [])
    by_command = corrections.Corrections(used.engine, a_real_store(used.engine)).rerate(
        "tera-large", rerating._given(PRICE), since=YESTERDAY, until=float(TODAY), dry_run=True
    )
    assert by_command.total.charge_nusd == usd(total["difference_usd"]).scaleb(9)
    done = repriced(used, preview.body)
    assert (done.status, done.body["adjusted"], done.body["is_complete"]) == (200, 7, True), done
    assert usd(done.body["difference_usd"]) == usd(total["difference_usd"])
    assert adjusted_on_statements(used) == {one["organization_id"]: usd(one["difference_usd"]) for one in customers}
    after = used.post("/v1/rerate/preview", BODY)["total"]
    assert (after["charge_usd"], usd(after["difference_usd"])) == (total["new_charge_usd"], 0)
    assert_right(used.engine)
    (act,) = used.get("/v1/audit")["data"]
    assert (act["actor"], act["action"], act["target"], act["result"]) == ("admin", "rerate", "tera-large", "done")
    assert act["details"]["price"] == PRICE
    exchange = used.get(f"/v1/exchanges/{entry(0).exchange_id}")
    assert [one["actor"] for one in exchange["adjustments"]] == ["admin"]


def test_an_interrupted_call_goes_on_and_a_repeated_one_corrects_nothing(
    used: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corrections, "BATCH_EXCHANGES", 2)
    before = used.post("/v1/rerate/preview", BODY)
    monkeypatch.setattr(rerating, "APPLY_S_MAX", 0.0)
    part = repriced(used, before).body
    assert (part["is_complete"], part["adjusted"], part["requests"]) == (False, 2, 2)
    monkeypatch.setattr(rerating, "APPLY_S_MAX", 30.0)
    outdated = repriced(used, before)
    assert (outdated.status, outdated.body["error"]["code"]) == (409, "preview_outdated")
    rest = used.post("/v1/rerate/preview", BODY)
    done = repriced(used, rest).body
    assert (done["is_complete"], done["adjusted"]) == (True, 5)
    whole = usd(part["difference_usd"]) + usd(done["difference_usd"])
    assert whole == usd(before["total"]["difference_usd"])
    again = repriced(used, used.post("/v1/rerate/preview", BODY)).body
    assert (again["adjusted"], usd(again["difference_usd"])) == (0, 0)
    assert sum(adjusted_on_statements(used).values()) == whole
    assert_right(used.engine)


def test_of_operators_at_once_each_request_is_corrected_once(used: Stand) -> None:
    preview = used.post("/v1/rerate/preview", BODY)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: repriced(used, preview), range(4)))
    done = [one.body for one in answers if one.status == 200]
    assert {one.status for one in answers} <= {200, 409}
    assert sum(one["adjusted"] for one in done) == 7
    assert sum(usd(one["difference_usd"]) for one in done) == usd(preview["total"]["difference_usd"])
    assert_right(used.engine)


def test_the_prices_of_the_configuration(tmp_path: Any) -> None:
    """They apply to costs, too."""
    engine = a_ledger(tmp_path)
    lists = "providers: [{provider: tera, cost: {input: 1, output: 2}}], price: {input: 2, output: 4}"
    config = CONFIG.replace('models: {"*": {provider: tera}}', f"models: {{tera-large: {{{lists}}}}}")
    stand = Stand(tmp_path, engine, config)
    try:
        stand.key("key-1")
        settle(engine, entry(0), entry(1), node=None)
        body = {"models": ["tera-large"], **SPAN}
        preview = stand.post("/v1/rerate/preview", body)
        assert usd(preview["total"]["new_charge_usd"]) == 2 * usd(preview["total"]["new_cost_usd"]) > 0
        done = repriced(stand, preview, price=None).body
        total = preview["total"]
        assert usd(done["cost_difference_usd"]) == usd(total["new_cost_usd"]) - usd(total["cost_usd"])
        assert done["difference_usd"] == total["difference_usd"]
        gone = stand("POST", "/v1/rerate/preview", {**body, "models": ["tera-gone"]})
        assert (gone.status, gone.body["error"]["param"]) == (400, "models")
    finally:
        stand.close()
        engine.dispose()


def test_too_many_requests_are_left_to_the_command(used: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerating, "PREVIEW_S_MAX", 0.0)
    for answered in (
        used("POST", "/v1/rerate/preview", BODY),
        used("POST", "/v1/rerate", {**BODY, "difference_usd": "0"}),
    ):
        error = answered.body["error"]
        assert (answered.status, error["param"]) == (400, "since")
        assert f"`tokenweir rerate --model tera-large --since {SPAN['since']}T00:00:00.000000Z" in error["message"]
    assert used.get("/v1/audit")["data"] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"models": []}, "models"),
        ({"since": "soon"}, "since"),
        ({"until": "x"}, "until"),
        ({"until": SPAN["since"]}, "until"),
        ({"price": {"input": -1, "output": 1}}, "price"),
        ({"price": {"input": 1}}, "price"),
        ({"price": {"input": "${HOME}", "output": 1}}, "price"),
        ({"price": {"inputs": 1, "output": 1}}, "price"),
        ({"price": {}}, "price"),
    ],
)
def test_what_is_wrong_is_named(unchanged: Stand, body: dict[str, Any], param: str) -> None:
    refused = unchanged("POST", "/v1/rerate/preview", {**BODY, **body})
    assert (refused.status, refused.body["error"]["param"]) == (400, param), refused
    assert "\n" not in refused.body["error"]["message"]


def test_who_may_apply(used: Stand) -> None:
    for key, status in ((READER, 403), (WORKER, 403), (SECRET, 409)):
        assert used("POST", "/v1/rerate", {**BODY, "difference_usd": "0"}, key=key).status == status
