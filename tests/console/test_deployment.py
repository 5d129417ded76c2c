"""Providers, models, sinks, dead letters and statements in the console's API."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import insert

from proxy.console.api import statements
from proxy.console.api.models import margins
from proxy.console.api.providers import CredentialState, ProviderState
from proxy.demo.script import Shape
from proxy.gateway.upstream.health import BreakerState
from proxy.ledger.periods.closing import close, issue_all
from proxy.ledger.schema.tables import dead_letters
from proxy.reports.usage import id_from
from proxy.storage.database import writing
from tests.console.entries import YESTERDAY, entry
from tests.console.serving import SECRET, answer, opened
from tests.console.stand import Stand
from tests.ledger.priced_entries import a_real_entry, a_real_store, settle
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir, provider_section

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
PRICE = {"input": 2, "output": 10, "changes": {"2036-01-01": {"input": 3, "output": 12}}}


@pytest.mark.thorough
def test_a_deployment_shows_its_providers_models_and_sinks(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ADMIN", "A_KEY", "B_KEY"):
        monkeypatch.setenv(name, SECRET if name == "ADMIN" else f"key-{name}")
    one = tokenweir(
        admin={"port": 0, "secret": "${ADMIN}"},
        providers={
            "first": provider_section(provider.base_url),
            "ill": {
                "base_url": "http://127.0.0.1:1/v1",
                "credentials": [{"name": one, "api_key": f"${{{one.upper()}_KEY}}"} for one in "ab"],
            },
        },
        models={
            "chat": {"providers": [{"provider": "ill", "cost": {"input": 1, "output": 10}}, "first"], "price": PRICE},
            "lab/*": {"provider": "first", "price": PRICE},
        },
        sinks={"hook": {"kind": "webhook", "url": "http://127.0.0.1:1/", "secret": "${ADMIN}"}},
    )
    provider.script("chat", Shape("openai", tokens=5))
    response = opened(one.url, "/v1/chat/completions", one.key(), CHAT)
    assert (response.status, response.read() != b"") == (200, True)
    one.entries_of("chat")

    def get(path: str) -> Any:
        status, body = answer(one.console_url, path, SECRET)
        assert status == 200, body
        return body["data"]

    ill, first = get("/v1/providers?hours=1")
    assert (ill["name"], ill["base_url"], ill["models"]) == ("ill", "http://127.0.0.1:1", ["chat"])
    assert (ill["requests"], ill["failed_attempts"], ill["error_rate"], ill["breaker"]) == (0, 1, 1.0, "closed")
    assert (ill["states"][0]["failures"], len(ill["states"][0]["credentials"])) == (1, 2)
    assert ill["errors"][0]["was_passed_on"] is True
    assert (first["name"], first["requests"], first["error_rate"]) == ("first", 1, 0.0)
    assert first["first_token_p95_ms"] is not None
    models = {model["model"]: model for model in get("/v1/models")}
    chat = models["chat"]
    assert (chat["requests"], chat["price"]["input"], chat["price_source"]) == (1, "2", "configuration")
    assert chat["targets"][0]["margins"] == {"input": "0.5", "output": "0", "cached_input": "0.5"}
    assert (chat["targets"][1]["cost"], chat["is_cost_unknown"], chat["is_unpriced"]) == (None, True, False)
    assert (chat["next_change"]["at"][:10], chat["next_change"]["prices"]["output"]) == ("2036-01-01", "12")
    assert (models["lab/*"]["is_pattern"], models["lab/*"]["is_unpriced"]) == (True, False)
    (sink,) = get("/v1/sinks")
    assert (sink["name"], sink["kind"], sink["rejected"]) == ("hook", "webhook", [])
    assert one.stop() == 0


@pytest.mark.io
def test_the_worst_state_of_all_processes_is_shown(stand: Stand) -> None:
    resting = CredentialState(name="a", rests_s=7.0, is_rejected=True)
    stand.deployed.states = [
        ProviderState(provider="tera", process=0, breaker=BreakerState.CLOSED, failures=0, away_s=0.0, credentials=[]),
        ProviderState(
            provider="tera", process=1, breaker=BreakerState.OPEN, failures=5, away_s=9.5, credentials=[resting]
        ),
    ]
    settle(stand.engine, replace(a_real_entry(0), provider="gone", started_at=time.time() - 5, exchange_id=_now()))
    shown = {one["name"]: one for one in stand.get("/v1/providers")["data"]}
    tera = shown["tera"]
    assert (tera["breaker"], tera["rests_s"], tera["credentials_resting"], tera["credentials_rejected"]) == (
        "open", 9.5, 1, 1,
    )  # fmt: skip
    assert (tera["requests"], tera["error_rate"], tera["is_configured"]) == (0, None, True)
    assert (shown["gone"]["is_configured"], shown["gone"]["breaker"], shown["gone"]["requests"]) == (False, None, 1)


def _now() -> str:
    return f"{id_from(time.time() - 5)}7000-8000-000000000000"


def test_margins_are_of_what_has_a_price_and_a_cost() -> None:
    assert margins({"input": "2", "output": "0"}, {"input": "3", "output": "1"}) == {"input": "-0.5"}
    assert margins({"input": "3"}, {"input": "1", "output": "1"}) == {"input": "0.6667"}
    assert margins(None, {"input": "1"}) == margins({"input": "1"}, None) == {}


@pytest.mark.io
def test_dead_letters_are_listed_without_their_payload(stand: Stand) -> None:
    row = {
        "id": "a" * 64, "exchange_id": "e", "kind": None, "seq": None, "reason": "conflict: other numbers",
        "payload": '{"secret": 1}', "first_seen": 1.0, "last_seen": 2.0, "times_seen": 3, "node": "n",
        "journal_seq": 4, "state": "open", "state_at": 1.0,
    }  # fmt: skip
    with writing(stand.engine) as connection:
        connection.execute(insert(dead_letters), [row, row | {"id": "b" * 64, "state": "dropped"}])
    page = stand.get("/v1/dead-letters?limit=1")
    assert (page["total_count"], [one["id"] for one in page["data"]]) == (1, ["a" * 64])
    assert "secret" not in str(page)


@pytest.mark.io
def test_statements_of_a_month_and_their_files(stand: Stand) -> None:
    """Before: none in the console; a customer with a key could not get his own."""
    secret = stand.key("key-1")
    settle(stand.engine, entry(0), node=None)
    month = datetime.fromtimestamp(YESTERDAY, UTC).strftime("%Y-%m")
    page = stand.get(f"/v1/statements?month={month}")
    (line,) = page["data"]
    assert (line["scope_id"], line["amount_due_usd"]) == ("org_default", None)
    assert line["state"] == page["state"] != "final"
    assert Decimal(line["charge_usd"]) == Decimal(entry(0).charge_nusd).scaleb(-9)
    whole = stand.get(f"/v1/statements/org_default?month={month}")
    assert (whole["usage_usd"], whole["final"]) == (line["charge_usd"], False)
    (project,) = stand.get(f"/v1/statements?month={month}&kind=project&q=DEFAULT")["data"]
    assert (project["scope_id"], project["charge_usd"]) == ("proj_default", line["charge_usd"])
    html = stand("GET", f"/v1/statements/org_default?month={month}&format=html")
    assert (html.status, html.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert html.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
    csv = stand("GET", f"/v1/statements/org_default?month={month}&format=csv")
    assert csv.headers["Content-Disposition"] == f'attachment; filename="statement-{month}-org_default.csv"'
    own = stand.get(f"/v1/statements/key-1?month={month}", key=secret)
    assert own["usage_usd"] == line["charge_usd"]
    for scope_id, key in (("org_default", secret), ("nobody", SECRET)):
        refused = stand("GET", f"/v1/statements/{scope_id}?month={month}", key=key)
        assert (refused.status, refused.body["error"]["param"]) == (404, "scope_id")
    for query in ("month=2999-01", "month=2026-13", "month=x"):
        assert stand("GET", f"/v1/statements?{query}").body["error"]["param"] == "month"


@pytest.mark.io
def test_a_pdf_of_thousands_of_rows_is_left_to_the_command(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: 10,000 rows took a minute of the proxy's CPU."""
    stand.key("key-1")
    settle(stand.engine, entry(0), node=None)
    path = f"/v1/statements/org_default?month={datetime.fromtimestamp(YESTERDAY, UTC):%Y-%m}"
    monkeypatch.setattr(statements, "PDF_ROWS_MAX", 2)
    refused = stand("GET", f"{path}&format=pdf")
    assert (refused.status, refused.body["error"]["param"]) == (400, "format")
    assert "at most 2 rows" in refused.body["error"]["message"]
    assert stand("GET", f"{path}&format=html").status == 200


@pytest.mark.io
def test_a_closed_month_has_final_statements(stand: Stand) -> None:
    began = datetime(2026, 9, 10, tzinfo=UTC).timestamp()
    old = replace(a_real_entry(0), started_at=began, exchange_id=f"{id_from(began)}7000-8000-000000000000")
    stand.key("key-1")
    settle(stand.engine, old, node=None)
    from proxy.billing.period import month_from

    close(a_real_store(stand.engine), month_from("2026-09"), by="anna")
    issue_all(stand.engine)
    page = stand.get("/v1/statements?month=2026-09")
    (line,) = page["data"]
    assert (page["state"], line["state"], line["amount_due_usd"]) == ("final", "final", "0")
    assert line["short_number"].startswith("2026-09-O-")
    states = {one["month"]: (one["state"], one["closed_by"]) for one in page["months"]}
    assert states["2026-09"] == ("final", "anna")
    assert min(states) == "2026-09", "nothing is on a statement of an earlier month"
    assert stand.get("/v1/statements/org_default?month=2026-09")["final"] is True
