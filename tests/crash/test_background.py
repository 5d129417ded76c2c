"""Answers that are made in the background outlive their process: kill -9, SIGTERM, fewer processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from proxy.billing.limits import Limits
from proxy.billing.money import Nusd
from tests.crash.stage import quick_key, until
from tests.support.responses_provider import USAGE, ResponsesProvider, responses_provider
from tests.support.sdks import openai
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section

pytestmark = [pytest.mark.process, pytest.mark.thorough]

ASKED: dict[str, Any] = {"input": "How much?", "background": True}
TOKENS = (USAGE["input_tokens"], USAGE["output_tokens"])


class Deployment:
    """A proxy before a provider that makes answers in the background."""

    def __init__(self, folder: Path, provider: ResponsesProvider, http: Any, *options: str, **settings: Any) -> None:
        self.provider = provider
        self.proxy = Tokenweir(
            folder,
            providers={"scripted": provider_section(provider.url)},
            models={"*": {"provider": "scripted", "price": PRICE, "cost": COST}},
            options=options,
            idempotency={"replay_bytes_max": 65536},
            **settings,
        )
        self._http = http

    def key(self, limits: Limits | None = None, *, alias: str = "test") -> str:
        return quick_key(self.proxy, limits or Limits(), alias=alias)

    async def start(self) -> None:
        await asyncio.to_thread(self.proxy.start)

    async def kill(self) -> None:
        await asyncio.to_thread(self.proxy.kill)

    def sdk(self, key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.proxy.base_url, api_key=key, max_retries=0, http_client=self._http)

    async def status_of(self, exchange_id: str, key: str) -> int:
        """Of `GET /v1/exchanges/{id}`."""
        url = f"{self.proxy.base_url}/exchanges/{exchange_id}"
        return int((await self._http.get(url, headers={"Authorization": f"Bearer {key}"})).status_code)

    async def entries(self, count: int) -> list[dict[str, Any]]:
        await until(lambda: len(self.proxy.read_ledger()) >= count)
        found = self.proxy.read_ledger()
        assert len(found) == count
        return found


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def provider(opened: AsyncExitStack) -> ResponsesProvider:
    return await opened.enter_async_context(responses_provider())


@pytest.fixture
async def http(opened: AsyncExitStack) -> openai.DefaultAsyncHttpxClient:
    return await opened.enter_async_context(openai.DefaultAsyncHttpxClient(verify=False, trust_env=False))


@pytest.fixture
async def deployment(
    opened: AsyncExitStack, provider: ResponsesProvider, http: openai.DefaultAsyncHttpxClient, tmp_path: Path
) -> Deployment:
    made = Deployment(tmp_path, provider, http)
    opened.callback(made.proxy.close)
    return made


def tokens(entry: dict[str, Any]) -> tuple[int, int]:
    return entry["prompt_tokens"], entry["completion_tokens"]


@pytest.mark.parametrize("killed", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_it_goes_on_when_its_process_starts_again(deployment: Deployment, killed: bool) -> None:
    """Its reservation, too: the key may have one at a time."""
    proxy, provider = deployment.proxy, deployment.provider
    key = deployment.key(Limits(parallel=1, budget_nusd=Nusd(10**9), budget_window="none"))
    await deployment.start()
    client = deployment.sdk(key)
    got = await client.responses.with_raw_response.create(
        **ASKED, model="plain", extra_headers={"Idempotency-Key": "x"}
    )
    exchange_id, made = got.headers["x-tokenweir-exchange"], got.parse()
    with pytest.raises(openai.RateLimitError):
        await client.responses.create(**ASKED, model="second")
    began = time.monotonic()
    if killed:
        await deployment.kill()
    else:
        assert await asyncio.to_thread(proxy.stop) == 0
        assert time.monotonic() - began < 15, "what runs in the background is not waited for"
    assert proxy.read_ledger() == []
    await deployment.start()
    client = deployment.sdk(key)
    with pytest.raises(openai.RateLimitError):
        await client.responses.create(**ASKED, model="second")
    assert await deployment.status_of(exchange_id, key) == 202
    again = await client.responses.create(**ASKED, model="plain", extra_headers={"Idempotency-Key": "x"})
    assert again.id == made.id, "the answer to the first request"
    assert (await client.responses.retrieve(made.id)).status == "queued"
    await provider.finish(made.id)
    (entry,) = await deployment.entries(1)
    assert (entry["exchange_id"], tokens(entry), entry["outcome"]) == (exchange_id, TOKENS, "served")
    assert entry["details"]["resumed"] is True
    assert await deployment.status_of(exchange_id, key) == 200
    assert (await client.responses.retrieve(made.id)).output_text == "Much."
    await client.responses.delete(made.id)
    assert (await client.responses.create(**ASKED, model="second")).status == "queued"


async def test_a_stream_goes_on_without_its_client(deployment: Deployment) -> None:
    provider, key = deployment.provider, deployment.key()
    await deployment.start()
    stream = await deployment.sdk(key).responses.create(**ASKED, model="streamed", stream=True)
    response_id = (await anext(stream)).response.id
    for _ in range(40):
        await provider.say(response_id, " rather more than a little")
        await anext(stream)
    await deployment.kill()
    await deployment.start()
    await provider.lose(response_id)
    await deployment.sdk(key).responses.create(**ASKED, model="meanwhile")
    await provider.finish("resp_0001")
    (other,) = await deployment.entries(1)
    assert (other["model"], tokens(other)) == ("meanwhile", TOKENS), "an expired one is not given up at once"


@pytest.mark.slow
async def test_several_processes_bill_each_once_whoever_deletes_it(
    opened: AsyncExitStack, provider: ResponsesProvider, http: openai.DefaultAsyncHttpxClient, tmp_path: Path
) -> None:
    """And with fewer processes than before, what the others have left goes on."""
    deployment = Deployment(tmp_path, provider, http, "--workers", "2")
    opened.callback(deployment.proxy.close)
    key = deployment.key()
    await deployment.start()

    async def one(ask: str, number: int, ended: bool) -> None:
        # A connection of its own, which either process may get.
        async with openai.DefaultAsyncHttpxClient(verify=False, trust_env=False) as own:
            client = deployment.sdk(key).with_options(http_client=own)
            if ask == "make":
                await client.responses.create(**ASKED, model=f"number-{number}")
            elif ended:
                await client.responses.delete(f"resp_{number:04d}")
            else:
                with pytest.raises(openai.ConflictError):
                    await client.responses.delete(f"resp_{number:04d}")

    for number in range(12):
        await one("make", number, ended=False)
    for number in range(6):
        await one("delete", number, ended=False)
        await provider.finish(f"resp_{number:04d}")
        await one("delete", number, ended=True)
    assert [tokens(entry) for entry in await deployment.entries(6)] == [TOKENS] * 6
    assert await asyncio.to_thread(deployment.proxy.stop) == 0
    deployment.proxy.alone()
    await deployment.start()
    for number in range(6, 12):
        await provider.finish(f"resp_{number:04d}")
    assert [tokens(entry) for entry in await deployment.entries(12)] == [TOKENS] * 12
