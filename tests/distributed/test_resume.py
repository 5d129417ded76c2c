"""A stream that broke off at one machine is taken up at another one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proxy.demo.script import Shape
from tests.crash.chaos import deployment
from tests.crash.stage import quick_key
from tests.support import sse
from tests.support.by_hand import asking, get
from tests.support.net import ask, chat_request, free_port
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

pytestmark = [pytest.mark.process, pytest.mark.thorough]

SHAPE = Shape("openai", tokens=60, pace_ms=50)
PATIENCE_S = 20.0


def machine(folder: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str, *options: str) -> Tokenweir:
    port = free_port()
    return deployment(
        folder, provider, ledger_url=ledger_url, queue_url=queue_url, options=options,
        listen={"host": "127.0.0.1", "port": port}, resume={"address": f"http://127.0.0.1:{port}"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--workers", "2"), marks=pytest.mark.slow)], ids=["one process", "two processes"]
)
async def test_another_machine_is_asked(
    tmp_path: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str, options: tuple[str, ...]
) -> None:
    here = machine(tmp_path / "here", provider, ledger_url, queue_url, *options)
    there = machine(tmp_path / "there", provider, ledger_url, queue_url)
    key = quick_key(here)
    provider.script("resumed", SHAPE)
    try:
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in (here, there)))
        client = await asking(here.url, chat_request(ask("resumed"), key=key))
        await client.head()
        events = len(sse.data_events(await client.take(600)))
        client.leave()
        path = f"/v1/exchanges/{client.headers['x-tokenweir-exchange']}/stream?after="
        async with asyncio.timeout(PATIENCE_S):
            while await (again := await asking(there.url, get(f"{path}{events}", key))).head() == 404:
                again.leave()
                await asyncio.sleep(0.2)  # the machines learn of each other once a second
        assert again.status == 200
        rest = await again.rest()
        assert sse.done(rest)
        again.leave()
        for _ in range(6 if options else 1):  # whichever process of that machine is asked
            whole = await asking(there.url, get(f"{path}0", key))
            assert await whole.head() == 200
            assert (await whole.rest()).endswith(rest)
            assert len(sse.data_events(whole.body)) - len(sse.data_events(rest)) == events
            whole.leave()
    finally:
        here.close()
        there.close()
