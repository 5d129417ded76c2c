"""Keys that the holder of a key has narrowed without the proxy: they may do what their caveats leave, and no more."""

from __future__ import annotations

import asyncio
import json
import sqlite3

import pytest

from proxy.keys.narrowing import narrowed_text
from tests.budgets.deployed.limited import Limited, ask_at, code, get, served
from tests.support.waiting import until


def narrowable(limited: Limited, *options: str) -> tuple[str, str]:
    return limited.key("--narrowable", *options)


async def test_it_is_a_key_for_some_models_and_some_time(limited: Limited) -> None:
    allowed, other = limited.model(5), limited.model(5)
    key_id, parent = narrowable(limited, "--model", allowed, "--model", other)
    assert (await limited.post(parent, other)).status == 200, "a narrowable key is a key"
    child = narrowed_text(parent, [f"models={allowed}", "run=job-1", "end_user=alice"])
    answer = await limited.post(child, allowed, headers={"x-tokenweir-run": "another"})
    assert answer.status == 200
    refused = await limited.post(child, other)
    assert (refused.status, code(refused)) == (403, "model_not_allowed")
    wider = await limited.post(narrowed_text(child, [f"models={other}"]), allowed)
    assert wider.status == 403
    limited.entries(key_id, 2)
    found = limited.tokenweir.command("ledger", "--run", "job-1", "--end-user", "alice", "--json").stdout
    assert [json.loads(line)["exchange_id"] for line in found.splitlines()] == [
        answer.header("x-tokenweir-exchange")
    ], "whatever run its client names"
    assert (await get(limited, "/v1/me", child))["models"] == [allowed]
    refused = await limited.post(narrowed_text(child, ["expires=2026-01-01"]), allowed)
    assert (refused.status, code(refused)) == (401, "expired_api_key")
    for path, expected in (("/v1/files", "stored_not_allowed"), ("/v1/responses/resp_1", "response_not_found")):
        status, document = ask_at(limited.url, path, narrowed_text(child, ["stored=none"]))
        assert (status, document["error"]["code"]) == (403 if "files" in path else 404, expected)
    assert ask_at(limited.url, "/v1/files", child)[0] == 200
    limited.change("keys", "revoke", key_id)

    async def is_refused() -> bool:
        return ask_at(limited.url, "/v1/me", child)[0] == 401

    await until(is_refused, poll_s=0.1)


async def test_all_keys_that_are_made_from_a_capped_key_share_its_cap(limited: Limited) -> None:
    key_id, parent = narrowable(limited)
    model = limited.model(100)
    capped = narrowed_text(parent, ["name=ci", "usd=0.0005"])
    children = [narrowed_text(capped, [f"run={number}", "usd=0.0005"]) for number in range(10)]
    answers = await asyncio.gather(
        *(limited.post(child, model, max_tokens=100, stream=stream) for child in children for stream in (False, True))
    )
    assert served(list(answers)) == 5, "0.0001 USD each"
    [refused, *_] = [one for one in answers if one.status == 402]
    assert "this narrowed key" in json.loads(refused.body)["error"]["message"]
    assert refused.header("x-should-retry") == "false"
    assert (await limited.post(parent, model, max_tokens=100)).status == 200, "the parent has no cap"
    limited.entries(key_id, 6)
    shared = next(one for one in limited.counters() if one.startswith(f"cap/{key_id},"))
    await limited.at_rest(shared)
    shown = limited.counters()[shared]
    assert (shown["spent_usd"], shown["budget_usd"], shown["name"]) == ("0.0005", "0.0005", "cap")
    budgets = (await get(limited, "/v1/me", children[0]))["budgets"]
    assert {(one["name"], one["left_usd"]) for one in budgets} >= {("cap", "0")}
    refused = await limited.post(capped, model, max_tokens=100)
    assert (refused.status, code(refused)) == (402, "insufficient_quota")
    drift = limited.tokenweir.command("budgets", "rebuild", "--json").stdout
    assert all(json.loads(line)["drift_usd"] == "0" for line in drift.splitlines()), drift
    assert (await limited.post(capped, model, max_tokens=100)).status == 402, "the ledger has the same sum"


async def test_a_child_reads_no_answer_and_no_exchange_of_its_parent_or_sibling(limited: Limited) -> None:
    key_id, parent = narrowable(limited)
    model, token = limited.model(5), {"Idempotency-Key": "guessed"}
    child, sibling = (narrowed_text(parent, [f"name={name}", "stored=none"]) for name in ("ci", "cd"))
    mine = [(await limited.post(key, model, headers=token)) for key in (parent, child, sibling, child, parent)]
    assert [one.status for one in mine] == [200] * 5
    replayed = [one.header("idempotent-replayed") for one in mine]
    assert replayed == [None, None, None, "true", "true"], "each has its own answer"
    limited.entries(key_id, 3)
    exchange_id = mine[0].header("x-tokenweir-exchange")
    for path in (f"/v1/generation?id={exchange_id}", f"/api/v1/generation?id={exchange_id}"):
        assert ask_at(limited.url, path, parent)[0] == 200
        assert ask_at(limited.url, path, narrowed_text(parent, ["run=1"]))[0] == 200
        status, document = ask_at(limited.url, path, child)
        assert (status, document["error"]["code"]) == (404, "generation_not_found")
    path = f"/v1/exchanges/{exchange_id}"
    assert [ask_at(limited.url, path, key)[0] for key in (parent, narrowed_text(parent, ["run=1"]))] == [200, 200]
    status, document = ask_at(limited.url, path, child)
    assert (status, document["error"]["code"]) == (404, "exchange_not_found")


async def test_a_forgery_is_an_unknown_key(limited: Limited) -> None:
    _, parent = narrowable(limited)
    child = narrowed_text(parent, ["models=none"])
    head, _, signature = child.rpartition(".")
    stripped = f"{head.rpartition('.')[0]}.{signature}"
    status, refused = ask_at(limited.url, "/v1/me", stripped)
    assert (status, refused["error"]["code"]) == (401, "invalid_api_key")
    assert ask_at(limited.url, "/v1/me", child)[0] == 200


@pytest.mark.thorough
async def test_a_cap_holds_while_nothing_is_settled_and_through_a_kill(alone: Limited) -> None:
    key_id, parent = narrowable(alone)
    model = alone.model(100)
    child = narrowed_text(parent, ["usd=0.001", "run=1", "usd=0.002"])
    assert (await alone.post(child, model)).status == 200
    lock = sqlite3.connect(alone.tokenweir.folder / "data" / "ledger.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        assert served([await alone.post(child, model) for _ in range(4)]) == 4
        other = await alone.post(narrowed_text(child, ["usd=0.5"]), model)
        assert (other.status, code(other)) == (503, "key_cap_unknown"), "its cap would not hold"
        alone.tokenweir.kill()
    finally:
        lock.execute("ROLLBACK")
        lock.close()
    await asyncio.to_thread(alone.tokenweir.start)
    assert served(await alone.many(child, model, 20)) == 5
    alone.entries(key_id, 10)
    caps = [one for one in alone.counters() if one.startswith("cap")]
    assert len(caps) == 2
    for one in caps:
        assert (await alone.at_rest(one)).spent == 1_000_000
