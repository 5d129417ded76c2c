"""With `hide_providers`, no answer for a key names a provider; without it, and for operators, they do."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.settings import parse
from tests.console.entries import YESTERDAY, entry
from tests.console.furnished import running
from tests.console.stand import CONFIG, SECRETS, Stand
from tests.ledger.entries import a_ledger
from tests.ledger.priced_entries import settle

pytestmark = pytest.mark.io

NAMES = ("secretcorp", "secret-large", "secret-backup", "secret-word")
DETAILS: dict[str, Any] = {
    "attempts": [
        {
            "provider": "secret-backup", "upstream_model": "secret-large", "failed": "refused", "status": 429,
            "started_at": 1.0, "duration_ms": 1.0,
        }
    ],
    "credential": "secret-word", "served_instead_of": "secret-large", "failed": "secret-word",
    "usage": {"secret-word": 1}, "unread": ["secret-word"], "provider_timings": {"secret-word": 1.0},
    "beside_usage": {"secret-word": 2}, "stated_usd": "1",
    "other_models": [{"model": "secret-backup", "usage": {"prompt_tokens": 1}, "price": None}],
}  # fmt: skip


@pytest.fixture(params=[True, False])
def hiding(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Stand, bool]]:
    engine = a_ledger(tmp_path)
    config = CONFIG + (f"hide_providers: {str(request.param).lower()}\n" if request.param else "")
    made = Stand(tmp_path, engine, config)
    yield made, request.param
    made.close()
    engine.dispose()


def reads_of_keys(stand: Stand, secret: str) -> dict[str, bytes]:
    """Every GET that a key may send to either listener → its answer."""
    exchange_id = entry(0).exchange_id
    day = int(YESTERDAY)
    queries = {
        "/v1/organization/usage/completions": f"?start_time={day}&group_by=model",
        "/v1/organization/costs": f"?start_time={day}&group_by=line_item",
        "/v1/usage": f"?from={day}&group_by=model&compare=previous",
        "/v1/usage/change": f"?from={day}",
        "/v1/statements/key-1": f"?month={time.strftime('%Y-%m', time.gmtime(YESTERDAY))}",
    }
    found = {}
    for path, methods in stand("GET", "/openapi.json", key=None).body["paths"].items():
        named = path.replace("{exchange_id}", exchange_id).replace("{scope_id}", "key-1")
        named = re.sub(r"\{\w+\}", "x", named)  # of operators alone
        if "get" in methods:
            answered = stand("GET", f"{named}{queries.get(named, '')}", key=secret)
            if answered.status != 403:
                # No month is closed: the receipt of one that is closed is in `test_exchange_actions.py`.
                assert answered.status == (409 if path.endswith("/receipt") else 200), (path, answered)
                found[path] = str(answered.body).encode()
    with stand.clients() as url:
        for path in (f"/v1/exchanges/{exchange_id}", f"/v1/generation?id={exchange_id}", "/v1/me", "/v1/key"):
            answered = stand("GET", path, key=secret, at=url)
            assert answered.status == 200, (path, answered)
            found[f"clients: {path}"] = str(answered.body).encode()
    return found


def test_a_reseller_does_not_name_its_providers(hiding: tuple[Stand, bool]) -> None:
    """Before: each exchange named them, to every customer."""
    stand, hides = hiding
    secret = stand.key("key-1")
    served = replace(
        entry(0),
        provider="secretcorp",
        upstream_model="secret-large",
        usage_source="estimated",
        estimator="reference-2",
        details={**entry(0).details, **DETAILS},
    )
    settle(stand.engine, served, node=None)
    stream = running(1, key_id="key-1", provider="secretcorp")
    stand.inside.streams = [stream]
    answers = reads_of_keys(stand, secret)
    assert len(answers) >= 15, "no endpoint is left out"
    telling = {path for path, body in answers.items() for name in NAMES if name.encode() in body}
    if hides:
        assert telling == set()
    else:
        assert {"/v1/exchanges", "/v1/exchanges/{exchange_id}", "/v1/live"} <= telling
    shown = stand.get(f"/v1/exchanges/{served.exchange_id}", key=secret)
    assert (shown["provider"], shown["upstream_model"]) == ((None, None) if hides else ("secretcorp", "secret-large"))
    assert "None" not in shown["explanation"]
    assert shown["charge_usd"] == stand.get(f"/v1/exchanges/{served.exchange_id}")["charge_usd"]
    assert stand.get(f"/v1/exchanges/{served.exchange_id}")["provider"] == "secretcorp", "an operator"
    day = int(YESTERDAY)
    for path, param in (
        ("/v1/exchanges?provider=secretcorp", "provider"), (f"/v1/usage?from={day}&group_by=provider", "group_by"),
        (f"/v1/usage?from={day}&provider=x", "provider"), (f"/v1/usage/change?from={day}&provider=x", "provider"),
    ):  # fmt: skip
        answered = stand("GET", path, key=secret)
        assert answered.status == (403 if hides else 200), path
        assert not hides or answered.body["error"]["param"] == param
        assert stand("GET", path).status == 200


def test_it_is_off_by_default(tmp_path: Path) -> None:
    assert parse(CONFIG, env=SECRETS, folder=tmp_path).hide_providers is False
