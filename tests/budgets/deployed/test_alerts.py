"""Alerts of a running deployment: once for each threshold, signed, and they survive a kill."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.budgets.deployed.limited import Limited, deployment
from tests.support.provider import ScriptedProvider

pytestmark = pytest.mark.thorough

SECRET = "whsec-canary-41f7"


class Listener:
    """Somebody's server."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self.unsigned: list[str] = []
        self.url = ""

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.read()
        signed = f"{request.headers['X-Tokenweir-Timestamp']}.".encode() + body
        expected = "v1=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        if request.headers["X-Tokenweir-Signature"] != expected:
            self.unsigned.append(request.headers["X-Tokenweir-Id"])
        self.seen.append(json.loads(body))
        return web.Response()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    made = Listener()
    app = web.Application()
    app.router.add_post("/hook", made.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}/hook"
    yield made
    await runner.cleanup()


@pytest.mark.waits
async def test_each_threshold_is_told_once(tmp_path: Path, provider: ScriptedProvider, listener: Listener) -> None:
    tokenweir = deployment(tmp_path, provider, alerts={"url": listener.url, "secret": "${TEST_WEBHOOK}"})
    tokenweir.environment["TEST_WEBHOOK"] = SECRET
    limited = Limited(tokenweir, provider)
    await asyncio.to_thread(tokenweir.start)
    try:
        key_id, key = await asyncio.to_thread(limited.key, "--budget", "0.001", "--budget-window", "calendar_month")
        model = limited.model(100)
        for _ in range(6):
            assert (await limited.post(key, model)).status == 200
        await until(listener, 1)
        assert [one["threshold"] for one in listener.seen] == [50]
        await asyncio.to_thread(tokenweir.kill)
        await asyncio.to_thread(tokenweir.start)
        for _ in range(4):
            assert (await limited.post(key, model)).status == 200
        await until(listener, 3)
        assert (await limited.post(key, model)).status == 402
        await limited.at_rest(key_id)
    finally:
        await asyncio.to_thread(tokenweir.close)
    assert sorted(one["threshold"] for one in listener.seen) == [50, 80, 100]
    assert {(one["type"], one["scope_id"], one["budget_usd"]) for one in listener.seen} == {
        ("budget.threshold", key_id, "0.001")
    }
    assert listener.unsigned == []
    assert SECRET.encode() not in tokenweir.outputs()


async def until(listener: Listener, count: int) -> None:
    async with asyncio.timeout(20):
        while len(listener.seen) < count:
            await asyncio.sleep(0.05)
