"""Grants in a running deployment: what they allow, their end under a running stream, a kill, and balance.low."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.budgets.deployed.limited import Limited, begin, deployment, get
from tests.budgets.receiver import SECRET, Receiver
from tests.support.provider import ScriptedProvider
from tests.support.waiting import until

pytestmark = pytest.mark.thorough


@pytest.mark.waits
async def test_the_life_of_a_trial(tmp_path: Path, provider: ScriptedProvider, receiver: Receiver) -> None:
    alerts = {"url": receiver.url, "secret": "${TEST_WEBHOOK}", "balance_low_usd": "0.00025"}
    tokenweir = deployment(tmp_path, provider, alerts=alerts)
    tokenweir.environment["TEST_WEBHOOK"] = SECRET
    limited = Limited(tokenweir, provider)
    await asyncio.to_thread(tokenweir.start)
    try:
        key_id, key = limited.key("--prepaid")
        model = limited.model(100)

        def add(name: str, usd: str, *options: str) -> str:
            made = limited.change("grants", "add", name, "--key", key_id, "--usd", usd, *options)
            return str(made["grant_id"])

        def shown(grant_id: str) -> tuple[str, str, str]:
            printed = tokenweir.command("grants", "list", "--key", key_id, "--all").stdout
            one = next(one for one in map(json.loads, printed.splitlines()) if one["grant_id"] == grant_id)
            return one["granted_usd"], one["burned_usd"], one["expired_usd"]

        async def until_shown(grant_id: str, amounts: tuple[str, str, str]) -> None:
            await until(lambda: shown(grant_id) == amounts, poll_s=0.2)

        trial = add("trial", "0.0005", "--lasts", "1h")
        await limited.until_served(key, model)
        (left,) = (await get(limited, "/v1/me", key))["grants"]
        assert (left["name"], left["usd"]) == ("trial", "0.0005")
        async with AsyncExitStack() as stack:
            rest = await begin(limited, key, stack, limited.model(100, pace_ms=5), 300)
            limited.change("grants", "revoke", trial, "--yes")
            await until(lambda: len(receiver.got) == 1)
            assert (await limited.post(key, model)).status == 402, "a revoked grant can be spent"
            await rest()
        await until_shown(trial, ("0.0005", "0.0002", "0.0003"))
        await limited.at_rest(f"{key_id}/credit")
        assert (await limited.post(key, model)).status == 402, "a trial leaves credit"

        following = add("next", "0.0005", "--begins", "1s", "--lasts", "1h")
        await asyncio.to_thread(tokenweir.kill)
        await asyncio.to_thread(tokenweir.start)
        await limited.until_served(key, model)
        limited.change("grants", "revoke", following, "--yes")
        await until_shown(following, ("0.0005", "0.0001", "0.0004"))
        await until(lambda: len(receiver.got) == 2)
        short = add("short", "0.0005", "--lasts", "1s")
        await until_shown(short, ("0.0005", "0", "0.0005"))
        told: list[dict[str, Any]] = receiver.got
        assert {(one["type"], one["scope_id"]) for one in told} == {("balance.low", key_id)}
        assert len({one["id"] for one in told}) == len(told)
        assert tokenweir.command("reconcile").returncode == 0
    finally:
        await asyncio.to_thread(tokenweir.close)
