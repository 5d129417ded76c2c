"""Alerts of a running deployment: once for each threshold, signed, and they survive a kill."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.budgets.deployed.limited import Limited, deployment
from tests.budgets.receiver import SECRET, Receiver
from tests.support.provider import ScriptedProvider
from tests.support.waiting import until

pytestmark = pytest.mark.thorough


@pytest.mark.waits
async def test_each_threshold_is_told_once(tmp_path: Path, provider: ScriptedProvider, receiver: Receiver) -> None:
    tokenweir = deployment(tmp_path, provider, alerts={"url": receiver.url, "secret": "${TEST_WEBHOOK}"})
    tokenweir.environment["TEST_WEBHOOK"] = SECRET
    limited = Limited(tokenweir, provider)
    await asyncio.to_thread(tokenweir.start)
    try:
        key_id, key = await asyncio.to_thread(limited.key, "--budget", "0.001", "--budget-window", "calendar_month")
        model = limited.model(100)
        for _ in range(6):
            assert (await limited.post(key, model)).status == 200
        await until(lambda: len(receiver.got) >= 1, within_s=20)
        assert [one["threshold"] for one in receiver.got] == [50]
        await asyncio.to_thread(tokenweir.kill)
        await asyncio.to_thread(tokenweir.start)
        for _ in range(4):
            assert (await limited.post(key, model)).status == 200
        await until(lambda: len(receiver.got) >= 3, within_s=20)
        assert (await limited.post(key, model)).status == 402
        await limited.at_rest(key_id)
    finally:
        await asyncio.to_thread(tokenweir.close)
    assert sorted(one["threshold"] for one in receiver.got) == [50, 80, 100]
    assert {(one["type"], one["scope_id"], one["budget_usd"]) for one in receiver.got} == {
        ("budget.threshold", key_id, "0.001")
    }
    assert SECRET.encode() not in tokenweir.outputs()
