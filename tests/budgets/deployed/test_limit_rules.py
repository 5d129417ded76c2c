"""Limits by rule, as a client meets them: each end user has one, nobody passes it, and it opens no other level."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.http.headers import FALLBACK_HEADER
from proxy.keys.narrowing import narrowed_text
from tests.budgets.deployed.limited import SOON_S, Limited, code, get, served
from tests.budgets.deployed.machines import Machines
from tests.support.net import Response
from tests.support.provider import ScriptedProvider
from tests.support.valkey import Valkey
from tests.support.waiting import until

TEN = ("--budget", "0.001", "--budget-window", "none")
TEN_REQUESTS = ("--quota", "requests=10", "--quota", "output_tokens=5000", "--budget-window", "calendar_month")


@contextmanager
def rule(limited: Limited, *options: str) -> Iterator[str]:
    """A rule while a test runs: the deployment is that of others, too."""
    made = limited.change("limits", "create", *options)
    try:
        yield made["rule_id"]
    finally:
        limited.change("limits", "delete", made["rule_id"], "--yes")


async def as_user(limited: Limited, key: str, model: str, user: str | None, **more: object) -> Response:
    headers = {} if user is None else {"x-tokenweir-end-user": user}
    return await limited.post(key, model, headers=headers, **more)  # type: ignore[arg-type]


async def budgets(limited: Limited, key: str, user: str | None) -> list[dict[str, Any]]:
    """What a client sees of its budgets."""
    headers = {} if user is None else {"x-tokenweir-end-user": user}
    found: list[dict[str, Any]] = (await get(limited, "/v1/me", key, **headers))["budgets"]
    return found


async def until_it_limits(limited: Limited, key: str, status: int = 402) -> None:
    """A process learns of a rule within a second: until then nobody is limited. An end user of its own is asked for."""
    model, number = limited.model(100), 0
    while True:
        number += 1
        answer = await as_user(limited, key, model, f"probe-{number}", max_tokens=1_000_000)
        if answer.status == status:
            return
        assert answer.status == 200, answer.body
        await asyncio.sleep(0.05)


async def test_each_end_user_has_a_limit_and_a_crowd_does_not_pass_it(limited: Limited) -> None:
    key_id, key = limited.key()
    model = limited.model(100, first_ms=50)
    with rule(limited, "each user", "--key", key_id, "--split-by", "end_user", *TEN) as rule_id:
        await until_it_limits(limited, key)
        crowd = [as_user(limited, key, model, user) for _ in range(20) for user in ("alice", "bob")]
        answers = await asyncio.gather(*crowd)
        assert (served(list(answers[::2])), served(list(answers[1::2]))) == (10, 10)
        refused = json.loads(next(one.body for one in answers if one.status == 402))["error"]
        assert refused["code"] == "insufficient_quota"
        assert "the limit 'each user' for this end_user" in refused["message"]
        assert "alice" not in refused["message"]
        assert (await limited.post(key, model, user="carol")).status == 200, "OpenAI's field"
        assert (await limited.post(key, model, user="alice")).status == 402
        assert (await as_user(limited, key, model, None)).status == 200, "who names nobody has the key's limits alone"
        _, other = limited.key()
        assert (await as_user(limited, other, model, "alice")).status == 200, "of another key"
        for user, left in (("alice", "0"), ("nobody-yet", "0.001")):
            [own] = [one for one in await budgets(limited, key, user) if one["scope_kind"] == "rule"]
            assert (own["name"], own["budget_usd"], own["left_usd"]) == ("each user", "0.001", left)
        assert await budgets(limited, key, None) == []
        shown = {name: one for name, one in limited.counters().items() if name.startswith(rule_id)}
        assert {one["dimensions"]["end_user"]["value"] for one in shown.values()} >= {"alice", "bob", "carol"}
        assert len(shown) >= 3
    await limited.until_served(key, model, user="alice")


async def test_each_end_user_has_a_quota_of_requests_and_tokens(limited: Limited) -> None:
    key_id, key = limited.key()
    model = limited.model(100, first_ms=50)
    with rule(limited, "monthly", "--key", key_id, "--split-by", "end_user", *TEN_REQUESTS) as rule_id:
        await until_it_limits(limited, key, 429)
        answers = await asyncio.gather(*(as_user(limited, key, model, "alice", stream=n % 2 == 0) for n in range(25)))
        assert [one.status for one in answers].count(200) == 10
        refused = next(one for one in answers if one.status == 429)
        assert code(refused) == "rate_limit_exceeded"
        assert "the quota of 10 requests of the limit 'monthly' for this end_user" in refused.body.decode()
        assert int(refused.header("retry-after") or 0) > 0
        big = await as_user(limited, key, model, "bob", max_tokens=6_000)
        assert (big.status, json.loads(big.body)["error"]["type"]) == (429, "tokens")
        assert "(5000 left): it would reserve 6000 output tokens" in big.body.decode()
        assert (await as_user(limited, key, model, "bob")).status == 200

        async def is_counted() -> bool:
            shown = limited.counters()
            alice = [one["quota"] for name, one in shown.items() if name.startswith(f"{rule_id}/") and one["quota"]]
            return {(one["measure"], one["max"], one["used"], one["held"]) for one in alice} >= {
                ("requests", 10, 10, 0), ("output_tokens", 5000, 1000, 0),
                ("requests", 10, 1, 0), ("output_tokens", 5000, 100, 0),
            }  # fmt: skip

        await until(is_counted, within_s=SOON_S)
        assert (await as_user(limited, key, model, "alice")).status == 429


async def test_a_dimension_can_be_required(limited: Limited) -> None:
    key_id, key = limited.key()
    model = limited.model(100)
    options = ("--split-by", "end_user", "--split-by", "tag:team", "--required", "--rpm", "2")
    with rule(limited, "team", "--key", key_id, "--model", "m*", *options):
        for _ in range(100):
            refused = await as_user(limited, key, model, "alice")
            if refused.status != 200:
                break
            await asyncio.sleep(0.05)
        error = json.loads(refused.body)["error"]
        assert (refused.status, error["code"], error["param"]) == (400, "missing_dimension", "tag:team")
        assert "x-tokenweir-tags: team=" in error["message"]
        red = {"x-tokenweir-end-user": "alice", "x-tokenweir-tags": "team=red"}
        answers = [await limited.post(key, model, headers=red) for _ in range(3)]
        assert [one.status for one in answers] == [200, 200, 429]
        assert code(answers[2]) == "rate_limit_exceeded"
        assert (await limited.post(key, model, headers={**red, "x-tokenweir-tags": "team=blue"})).status == 200
        assert (await limited.post(key, "other", headers={})).status in (200, 404, 502), "of another model"


async def test_a_cheaper_model_serves_what_a_limit_refuses_and_the_answer_says_so(limited: Limited) -> None:
    dear, cheap = limited.model(100, first_ms=50), limited.model(100)
    key_id, key = limited.key("--budget", "0.0015", "--budget-window", "none")
    _, probing = limited.key()
    _, of_dear = limited.key("--model", dear)
    options = ("--project", "default", "--model", dear, "--fallback-model", cheap, "--split-by", "end_user")
    with rule(limited, "dear", *options, *TEN) as rule_id:

        async def falls_back() -> bool:
            answer = await as_user(limited, probing, dear, "probe", max_tokens=1_000_000)
            return answer.header(FALLBACK_HEADER) == cheap

        await until(falls_back, within_s=SOON_S, poll_s=0.05)
        answers = await asyncio.gather(*(as_user(limited, key, dear, "alice") for _ in range(30)))
        assert served(list(answers)) == 15, "the key's limit stands at the other model, too"
        told = [one.header(FALLBACK_HEADER) for one in answers if one.status == 200]
        assert sorted(told, key=str) == [None] * 10 + [cheap] * 5
        entries = limited.entries(key_id, 15)
        assert [one["model"] for one in entries].count(dear) == 10
        instead = {"model": dear, "limit": rule_id}
        assert [one["details"].get("fallback") for one in entries if one["model"] == cheap] == [instead] * 5
        refused = await as_user(limited, of_dear, dear, "probe", max_tokens=1_000_000)
        assert (refused.status, refused.header(FALLBACK_HEADER)) == (402, None), "of a key that may not use the other"
        assert "the limit 'dear' for this end_user" in json.loads(refused.body)["error"]["message"]


async def test_a_limit_of_a_provider_counts_what_it_serves_and_leads_to_others(limited: Limited) -> None:
    key_id, key = limited.key()
    model = limited.model(100, first_ms=50)
    options = ("--key", key_id, "--provider", "scripted", "--split-by", "end_user", "--budget", "0.001")
    with rule(limited, "of scripted", *options, "--budget-window", "24h") as rule_id:
        await until_it_limits(limited, key)
        [elsewhere] = [await as_user(limited, key, f"many/{model}", "alice")]
        assert elsewhere.status == 200, "another provider is not limited"
        answers = await asyncio.gather(*(as_user(limited, key, f"both/{model}", "alice") for _ in range(30)))
        assert served(list(answers)) == 30
        for name in (model, f"both/{model}"):
            answers = [await as_user(limited, key, name, "alice")]
            assert answers[0].status == (402 if name == model else 200)

        def those(entries: list[dict[str, Any]]) -> list[str]:
            return [one["provider"] for one in entries if one["model"] == f"both/{model}" and one["key_id"] == key_id]

        entries = limited.tokenweir.until(lambda found: len(those(found)) >= 31)
        assert (those(entries).count("scripted"), those(entries).count("openai")) == (10, 21)
        [counter] = [
            one
            for name, one in limited.counters().items()
            if name.startswith(rule_id) and one["dimensions"]["end_user"]["value"] == "alice"
        ]
        at_rest = await limited.at_rest(counter["counter_id"])
        assert at_rest.spent == 1_000_000, "what others served is released, and is no spend"


async def test_a_claim_frees_no_request_of_its_key_s_limits(limited: Limited) -> None:
    key_id, key = limited.key(*TEN)
    model = limited.model(100, first_ms=20)
    with rule(limited, "each", "--key", key_id, "--split-by", "end_user", "--budget", "5"):
        answers = await asyncio.gather(*(as_user(limited, key, model, f"user-{number}") for number in range(30)))
        assert served(list(answers)) == 10
        refused = next(one for one in answers if one.status == 402)
        assert "the budget of this key" in json.loads(refused.body)["error"]["message"]


async def test_a_run_caps_itself(limited: Limited) -> None:
    """`ANTHROPIC_CUSTOM_HEADERS: "x-tokenweir-run: 42; max=0.001"` is all that an agent's job needs."""
    _, key = limited.key()
    model, run = limited.model(100, first_ms=50), {"x-tokenweir-run": "job-42; max=0.001"}
    answers = await asyncio.gather(*(limited.post(key, model, headers=run) for _ in range(20)))
    assert served(list(answers)) == 10
    refused = json.loads(next(one.body for one in answers if one.status == 402))["error"]
    assert "the budget of this run" in refused["message"]
    for value in ("job-42", "job-42; max=5"):
        assert (await limited.post(key, model, headers={"x-tokenweir-run": value})).status == 402, "it is only lowered"
    assert (await limited.post(key, model, headers={"x-tokenweir-run": "job-43; max=0.001"})).status == 200
    assert (await limited.post(key, model)).status == 200
    _, other = limited.key()
    for value in ("job-42", "job-43; max=0"):
        await limited.post(other, model, headers={"x-tokenweir-run": value})
    assert (await limited.post(key, model, headers={"x-tokenweir-run": "job-43"})).status == 200, (
        "a key caps its own runs"
    )
    wrong = await limited.post(key, model, headers={"x-tokenweir-run": "42; max=lots"})
    assert (wrong.status, json.loads(wrong.body)["error"]["param"]) == (400, "x-tokenweir-run")
    found = (await get(limited, "/v1/me", key, **run))["budgets"]
    assert [(one["name"], one["budget_usd"], one["left_usd"]) for one in found] == [("run", "0.001", "0")]


