"""The console's listener: who may see what, what is refused by which name, and what a key's life looks like there."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.billing.correction import CorrectionRequest, corrected, exchange_totals
from proxy.billing.dimensions import KeyDimensions
from proxy.billing.limits import Limits
from proxy.billing.reservation import CounterState
from proxy.gateway.exchange.running import ExchangeSnapshot
from proxy.keys.guesses import GUESSES_MAX
from proxy.reports.buckets import DAY_S
from proxy.reports.usage import id_from
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.runtime.proxy.console import Console
from proxy.settings import parse
from tests.console.entries import TODAY, YESTERDAY, entry, rerated
from tests.console.stand import CONFIG, PEPPER, SECRET, Stand
from tests.ledger.priced_entries import DEARER, a_real_entry, settle

pytestmark = pytest.mark.io


def running(number: int = 0, key_id: str = "key-1") -> ExchangeSnapshot:
    return ExchangeSnapshot(
        exchange_id=f"{number}", key_id=key_id, key_alias="anna", provider="tera", model="m", endpoint="/v1/x",
        streamed=True, started_at=float(number), state="streaming", events=3, bytes=99, prompt_tokens=7,
        completion_tokens=2, usage_source="estimated", charge_nusd=1_500, cost_nusd=1_000,
    )  # fmt: skip


def test_questions_of_clients_take_no_thread_of_the_console(stand: Stand) -> None:
    settle(stand.engine, a_real_entry())
    key, exchange_id = stand.key(), a_real_entry().exchange_id
    with stand.clients(waiting=True) as url:
        for path, code in ((f"/v1/exchanges/{exchange_id}", "console_busy"), ("/v1/me", "key_info_unavailable")):
            refused = stand("GET", path, key=key, at=url)
            assert (refused.status, refused.body["error"]["code"]) == (503, code)
        assert stand.get(f"/v1/exchanges/{exchange_id}")["id"] == exchange_id


def test_keys_take_no_thread_of_operators(stand: Stand) -> None:
    """Before: the requests of a customer in the console, too, could take all of its threads."""
    key = stand.key()
    with stand.keys_waiting():
        refused = stand("GET", "/v1/exchanges", key=key)
        assert (refused.status, refused.body["error"]["code"]) == (503, "console_busy")
        assert stand.get("/v1/exchanges")["data"] == []
        assert stand.post("/key/block", {"key": "key-1"})["blocked"] is True


# -- who may -----------------------------------------------------------------------------------------------------

OPERATORS = [
    ("GET", "/v1/audit"),
    ("GET", "/v1/providers"),
    ("GET", "/v1/models"),
    ("GET", "/v1/sinks"),
    ("GET", "/v1/dead-letters"),
    ("GET", "/v1/statements"),
    ("GET", "/account/list"),
    ("POST", "/account/new"),
    ("POST", "/account/update"),
    ("POST", "/account/block"),
    ("POST", "/account/unblock"),
    ("POST", "/credit/add"),
    ("POST", "/dimension/erase"),
    ("GET", "/grant/list"),
    ("POST", "/grant/add"),
    ("POST", "/grant/revoke"),
    ("GET", "/limit/list"),
    ("POST", "/limit/new"),
    ("POST", "/limit/update"),
    ("POST", "/limit/delete"),
    ("POST", "/key/generate"),
    ("POST", "/key/update"),
    ("POST", "/key/delete"),
    ("POST", "/key/block"),
    ("POST", "/key/unblock"),
    ("POST", "/key/bulk_block"),
    ("POST", "/key/bulk_unblock"),
    ("POST", "/key/key-1/regenerate"),
    ("POST", "/v1/exchanges/x/adjust"),
    ("POST", "/v1/exchanges/x/stop"),
]
EVERYBODYS = ["/v1/me", "/v1/live", "/v1/exchanges", "/v1/budgets", "/key/list"]


def test_without_a_secret_nothing_is_said_and_a_key_is_no_operator(stand: Stand) -> None:
    secret = stand.key()
    for method, path in [*OPERATORS, *(("GET", path) for path in EVERYBODYS), ("GET", "/v1/exchanges/x")]:
        unsigned = stand(method, path, None if method == "GET" else {}, key=None)
        assert (unsigned.status, unsigned.body["error"]["code"]) == (401, "invalid_api_key"), path
        assert unsigned.body["error"]["message"].startswith("Sign in with the admin secret, or with an API key"), path
        assert unsigned.headers["Cache-Control"] == "no-store"
        assert "frame-ancestors 'none'" in unsigned.headers["Content-Security-Policy"]
        assert not [name for name in unsigned.headers if name.lower().startswith("access-control")]
    for method, path in OPERATORS:
        refused = stand(method, path, None if method == "GET" else {}, key=secret)
        assert (refused.status, refused.body["error"]["code"]) == (403, "operator_only"), path
    assert [stand("GET", path, key=secret).status for path in EVERYBODYS] == [200] * 5
    assert stand.get("/v1/audit")["data"] == []


async def test_without_a_secret_of_its_own_it_does_not_listen(stand: Stand, tmp_path: Path) -> None:
    off = parse(CONFIG[CONFIG.index("key_pepper") :], env={"PEPPER": PEPPER}, folder=tmp_path)
    inside, deployed, nobody = stand.inside, stand.deployed, SimpleNamespace()
    console = Console(
        off,
        LedgerStores(off, stand.engine),
        nobody,
        nobody,
        inside,
        inside.latest,
        deployed,
        inside.models,  # type: ignore[arg-type]
    )
    await console.start(lambda _status, _code: None)
    assert console.url is None
    await console.close()


def test_who_guesses_must_wait_and_who_has_the_secret_need_not(stand: Stand) -> None:
    guesses = [SECRET[:-1], SECRET + "x", SECRET.upper(), *(f"guess-{number}" for number in range(GUESSES_MAX))]
    answers = [stand("GET", "/v1/me", key=guess) for guess in guesses]
    assert [one.status for one in answers] == [401] * GUESSES_MAX + [429] * 3
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert stand.get("/v1/me")["role"] == "operator"
    assert not [one for one in answers if SECRET in str(one)]


def test_a_key_sees_only_what_is_its_own(stand: Stand) -> None:
    secret = stand.key("key-1", limits=Limits(budget_nusd=4 * 10**9))
    stand.key("key-2", limits=Limits(budget_nusd=10**9))
    mine, other = entry(1), entry(2, key="key-2")
    settle(stand.engine, mine, other, node=None)
    stand.inside.streams = [running(1), running(2, "key-2")]
    stand.inside.unsettled = {"new-1": "key-1", "new-2": "key-2"}
    stand.budgets.gates = [CounterState(name, 0.0, 10**9, 5, 1, 0) for name in ("key-1", "key-2", "proj_default")]

    def seen(path: str, name: str) -> tuple[list[Any], list[Any]]:
        both = (stand.get(path), stand.get(path, key=secret))
        return tuple([one[name] for one in body.get("data", body.get("keys"))] for body in both)  # type: ignore[return-value]

    assert seen("/v1/exchanges", "key_id") == (["key-2", "key-1"], ["key-1"])
    assert stand.get("/v1/exchanges?key_id=key-2", key=secret)["data"] == []
    assert seen("/v1/live", "key_id") == (["key-2", "key-1"], ["key-1"])
    assert seen("/v1/budgets", "used_ratio") == ([1.0, 0.25], [0.25])
    assert seen("/key/list", "token") == (["key-2", "key-1"], ["key-1"])
    assert stand.get("/key/info", key=secret)["key"] == "key-1"
    for path in (
        f"/v1/exchanges/{other.exchange_id}",
        "/v1/exchanges/new-2",
        "/v1/exchanges/nobody",
        "/key/info?key=key-2",
    ):
        assert stand("GET", path, key=secret).status == 404, path
    runs = stand("GET", "/v1/exchanges/new-1", key=secret)
    assert (runs.status, runs.body["status"], runs.headers["Retry-After"]) == (202, "unsettled", "1")
    query = f"start_time={int(YESTERDAY)}&group_by=api_key_id"
    for path, name in (("usage/completions", "num_model_requests"), ("costs", "api_key_id")):
        of_both = stand.get(f"/v1/organization/{path}?{query}")["data"][0]["results"]
        of_mine = stand.get(f"/v1/organization/{path}?{query}", key=secret)["data"][0]["results"]
        assert (len(of_both), len(of_mine)) == (2, 1), name
        assert stand.get(f"/v1/organization/{path}?{query}&api_key_ids=key-2", key=secret)["data"][0]["results"] == []
    answers = [
        stand.get(path, key=secret) for path in ("/v1/live", "/v1/exchanges", f"/v1/exchanges/{mine.exchange_id}")
    ]
    answers.append(stand.get(f"/v1/organization/costs?{query}", key=secret))
    text = str(answers)
    # As a number: a time of day may end in 20.37, too.
    assert re.findall(r"cost_usd|provider_amount|unknown_cost|'cost'|(?<![\d:.])0\.37(?!\d)", text) == [], (
        "what we are charged"
    )


# -- what explains a number --------------------------------------------------------------------------------------


def test_an_exchange_explains_its_number(stand: Stand) -> None:
    vain = {"provider": "other", "upstream_model": "m", "failed": "answered 503", "status": 503}
    vain |= {"started_at": YESTERDAY, "duration_ms": 8.5}
    first = replace(entry(0), details={**entry(0).details, "attempts": [vain]})
    less = corrected(exchange_totals([first]), CorrectionRequest(charge_nusd=5_000), "goodwill")
    settle(stand.engine, first, less, node=None)  # type: ignore[arg-type]
    shown = stand.get(f"/v1/exchanges/{first.exchange_id}")
    made = sum(float(one["amount_usd"]) for one in shown["charge"]["addends"])
    assert made == pytest.approx(float(shown["charge"]["usd"]), abs=5e-10)
    assert shown["charge"]["price"]["version"] == shown["price_version"]
    assert shown["charge"]["formula"].startswith(f"{shown['charge']['usd']} = ")
    assert (shown["charge_usd"], shown["status"], shown["usage"]["source"]) == ("0.000005", "settled", "reported")
    assert shown["usage"]["counts"]["completion_tokens"] == first.completion_tokens
    assert shown["attempts"] == [vain]
    (adjustment,) = shown["adjustments"]
    assert (adjustment["reason"], adjustment["actor"]) == ("goodwill", "operator")
    assert float(adjustment["charge_usd"]) == pytest.approx(5e-6 - float(shown["charge"]["usd"]), abs=1e-15)
    assert shown["cost"]["price"]["output"] == "0.37"
    (line,) = stand.get("/v1/exchanges")["data"]
    assert (line["charge_usd"], line["adjustments"]) == ("0.000005", 1)


def test_corrections_lead_from_the_first_charge_to_the_last(stand: Stand) -> None:
    """Before: an exchange that had no price, or another one, was explained by that alone, whatever it was charged."""
    secret = stand.key()
    unpriced, priced = entry(0, price=None), entry(1)
    settle(stand.engine, unpriced, priced, node=None)
    at_work = rerated(stand.engine)
    at_work.adjust(priced.exchange_id, CorrectionRequest(charge_nusd=7, completion_tokens=40), "goodwill")
    shown = [stand.get(f"/v1/exchanges/{one.exchange_id}") for one in (unpriced, priced)]
    for one in shown:
        changes = sum(Decimal(each["charge_usd"]) for each in one["adjustments"])
        assert Decimal(one["charge"]["usd"] or 0) + changes == Decimal(one["charge_usd"])
        assert one["adjustments"][-1]["total_usd"] == one["charge_usd"]
        assert "unpriced" not in one["details"]
    first, second = (one["adjustments"][0] for one in shown)
    assert (first["actor"], first["reason"], first["price_version"]) == ("root", "rerated", DEARER.version)
    used = {"input": ("0.13", "0.26"), "cached_input": ("0.07", "0.14"), "output": ("0.41", "0.82")}
    pairs = [{each["price"]: (each["old_usd"], each["new_usd"]) for each in one["prices"]} for one in (second, first)]
    assert pairs == [used | {"reasoning": used["output"]}, {name: (None, new) for name, (_, new) in pairs[0].items()}]
    last = shown[1]["adjustments"][1]
    assert (last["actor"], last["reason"], last["prices"], last["total_usd"]) == ("root", "goodwill", [], "0.000000007")
    theirs = stand.get(f"/v1/exchanges/{priced.exchange_id}", key=secret)["adjustments"]
    assert [one["actor"] for one in theirs] == ["rerate", "operator"], "the operator's name is not the customer's"


def test_an_estimate_shows_what_it_was_made_of(stand: Stand) -> None:
    details = {**a_real_entry(0).details, "evidence": {"events": 12, "ascii": 40}, "expected_error": 0.1}
    settle(
        stand.engine, replace(entry(0), details=details, usage_source="estimated", estimator="regression-1"), node=None
    )
    usage = stand.get(f"/v1/exchanges/{entry(0).exchange_id}")["usage"]
    assert (usage["source"], usage["estimator"], usage["expected_error"]) == ("estimated", "regression-1", 0.1)
    assert usage["evidence"] == {"events": 12, "ascii": 40}


# -- texts that no database can store -----------------------------------------------------------------------------


def test_a_text_that_postgres_cannot_store_is_refused_by_its_name(stand: Stand) -> None:
    """Before: 500 with Postgres; with SQLite, a search for a NUL character found everything."""
    key = stand.key()
    for path, name in (
        ("/v1/exchanges?q=%00", "q"), ("/v1/exchanges?model=a%00", "model"), ("/key/list?q=%00", "q"),
        ("/key/info?key=%00", "key"), ("/limit/list?key=%00", "key"), ("/v1/usage?tag=team%3D%00", "tag"),
    ):  # fmt: skip
        for secret in (key, SECRET):
            answered = stand("GET", path, key=secret)
            if answered.status != 403:
                error = answered.body["error"]
                assert (answered.status, error["param"], error["code"]) == (400, name, "invalid_value"), path
    bodies: list[tuple[str, dict[str, Any], str]] = [
        ("/key/generate", {"key_alias": "a\0"}, "key_alias"), ("/key/generate", {"models": ["a", "\ud800"]}, "models"),
        ("/key/generate", {"max_budget": "\ud800"}, "max_budget"),
        ("/limit/new", {"name": "n", "account": "\0"}, "account"),
        ("/limit/new", {"name": "n", "only": {"tag:\0": ["a"]}}, "only"),
    ]  # fmt: skip
    for path, body, name in bodies:
        answered = stand("POST", path, body)
        assert (answered.status, answered.body["error"]["param"]) == (400, name), (path, body)


# -- OpenAI's shapes ---------------------------------------------------------------------------------------------


def test_dashboards_of_openai_page_through_the_buckets(stand: Stand) -> None:
    settle(stand.engine, *(entry(number) for number in range(3)), node=None)
    begin = TODAY - 3 * DAY_S
    path = f"/v1/organization/usage/completions?start_time={begin + 5}&end_time={TODAY}&limit=1&group_by[]=model"
    page, buckets = stand.get(path), []
    while True:
        buckets += page["data"]
        if not page["has_more"]:
            break
        page = stand.get(f"{path}&page={page['next_page']}")
    assert page["next_page"] is None
    assert [one["start_time"] for one in buckets] == list(range(begin, TODAY, DAY_S))
    assert [len(one["results"]) for one in buckets] == [0, 0, 1]
    (result,) = buckets[-1]["results"]
    assert (result["num_model_requests"], result["input_tokens"], result["model"]) == (3, 321, "tera-large")
    assert result["project_id"] is None
    costs = stand.get(f"/v1/organization/costs?start_time={begin}&group_by=line_item")["data"]
    charged = sum(one.charge_nusd for one in map(entry, range(3)))
    amount = costs[2]["results"][0]["amount"]
    assert amount == {
        "value": pytest.approx(charged / 1e9, abs=1e-12), "value_usd": amount["value_usd"], "currency": "usd",
    }  # fmt: skip
    assert Decimal(amount["value_usd"]).scaleb(9) == charged


def test_days_of_a_time_zone_are_pages_too(stand: Stand) -> None:
    """Kathmandu is ahead by a quarter of an hour less than six: a bucket has the evening of one day in UTC."""
    settle(stand.engine, *(entry(number) for number in range(3)), node=None)
    ahead = DAY_S - (5 * 3_600 + 45 * 60)
    for name in ("usage/completions", "costs"):
        path = (
            f"/v1/organization/{name}?start_time={TODAY - 2 * DAY_S}&end_time={TODAY}&time_zone=Asia/Kathmandu&limit=2"
        )
        first = stand.get(path)
        last = stand.get(f"{path}&page={first['next_page']}")
        assert (first["has_more"], last["has_more"]) == (True, False)
        buckets = [*first["data"], *last["data"]]
        assert [one["start_time"] for one in buckets] == [TODAY - n * DAY_S + ahead for n in (3, 2, 1)]
        assert all(one["end_time"] - one["start_time"] == DAY_S for one in buckets)
        (result,) = (result for one in buckets for result in one["results"])
    assert round(result["amount"]["value"] * 10**9) == sum(one.charge_nusd for one in map(entry, range(3)))
    assert stand("GET", f"{path}&page=page_{TODAY - 2 * DAY_S}").body["error"]["param"] == "page"


def test_costs_count_the_requests_whose_amounts_are_unknown(stand: Stand) -> None:
    """Before: they were 0 in every sum, so that the margin was too high and lost revenue could not be seen."""
    unknown, unpriced = replace(entry(1), cost_nusd=None), replace(entry(2), charge_nusd=None, cost_nusd=None)
    settle(stand.engine, entry(0), unknown, unpriced, node=None)
    page = stand.get(f"/v1/organization/costs?start_time={int(YESTERDAY)}")
    (result,) = page["data"][0]["results"]
    assert page["basis"] == "usage"
    assert (result["unpriced_requests"], result["unknown_cost_requests"]) == (1, 2)
    nusd = [round(result[name]["value"] * 10**9) for name in ("amount", "provider_amount", "unknown_cost_amount")]
    assert nusd == [entry(0).charge_nusd + unknown.charge_nusd, entry(0).cost_nusd, unknown.charge_nusd]


CREDIT = {"usd": 5, "reason": "card", "key": "key-1"}
WRONG: list[tuple[str, str, Any, str]] = [
    ("GET", "/v1/organization/usage/completions", None, "start_time"),
    ("GET", "/v1/organization/usage/completions?start_time=soon", None, "start_time"),
    ("GET", "/v1/organization/usage/completions?start_time=-1", None, "start_time"),
    ("GET", "/v1/organization/usage/completions?start_time=5&end_time=5", None, "end_time"),
    ("GET", "/v1/organization/usage/completions?start_time=5&bucket_width=1w", None, "bucket_width"),
    ("GET", "/v1/organization/usage/completions?start_time=5&limit=32", None, "limit"),
    ("GET", "/v1/organization/usage/completions?start_time=5&bucket_width=1h&limit=169", None, "limit"),
    ("GET", "/v1/organization/usage/completions?start_time=5&group_by=colour", None, "group_by"),
    ("GET", "/v1/organization/usage/completions?start_time=5&page=page_77", None, "page"),
    ("GET", "/v1/organization/usage/completions?start_time=5&page=page_999999999999", None, "page"),
    ("GET", "/v1/organization/usage/completions?start_time=5&time_zone=Berlin", None, "time_zone"),
    ("GET", "/v1/organization/usage/completions?start_time=5&bucket_width=1h&time_zone=UTC", None, "time_zone"),
    ("GET", "/v1/organization/usage/completions?start_time=5&batch=true", None, "batch"),
    ("GET", "/v1/organization/usage/completions?start_time=5&group_by=user_id&group_by=run", None, "group_by"),
    ("GET", "/v1/organization/usage/completions?start_time=5&tags=red", None, "tags"),
    ("GET", "/v1/organization/costs?start_time=5&group_by=tag:", None, "group_by"),
    ("GET", "/v1/organization/usage/completions?start_time=5&start_time=6", None, "start_time"),
    ("GET", "/v1/organization/costs?start_time=5&limit=181", None, "limit"),
    ("GET", "/v1/exchanges?after=1.x", None, "after"),
    ("GET", "/v1/exchanges?outcome=lost", None, "outcome"),
    ("GET", "/key/info", None, "key"),
    ("GET", "/key/info?key=tw-" + "a" * 43, None, "key"),
    ("POST", "/key/generate", {"soft_budget": 3}, "soft_budget"),
    ("POST", "/key/generate", {"max_budget": -1}, "max_budget"),
    ("POST", "/key/generate", {"max_budget": 1e-10}, "max_budget"),
    ("POST", "/key/generate", {"max_budget": "5"}, "max_budget"),
    ("POST", "/key/generate", {"max_budget": 5, "budget_duration": "soon"}, "budget_duration"),
    ("POST", "/key/generate", {"duration": "soon"}, "duration"),
    ("POST", "/key/generate", {"rpm_limit": 0}, "rpm_limit"),
    ("POST", "/key/generate", {"team_id": "nobody"}, "team_id"),
    ("POST", "/key/generate", {"project_id": "nobody"}, "team_id"),
    ("POST", "/key/generate", {"key_alias": "key-1"}, "key_alias"),
    ("POST", "/key/generate", {"key_alias": "a\u0007"}, "key_alias"),
    ("POST", "/key/generate", {"tags": [" "]}, "tags"),
    ("POST", "/key/generate", b'{"tags": [], "tags": []}', "tags"),
    ("POST", "/key/generate", {"dimensions": {"team": "red"}}, "dimensions"),
    ("POST", "/key/generate", {"dimension_sources": ["litelm"]}, "dimension_sources"),
    ("POST", "/key/generate", {"byok": "half"}, "byok"),
    ("POST", "/key/update", {"max_budget": 3}, "key"),
    ("POST", f"/key/tw-{'a' * 40}/regenerate", {}, "key"),
    ("POST", "/key/update", {"key": "key-1", "key_alias": None}, "key_alias"),
    ("POST", "/key/delete", {}, "keys"),
    ("POST", "/key/key-1/regenerate", {"grace_period": "a while"}, "grace_period"),
    ("GET", "/v1/audit?after=yesterday", None, "after"),
    ("POST", "/account/new", {"kind": "project", "name": "web"}, "organization_id"),
    ("POST", "/account/new", {"kind": "organization", "name": "acme", "organization_id": "default"}, "organization_id"),
    ("POST", "/account/new", {"kind": "project", "name": "web", "organization": "nobody"}, "organization_id"),
    ("POST", "/account/new", {"kind": "organization", "name": "default"}, "name"),
    ("POST", "/account/new", {"kind": "organization", "name": "acme", "max_budget": -1}, "max_budget"),
    (
        "POST",
        "/account/new",
        {"kind": "project", "name": "w", "organization": "a", "organization_id": "a"},
        "organization_id",
    ),
    ("POST", "/account/update", {"account": "proj_default", "organization_id": "nobody"}, "organization_id"),
    ("POST", "/account/update", {"account": "org_default", "organization_id": "org_default"}, "organization_id"),
    ("GET", "/key/list?team_id=a&project_id=a", None, "project_id"),
    ("POST", "/account/update", {"account": "proj_default", "budget_duration": "soon"}, "budget_duration"),
    ("POST", "/account/update", {"account": "default", "rpm_limit": 0}, "rpm_limit"),
    ("POST", "/credit/add", {"usd": 5, "reason": "card"}, "key"),
    ("POST", "/credit/add", {**CREDIT, "account": "default"}, "key"),
    ("POST", "/credit/add", {"usd": 5, "key": "key-1"}, "reason"),
    ("POST", "/credit/add", {**CREDIT, "reason": " "}, "reason"),
    ("POST", "/credit/add", {**CREDIT, "usd": 0}, "usd"),
    ("POST", "/credit/add", {**CREDIT, "usd": 1e-10}, "usd"),
    ("POST", "/credit/add", {**CREDIT, "id": "1"}, "id"),
    ("POST", "/credit/add", {**CREDIT, "id": f"{id_from(9.0)}7000-8000-000000000000"}, "id"),
]


def test_what_cannot_be_is_refused_by_its_name_and_changes_nothing(stand: Stand) -> None:
    stand.key()
    before = list(stand.keys.every()), stand.get("/account/list")
    for method, path, body, param in WRONG:
        refused = stand(method, path, body)
        assert (refused.status, refused.body["error"]["param"]) == (400, param), (path, body, refused.body)
        assert refused.body["error"]["type"] == "invalid_request_error"
    assert (list(stand.keys.every()), stand.get("/account/list")) == before
    assert stand("POST", "/key/block", {"key": "tw-" + "a" * 40}).status == 404
    assert {one["result"] for one in stand.get("/v1/audit")["data"]} == {"refused"}


# -- the life of a key -------------------------------------------------------------------------------------------


def test_many_keys_are_blocked_each_by_itself(stand: Stand) -> None:
    secrets = [stand.key(f"key-{number}") for number in range(3)]
    stand.post("/key/delete", {"keys": ["key-2"]})
    names = ["key-0", "key-1", "key-0", "key-2", "nobody"]
    result = stand.post("/key/bulk_block", {"keys": names})
    assert result["done"] == ["key-0", "key-1"]
    assert {one["key"]: one["message"] for one in result["failed"]} == {
        "key-2": "the key key-2 is revoked and cannot be changed; create a new key.", "nobody": "No such key.",
    }  # fmt: skip
    assert [stand("GET", "/v1/me", key=secret).status for secret in secrets] == [401] * 3
    assert stand.post("/key/bulk_unblock", {"keys": ["key-0", "key-1"]}) == {"done": ["key-0", "key-1"], "failed": []}
    assert stand.get("/v1/me", key=secrets[0])["key_id"] == "key-0"
    did = [(one["action"], one["target"], one["result"]) for one in stand.get("/v1/audit?action=key.block")["data"]]
    done, refused = (("key.block", name, word) for name, word in (("key-0", "done"), ("nobody", "refused")))
    assert (len(did), did[-1], did[0]) == (4, done, refused)
    for wrong in ([], ["k"] * 101, ["key-0", secrets[0]]):
        answered = stand("POST", "/key/bulk_block", {"keys": wrong})
        assert (answered.status, answered.body["error"]["param"]) == (400, "keys")
        assert secrets[0] not in str(answered.body)


def test_the_life_of_a_key(stand: Stand) -> None:
    made = stand.post(
        "/key/generate",
        {"key_alias": "anna", "max_budget": 0.1, "duration": "30d", "rpm_limit": 9, "models": ["m"], "tags": ["t"],
         "team_id": "default", "max_parallel_requests": 2, "on_exhausted": "cut", "cost_in_answers": True,
         "dimensions": {"end_user": "alice"}, "dimension_sources": [], "byok": "5.0%"},
    )  # fmt: skip
    secret, key_id = made.pop("key"), made["token"]
    stored = stand.keys.one(key_id)
    assert stored.limits == Limits(
        budget_nusd=100_000_000, budget_window="none", rpm=9, parallel=2, cost_in_answers=True
    )
    assert (made["max_budget"], made["budget_duration"], made["team_id"]) == (0.1, None, "proj_default")
    assert made["cost_in_answers"] is True
    assert stored.dimensions == KeyDimensions((), {"end_user": "alice"})
    assert (made["dimension_sources"], made["dimensions"]) == ([], {"end_user": "alice"})
    assert (made["byok"], stored.byok) == ("5%", "5%")
    assert stand.get("/v1/me", key=secret)["key_id"] == key_id
    assert stand.get(f"/key/info?key={key_id}")["info"] == made
    fields = {"max_budget": None, "models": [], "key_alias": "bert", "byok": "0.002usd/request"}
    changed = stand.post("/key/update", {"key": secret, **fields})
    assert changed == {**made, **fields, "max_budget_usd": None}
    assert stand.keys.one(key_id).byok == "0.002"
    assert stand.post("/key/block", {"key": "bert"})["blocked"] is True
    assert stand("GET", "/v1/me", key=secret).status == 401
    assert stand.post("/key/unblock", {"key": key_id})["blocked"] is False
    again = stand.post(f"/key/{key_id}/regenerate", {"grace_period": "now"})
    assert [stand("GET", "/v1/me", key=one).status for one in (secret, again["key"])] == [401, 200]
    assert stand("POST", "/key/delete", {"keys": ["bert", "nobody"]}).status == 404
    assert stand.get("/v1/me", key=again["key"])["role"] == "key"
    assert stand.post("/key/delete", {"key_aliases": ["bert"], "keys": [key_id]}) == {"deleted_keys": [key_id]}
    assert stand("GET", "/v1/me", key=again["key"]).status == 401
    assert stand.get("/key/list")["keys"] == []
    assert [one["revoked"] for one in stand.get("/key/list?include_revoked=true")["keys"]] == [True]
    acts = stand.get("/v1/audit")["data"]
    did = [(one["action"], one["target"], one["result"]) for one in reversed(acts)]
    assert did == [
        ("key.generate", key_id, "done"),
        ("key.update", key_id, "done"),
        ("key.block", key_id, "done"),
        ("key.unblock", key_id, "done"),
        ("key.regenerate", key_id, "done"),
        ("key.delete", "bert, nobody", "refused"),
        ("key.delete", f"{key_id}, bert", "done"),
    ]
    assert {(one["actor"], one["via"], one["origin"]) for one in acts} == {("admin", "api", "127.0.0.1")}
    assert not [one for one in (secret, again["key"]) if one in str(acts)]
