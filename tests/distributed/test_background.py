"""An answer is made in the background, and its machine dies: nobody reads what a sweeper has settled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.crash.stage import quick_key, until
from tests.distributed.apart import LEASE_S
from tests.support.clients import Clients, refusal
from tests.support.responses_provider import USAGE, ResponsesProvider, responses_provider
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section

pytestmark = pytest.mark.process


def proxy(folder: Path, provider: ResponsesProvider, **urls: str) -> Tokenweir:
    return Tokenweir(
        folder, providers={"scripted": provider_section(provider.url)}, lease_s=LEASE_S,
        models={"*": {"provider": "scripted", "price": PRICE, "cost": COST}}, **urls,
    )  # fmt: skip


@pytest.mark.slow
async def test_a_machine_that_dies_and_comes_back(tmp_path: Path, ledger_url: str, queue_url: str) -> None:
    async with responses_provider() as provider:
        one, two = (
            proxy(tmp_path / name, provider, ledger_url=ledger_url, queue_url=queue_url) for name in ("one", "two")
        )
        key = quick_key(one)
        worker = one.worker()
        try:
            await asyncio.gather(*(asyncio.to_thread(each.start) for each in (one, two, worker)))
            await die_and_come_back(provider, one, two, key)
        finally:
            for each in (one, two, worker):
                each.close()


async def die_and_come_back(provider: ResponsesProvider, one: Tokenweir, two: Tokenweir, key: str) -> None:
    async with Clients() as clients:
        here, there = (clients.gpt(each.url, key) for each in (one, two))
        made = await here.responses.create(model="gone", input="How much?", background=True)
        assert (await there.responses.retrieve(made.id)).status == "queued"
        await asyncio.sleep(1)  # its lease is written
        await asyncio.to_thread(one.kill)
        await until(lambda: bool(one.read_ledger()))
        (swept,) = one.read_ledger()
        assert (swept["outcome"], swept["details"]["swept"]) == ("crashed", True)
        with refusal(404):
            await there.responses.retrieve(made.id)
        await asyncio.to_thread(one.start)
        await provider.finish(made.id)
        await until(lambda: len(one.read_ledger()) > 1)
        entries = one.read_ledger()
        assert [entry["kind"] for entry in entries] == ["usage", "adjustment"]
        assert total(entries, "prompt_tokens") == USAGE["input_tokens"]
        assert total(entries, "completion_tokens") == USAGE["output_tokens"]
        assert (await there.responses.retrieve(made.id)).output_text == "Much."


def total(entries: list[dict[str, Any]], name: str) -> int:
    return sum(entry[name] or 0 for entry in entries)