@pytest.mark.thorough
async def test_machines_share_the_cap_of_a_narrowed_key_through_losses(
    tmp_path: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str, valkey: Valkey
) -> None:
    with closing(Machines(tmp_path, provider, ledger_url, queue_url, 2)) as machines:
        machines.start()
        first, _ = machines.proxies
        _, parent = first.key("--narrowable")
        model = first.model(100, first_ms=30)
        capped = narrowed_text(parent, ["usd=0.001"])
        assert served(await machines.many(narrowed_text(capped, ["run=1"]), model, 4)) == 4
        valkey.ask("FLUSHALL")
        assert served(await machines.many(narrowed_text(capped, ["run=2", "usd=5"]), model, 40)) == 6


@pytest.mark.thorough
@pytest.mark.parametrize(("ten", "status"), [(TEN, 402), (TEN_REQUESTS, 429)], ids=["money", "requests"])
async def test_machines_share_it_through_losses(
    tmp_path: Path,
    provider: ScriptedProvider,
    ledger_url: str,
    queue_url: str,
    valkey: Valkey,
    ten: Sequence[str],
    status: int,
) -> None:
    with closing(Machines(tmp_path, provider, ledger_url, queue_url, 2)) as machines:
        machines.start()
        first, _ = machines.proxies
        key_id, key = first.key()
        first.change("limits", "create", "each", "--key", key_id, "--split-by", "end_user", *ten)
        for one in machines.proxies:
            await until_it_limits(one, key, status)
        model = first.model(100, first_ms=30)
        for number in range(3):
            alice = {"x-tokenweir-end-user": f"alice-{number}"}
            assert served(await machines.many(key, model, 4, headers=alice)) == 4
            valkey.ask("FLUSHALL")
            assert served(await machines.many(key, model, 30, headers=alice)) == 6, "four are spent or reserved"
