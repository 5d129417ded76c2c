"""What a client is told of its own key by a whole deployment: spent, reserved, left, and the charge of an exchange."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.script import Shape, json_script
from proxy.gateway.key_info.allowance import ANSWERS_MAX
from tests.budgets.deployed.limited import Limited, ask_at, begin, deployment, get
from tests.budgets.deployed.machines import Machines
from tests.support.net import Response
from tests.support.provider import ScriptedProvider
from tests.support.waiting import until

BUDGET = ("--budget", "0.001", "--budget-window", "calendar_month")
OPERATOR = "0123456789abcdefghijklmnopqrstuvwxyz"
# Of OpenRouter's own SDK for Python (openrouter 1.3): it refuses an answer without one of these.
KEY_MEMBERS = {
    "byok_usage", "byok_usage_daily", "byok_usage_monthly", "byok_usage_weekly", "creator_user_id",
    "include_byok_in_limit", "is_free_tier", "is_management_key", "is_provisioning_key", "label", "limit",
    "limit_remaining", "limit_reset", "rate_limit", "usage", "usage_daily", "usage_monthly", "usage_weekly",
}  # fmt: skip


async def budget(limited: Limited, key: str) -> dict[str, Any]:
    (one,) = (await get(limited, "/v1/me", key))["budgets"]
    return dict(one)


async def test_spent_reserved_and_left(limited: Limited) -> None:
    key_id, key = limited.key(*BUDGET, "--rpm", "100")
    fresh = await get(limited, "/v1/me", key)
    assert fresh["id"] == key_id
    assert (fresh["project"]["id"], fresh["organization"]["id"]) == ("proj_default", "org_default")
    assert fresh["limits"][0]["rpm"] == 100
    assert fresh["spent_usd"] == "0"
    (unused,) = fresh["budgets"]
    assert (unused["budget_usd"], unused["left_usd"], unused["running"]) == ("0.001", "0.001", 0)
    assert unused["window_start"] < unused["window_end"], "known before the first request"

    async with AsyncExitStack() as stack:
        rest = await begin(limited, key, stack, limited.model(100, pace_ms=5), 400)
        running = await budget(limited, key)
        assert {name: running[name] for name in ("spent_usd", "held_usd", "left_usd", "running")} == {
            "spent_usd": "0", "held_usd": "0.0004", "left_usd": "0.0006", "running": 1,
        }  # fmt: skip
        assert (await get(limited, "/v1/key", key))["data"]["limit_remaining"] == 0.0006
        await rest()
    await limited.at_rest(key_id)
    ended = await budget(limited, key)
    assert (ended["spent_usd"], ended["held_usd"], ended["left_usd"], ended["running"]) == ("0.0001", "0", "0.0009", 0)
    shown = limited.counters()[key_id]
    assert (shown["spent_usd"], shown["held_usd"]) == ("0.0001", "0"), "as the operator's command shows it"
    assert (await get(limited, "/v1/me", key))["spent_usd"] == "0.0001"


async def test_openrouter_s_routes(limited: Limited) -> None:
    key_id, key = limited.key(*BUDGET, "--expires", "30d")
    model = limited.model(100)
    answer = await limited.post(key, model)
    await limited.at_rest(key_id)
    info = (await get(limited, "/api/v1/key", key))["data"]
    assert info.keys() >= KEY_MEMBERS
    assert (info["limit"], info["limit_remaining"], info["limit_reset"]) == (0.001, 0.0009, "monthly")
    assert [info[f"usage{name}"] for name in ("", "_daily", "_weekly", "_monthly")] == [0.0001] * 4
    assert info["expires_at"] is not None
    assert (await get(limited, "/api/v1/auth/key", key))["data"] == info
    assert (await get(limited, "/v1/credits", key))["data"] == {"total_credits": 0.001, "total_usage": 0.0001}

    exchange_id, response_id = answer.header("x-tokenweir-exchange"), json.loads(answer.body)["id"]
    found = (await get(limited, f"/api/v1/generation?id={exchange_id}", key))["data"]
    assert (found["id"], found["upstream_id"], found["model"]) == (exchange_id, response_id, model)
    assert (found["total_cost"], found["tokens_completion"], found["streamed"]) == (0.0001, 100, False)
    assert found["provider_name"] is None, "not the client's business"
    assert (await get(limited, f"/v1/generation?id={response_id}", key))["data"] == found

    _, stranger = limited.key()
    for named in (exchange_id, response_id, "none", "%00", "x" * 300):
        status, refused = ask_at(limited.url, f"/api/v1/generation?id={named}", stranger)
        assert (status, refused["error"]["code"]) == (404, "generation_not_found")
    assert ask_at(limited.url, "/api/v1/generation", key)[0] == 400


async def test_a_key_without_a_budget(limited: Limited) -> None:
    key_id, key = limited.key()
    assert (await limited.post(key, limited.model(100))).status == 200
    limited.entries(key_id, 1)
    found = await get(limited, "/v1/me", key)
    assert (found["limits"], found["budgets"], found["expires_at"]) == ([], [], found["expires_at"])
    assert found["spent_usd"] == "0.0001"
    names = [one["id"] for one in (await get(limited, "/v1/models", key))["data"]]
    prices = (await get(limited, "/v1/me/prices", key))["data"]
    assert [one["model"] for one in prices] == names
    info = (await get(limited, "/api/v1/key", key))["data"]
    assert (info["limit"], info["limit_remaining"], info["limit_reset"]) == (None, None, None)
    assert (await get(limited, "/api/v1/credits", key))["data"] == {"total_credits": 0, "total_usage": 0.0001}


async def test_prepaid_credit_and_a_budget_of_the_project(limited: Limited) -> None:
    project = limited.change("accounts", "create-project", "kites", "--organization", "org_default", *BUDGET)[
        "account_id"
    ]
    _, other = limited.key("--project", project)
    key_id, key = limited.key("--project", project, "--prepaid")
    limited.change("credit", "add", "--key", key_id, "--usd", "0.0005", "--reason", "paid")
    assert (await limited.post(other, limited.model(100))).status == 200
    await limited.until_served(key, limited.model(50))
    for counter_id in (project, f"{key_id}/credit"):
        await limited.at_rest(counter_id)
    budgets = (await get(limited, "/v1/me", key))["budgets"]
    assert [(one["window"], one["scope_kind"], one["spent_usd"], one["left_usd"]) for one in budgets] == [
        ("credit", "key", "0.00005", "0.00045"),
        ("calendar_month", "project", "0.00015", "0.00085"),
    ]
    assert (await get(limited, "/v1/me", key))["project"] == {"id": project, "name": "kites"}
    assert (await get(limited, "/api/v1/credits", key))["data"] == {"total_credits": 0.0005, "total_usage": 0.00005}
    assert (await get(limited, "/api/v1/key", key))["data"]["limit_remaining"] == 0.00045


async def test_refusals_have_the_format_of_the_client_s_sdk(limited: Limited) -> None:
    key_id, key = limited.key()
    await get(limited, "/v1/me", key)
    limited.change("keys", "revoke", key_id)

    async def is_refused() -> bool:
        return ask_at(limited.url, "/v1/me", key)[0] == 401

    await until(is_refused, poll_s=0.2)
    for path in ("/v1/me", "/api/v1/key", "/api/v1/credits", "/api/v1/generation?id=x"):
        status, refused = ask_at(limited.url, path, key)
        assert (status, refused["error"]["code"]) == (401, "revoked_api_key")
    status, refused = ask_at(limited.url, "/v1/me", "tw-none", **{"anthropic-version": "2023-06-01"})
    assert (status, refused["type"], refused["error"]["type"]) == (401, "error", "authentication_error")


async def test_a_key_that_polls_is_slowed_down_and_no_other(limited: Limited) -> None:
    (_, key), (_, other) = limited.key(), limited.key()
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: ask_at(limited.url, "/v1/me", key), range(ANSWERS_MAX + 20)))
    statuses = [status for status, _ in answers]
    assert (statuses.count(200), statuses.count(429)) == (ANSWERS_MAX, 20)
    assert (await limited.post(key, limited.model(5))).status == 200, "requests are not counted there"
    await get(limited, "/v1/me", other)


def polled(url: str, keys: list[str], rounds: int) -> list[int]:
    with ThreadPoolExecutor(len(keys)) as threads:
        return [
            status for _ in range(rounds) for status, _ in threads.map(lambda key: ask_at(url, "/v1/me", key), keys)
        ]


@pytest.fixture
def watched(tmp_path: Path, provider: ScriptedProvider) -> Iterator[Limited]:
    """With a console."""
    with closing(deployment(tmp_path, provider, admin={"port": 0, "secret": "${OPERATOR}"})) as tokenweir:
        tokenweir.environment["OPERATOR"] = OPERATOR
        yield Limited(tokenweir.start(), provider)


@pytest.mark.thorough
async def test_polling_of_many_keys_does_not_keep_the_operator_waiting(watched: Limited) -> None:
    keys = [watched.key(*BUDGET)[1] for _ in range(12)]
    polling = asyncio.to_thread(polled, watched.url, keys, 10)
    console = watched.tokenweir.console_url
    seen = asyncio.gather(*(asyncio.to_thread(ask_at, console, "/v1/budgets", OPERATOR) for _ in range(20)))
    statuses, shown = await asyncio.gather(polling, seen)
    assert set(statuses) <= {200, 503}, "503: too many at once"
    assert statuses.count(200) > len(statuses) / 2
    assert [status for status, _ in shown] == [200] * 20


def budget_headers(answer: Response) -> dict[str, str]:
    start = "x-tokenweir-budget-"
    return {name.removeprefix(start): value for name, value in answer.headers if name.startswith(start)}


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_say_what_is_left_of_the_tightest_budget(limited: Limited, stream: bool) -> None:
    _, key = limited.key(*BUDGET)
    answer = await limited.post(key, limited.model(10), max_tokens=100, stream=stream)
    told, shown = budget_headers(answer), await budget(limited, key)
    assert told == {"remaining": "0.0009", "limit": "0.001", "reset": shown["window_end"]}, "this request is reserved"
    run = {"x-tokenweir-run": f"{stream}; max=0.0005"}
    capped = await limited.post(key, limited.model(10), max_tokens=100, stream=stream, headers=run)
    assert budget_headers(capped) == {"remaining": "0.0004", "limit": "0.0005"}, "a cap has no window"
    refused = await limited.post(
        key, limited.provider.script("no", json_script({"error": {"message": "no"}}, 400)), max_tokens=100
    )
    assert refused.status == 400
    assert budget_headers(refused)["limit"] == "0.001"
    _, free = limited.key()
    assert budget_headers(await limited.post(free, limited.model(10))) == {}


@pytest.mark.thorough
async def test_it_can_be_switched_off(tmp_path: Path, provider: ScriptedProvider) -> None:
    with closing(deployment(tmp_path, provider, key_info=False)) as tokenweir:
        limited = Limited(tokenweir.start(), provider)
        _, key = limited.key(*BUDGET)
        assert budget_headers(await limited.post(key, limited.model(10))) == {}
        for path in ("/v1/me", "/api/v1/key", "/v1/credits", "/api/v1/generation?id=x"):
            status, refused = ask_at(tokenweir.url, path, key)
            assert (status, refused["error"]["code"] if "v1/me" in path else None) in (
                (404, "unknown_url"),
                (404, None),
            )


@pytest.mark.thorough
async def test_machines_that_share_a_ledger_and_a_queue(
    tmp_path: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str
) -> None:
    with closing(Machines(tmp_path, provider, ledger_url, queue_url, 2)) as machines:
        await asyncio.to_thread(machines.start)
        first, second = machines.proxies
        key_id, key = await asyncio.to_thread(first.key, *BUDGET)
        model = provider.script("running", Shape("openai", tokens=100, pace_ms=5))
        async with AsyncExitStack() as stack:
            rest = await begin(first, key, stack, model, 400)
            running = await budget(second, key)
            assert (running["held_usd"], running["left_usd"], running["running"]) == ("0.0004", "0.0006", 1)
            answer = await rest()
        await second.at_rest(key_id)
        ended = await budget(second, key)
        assert (ended["spent_usd"], ended["held_usd"], ended["left_usd"]) == ("0.0001", "0", "0.0009")
        (entry,) = first.entries(key_id, 1)
        assert entry["exchange_id"] == answer.header("x-tokenweir-exchange")
        for named in (entry["exchange_id"], entry["provider_response_id"]):
            found = (await get(second, f"/v1/generation?id={named}", key))["data"]
            assert (found["id"], found["total_cost"]) == (entry["exchange_id"], 0.0001)
