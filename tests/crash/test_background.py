"""Answers that are made in the background outlive their process: kill -9, SIGTERM, fewer processes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.billing.limits import Limits
from proxy.billing.money import Nusd
from tests.crash.stage import quick_key, until
from tests.support.by_hand import asking, get
from tests.support.clients import Clients, refusal
from tests.support.net import Response, post_chat
from tests.support.responses_provider import USAGE, ResponsesProvider, responses_provider
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section

pytestmark = [pytest.mark.process, pytest.mark.thorough]

ASKED: dict[str, Any] = {"input": "How much?", "background": True}
TOKENS = (USAGE["input_tokens"], USAGE["output_tokens"])


def proxy_before(provider: ResponsesProvider, folder: Path, *options: str) -> Tokenweir:
    """A proxy before the provider, not started yet."""
    return Tokenweir(
        folder, providers={"scripted": provider_section(provider.url)}, options=options,
        models={"*": {"provider": "scripted", "price": PRICE, "cost": COST}}, idempotency={"replay_bytes_max": 65536},
    )  # fmt: skip


async def entries_in(proxy: Tokenweir, count: int) -> list[dict[str, Any]]:
    await until(lambda: len(proxy.read_ledger()) >= count)
    found = proxy.read_ledger()
    assert len(found) == count
    return found


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    async with Clients() as made:
        yield made


@pytest.fixture
async def provider() -> AsyncIterator[ResponsesProvider]:
    async with responses_provider() as made:
        yield made


@pytest.fixture
def proxy(provider: ResponsesProvider, tmp_path: Path) -> Iterator[Tokenweir]:
    made = proxy_before(provider, tmp_path)
    yield made
    made.close()


def tokens(entry: dict[str, Any]) -> tuple[int, int]:
    return entry["prompt_tokens"], entry["completion_tokens"]


async def asked(proxy: Tokenweir, key: str, model: str, name: str | None = None) -> Response:
    """The answer to a request; `name`: of the request, which is repeated under it."""
    headers = {} if name is None else {"Idempotency-Key": name}
    return await post_chat(proxy.url, {**ASKED, "model": model}, path="/v1/responses", key=key, headers=headers)


async def status_of(proxy: Tokenweir, exchange_id: str, key: str) -> int:
    return await (await asking(proxy.url, get(f"/v1/exchanges/{exchange_id}", key))).head()


@pytest.mark.parametrize("killed", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_it_goes_on_when_its_process_starts_again(
    proxy: Tokenweir, provider: ResponsesProvider, clients: Clients, killed: bool
) -> None:
    """Its reservation, too: the key may have one at a time."""
    key = quick_key(proxy, Limits(parallel=1, budget_nusd=Nusd(10**9), budget_window="none"))
    await asyncio.to_thread(proxy.start)
    first = await asked(proxy, key, "plain", "x")
    exchange_id, response_id = str(first.header("x-tokenweir-exchange")), json.loads(first.body)["id"]
    assert (await asked(proxy, key, "second")).status == 429
    began = time.monotonic()
    if killed:
        await asyncio.to_thread(proxy.kill)
    else:
        assert await asyncio.to_thread(proxy.stop) == 0
        assert time.monotonic() - began < 15, "what runs in the background is not waited for"
    assert proxy.read_ledger() == []
    await asyncio.to_thread(proxy.start)
    assert (await asked(proxy, key, "second")).status == 429
    assert await status_of(proxy, exchange_id, key) == 202
    assert (await asked(proxy, key, "plain", "x")).body == first.body
    responses = clients.gpt(proxy.url, key).responses
    assert (await responses.retrieve(response_id)).status == "queued"
    await provider.finish(response_id)
    (entry,) = await entries_in(proxy, 1)
    assert (entry["exchange_id"], tokens(entry), entry["outcome"]) == (exchange_id, TOKENS, "served")
    assert entry["details"]["resumed"] is True
    assert await status_of(proxy, exchange_id, key) == 200
    assert (await responses.retrieve(response_id)).output_text == "Much."
    await responses.delete(response_id)
    assert json.loads((await asked(proxy, key, "second")).body)["status"] == "queued"


async def test_one_that_ends_without_usage_is_asked_about_later(proxy: Tokenweir, provider: ResponsesProvider) -> None:
    """What runs in the background is stored: the next process knows it, too."""
    key = quick_key(proxy)
    await asyncio.to_thread(proxy.start)
    response_id = json.loads((await asked(proxy, key, "plain")).body)["id"]
    await asyncio.to_thread(proxy.kill)
    await asyncio.to_thread(proxy.start)
    await provider.finish(response_id, usage=None)
    (entry,) = await entries_in(proxy, 1)
    assert (entry["usage_source"], entry["provider_response_id"]) == ("estimated", response_id)
    assert (entry["details"]["resumed"], entry["details"]["asked_later"]) == (True, "stored")


async def test_a_stream_goes_on_without_its_client(
    proxy: Tokenweir, provider: ResponsesProvider, clients: Clients
) -> None:
    key = quick_key(proxy)
    await asyncio.to_thread(proxy.start)
    stream = await clients.gpt(proxy.url, key).responses.create(**ASKED, model="streamed", stream=True)
    response_id = (await anext(stream)).response.id
    for _ in range(40):
        await provider.say(response_id, " rather more than a little")
        await anext(stream)
    await asyncio.to_thread(proxy.kill)
    await asyncio.to_thread(proxy.start)
    await provider.lose(response_id)
    await asked(proxy, key, "meanwhile")
    await provider.finish("resp_0001")
    (other,) = await entries_in(proxy, 1)
    assert (other["model"], tokens(other)) == ("meanwhile", TOKENS), "an expired one is not given up at once"


@pytest.mark.slow
async def test_several_processes_bill_each_once_whoever_deletes_it(provider: ResponsesProvider, tmp_path: Path) -> None:
    """And with fewer processes than before, what the others have left goes on."""
    proxy = proxy_before(provider, tmp_path, "--workers", "2")
    key = quick_key(proxy)
    await asyncio.to_thread(proxy.start)

    async def delete(number: int) -> None:
        async with Clients() as clients:  # a connection of its own, which either process may get
            await clients.gpt(proxy.url, key).responses.delete(f"resp_{number:04d}")

    with closing(proxy):
        for number in range(12):
            await asked(proxy, key, f"number-{number}")
        for number in range(6):
            with refusal(409):
                await delete(number)
            await provider.finish(f"resp_{number:04d}")
            await delete(number)
        assert [tokens(entry) for entry in await entries_in(proxy, 6)] == [TOKENS] * 6
        assert await asyncio.to_thread(proxy.stop) == 0
        proxy.alone()
        await asyncio.to_thread(proxy.start)
        for number in range(6, 12):
            await provider.finish(f"resp_{number:04d}")
        assert [tokens(entry) for entry in await entries_in(proxy, 12)] == [TOKENS] * 12
