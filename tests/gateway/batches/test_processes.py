"""Batches with the whole of a proxy: real budgets, kills, what a reconciliation says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.batches.asking import LINE_NUSD, line, made_by, ordered, request, uploaded
from tests.support.batch_provider import BatchProvider
from tests.support.postgres import Server
from tests.support.sdks import anthropic, openai
from tests.support.tokenweir import Tokenweir, provider_section
from tests.support.valkey import Valkey

pytestmark = pytest.mark.process

PRICE = {"input": 2, "cached_input": 1, "output": 8, "multipliers": {"tier:batch": 0.5}}
# A line holds 100 tokens of output at half of 8 USD per million, and its prompt.
LINES_FIT = 3
BUDGET_USD = "0.0014"


class Deployment:
    """One proxy before the provider, and clients of it."""

    def __init__(self, folder: Path, provider: BatchProvider, http: Any, **settings: Any) -> None:
        self.proxy = Tokenweir(
            folder,
            providers={
                "openai": provider_section(provider.openai_url),
                "anthropic": provider_section(provider.anthropic_url, dialects=["anthropic"]),
            },
            models={
                "electron": {"provider": "openai", "price": PRICE},
                "claude": {"provider": "anthropic", "price": PRICE},
            },
            **settings,
        )
        self._http = http

    def gpt(self, key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.proxy.base_url, api_key=key, max_retries=0, http_client=self._http)

    def claude(self, key: str) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.proxy.url, api_key=key, max_retries=0, http_client=self._http)


@pytest.fixture
async def site(provider: BatchProvider, tmp_path: Path) -> AsyncIterator[Deployment]:
    provider.clock = time.time
    async with AsyncExitStack() as opened:
        http = await opened.enter_async_context(openai.DefaultAsyncHttpxClient(verify=False, trust_env=False))
        made = Deployment(tmp_path / "site", provider, http)
        opened.callback(made.proxy.close)
        await asyncio.to_thread(made.proxy.start)
        yield made


async def test_a_reservation_outlives_the_process_until_the_lines_are_booked(
    provider: BatchProvider, site: Deployment
) -> None:
    key = await asyncio.to_thread(site.proxy.key, "anna", "--budget", BUDGET_USD)
    lines = [line(str(number)) for number in range(LINES_FIT)]
    file_id = await uploaded(site.gpt(key), *lines)
    batch_id = await ordered(site.gpt(key), file_id)
    await asyncio.to_thread(site.proxy.kill)
    await asyncio.to_thread(site.proxy.start)
    with pytest.raises(openai.APIStatusError) as refused:
        await ordered(site.gpt(key), file_id)
    assert refused.value.status_code == 402, "it is reserved"
    assert f"{LINES_FIT} lines with " in str(refused.value)
    assert (await site.gpt(key).batches.retrieve(batch_id)).status == "validating"
    provider.end(batch_id)
    output_id = (await site.gpt(key).batches.retrieve(batch_id)).output_file_id
    assert output_id is not None
    assert (await site.gpt(key).files.content(output_id)).content == provider.contents[output_id]
    entries = await asyncio.to_thread(site.proxy.entries, LINES_FIT + 1)
    assert [one["charge_usd"] for one in entries].count(f"{LINE_NUSD / 1e9:.9f}".rstrip("0")) == LINES_FIT
    told = site.proxy.said("ledger", "--explain")
    assert f"line 0 of the batch {batch_id}" in told
    assert f"batch {batch_id}: completed, {LINES_FIT} of {LINES_FIT} lines answered" in told
    async with asyncio.timeout(10):  # the budget has seen the entries: what was reserved beyond them is free
        while True:
            try:
                await ordered(site.gpt(key), file_id)
            except openai.APIStatusError:
                await asyncio.sleep(0.05)
            else:
                break
    assert await asyncio.to_thread(site.proxy.unreconciled) == []


@pytest.mark.slow
async def test_a_kill_before_the_answer_leaves_no_batch_without_an_owner(
    provider: BatchProvider, site: Deployment
) -> None:
    key = await asyncio.to_thread(site.proxy.key)
    reached = asyncio.Event()

    async def silent(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/batches"):
            provider.make_anthropic([request("a"), request("b")])
            reached.set()
            await asyncio.Event().wait()

    provider.before = silent
    asking = asyncio.ensure_future(made_by(site.claude(key), request("a"), request("b")))  # noqa: TID251  awaited below
    await reached.wait()
    await asyncio.to_thread(site.proxy.kill)
    with pytest.raises(anthropic.APIError):
        await asking
    provider.before = None
    (batch_id,) = provider.batches
    provider.end(batch_id)
    await asyncio.to_thread(site.proxy.start)
    async with asyncio.timeout(20):
        while not (found := (await site.claude(key).messages.batches.list()).data):
            await asyncio.sleep(0.1)
    assert [one.id for one in found] == [batch_id]
    results = await site.claude(key).messages.batches.results(batch_id)
    assert [one.custom_id async for one in results] == ["a", "b"]
    assert len(site.proxy.read_ledger()) == 3


async def test_requests_name_files_of_their_own_keys_only(provider: BatchProvider, site: Deployment) -> None:
    anna, carl = [await asyncio.to_thread(site.proxy.key, name) for name in ("anna", "carl")]
    theirs = (await site.gpt(anna).files.create(file=("a.pdf", b"text"), purpose="user_data")).id
    claudes = (await site.claude(anna).beta.files.upload(file=("a.pdf", b"text"))).id
    chat: Any = [{"role": "user", "content": [{"type": "file", "file": {"file_id": theirs}}]}]
    source = {"type": "file", "file_id": claudes}
    message: Any = [{"role": "user", "content": [{"type": "document", "source": source}]}]
    await site.gpt(anna).chat.completions.create(model="electron", messages=chat)
    await site.claude(anna).messages.create(model="claude", messages=message, max_tokens=9)
    other: Any = [{"role": "user", "content": [{"type": "file", "file": {"file_id": claudes}}]}]
    for asking in (
        site.gpt(carl).chat.completions.create(model="electron", messages=chat),
        site.claude(carl).messages.create(model="claude", messages=message, max_tokens=9),
        site.gpt(anna).chat.completions.create(model="electron", messages=other),
    ):
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="file_id"):
            await asking
    escaped = '{"model":"electron","messages":[{"role":"user","content":[{"type":"input_file","file\\u005fid":"%s"}]}]}'
    with pytest.raises(openai.BadRequestError, match="file_id: no file"):
        await site.gpt(carl).post("/chat/completions", cast_to=object, content=(escaped % theirs).encode())
    assert provider.count("POST", "/chat/completions") == 1
    assert provider.count("POST", "/messages") == 1


LEASE_S = 1.0


@pytest.fixture
async def machines(
    provider: BatchProvider, tmp_path: Path, postgres: Server, migrated: str, valkey: Valkey
) -> AsyncIterator[tuple[Deployment, Deployment]]:
    """Two proxies and a worker, with a ledger and a queue that they share."""
    provider.clock = time.time
    name = postgres.new_database(migrated)
    shared = {"ledger_url": postgres.url(name), "queue_url": valkey.url, "lease_s": LEASE_S}
    async with AsyncExitStack() as opened:
        opened.callback(postgres.drop_database, name)
        http = await opened.enter_async_context(openai.DefaultAsyncHttpxClient(verify=False, trust_env=False))
        both = [Deployment(tmp_path / name, provider, http, **shared) for name in ("one", "other")]
        worker = both[0].proxy.worker()
        for process in (worker, *(one.proxy for one in both)):
            opened.callback(process.close)
            await asyncio.to_thread(process.start)
        yield both[0], both[1]


@pytest.mark.slow
async def test_a_reservation_outlives_the_machine_until_the_lines_are_booked(
    provider: BatchProvider, machines: tuple[Deployment, Deployment]
) -> None:
    """The machine dies while the batch is made."""
    one, other = machines
    key = await asyncio.to_thread(one.proxy.key, "anna", "--budget", BUDGET_USD)
    file_id = await uploaded(one.gpt(key), *(line(str(number)) for number in range(LINES_FIT)))
    reached = asyncio.Event()

    async def silent(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/batches"):
            provider.make_openai({"input_file_id": file_id, "endpoint": "/v1/chat/completions"})
            reached.set()
            await asyncio.Event().wait()

    provider.before = silent
    asking = asyncio.ensure_future(ordered(one.gpt(key), file_id))  # noqa: TID251  awaited below
    await reached.wait()
    await asyncio.to_thread(one.proxy.kill)
    with pytest.raises(openai.APIError):
        await asking
    provider.before = None
    until = time.monotonic() + 4 * LEASE_S  # by then the machine is taken for dead, and what it held is released
    while time.monotonic() < until:
        with pytest.raises(openai.APIStatusError) as refused:
            await ordered(other.gpt(key), file_id)
        assert refused.value.status_code == 402
        await asyncio.sleep(0.1)
    (batch_id,) = provider.batches
    provider.end(batch_id)
    await asyncio.to_thread(one.proxy.start)
    async with asyncio.timeout(20):
        while not (await other.gpt(key).batches.list()).data:
            await asyncio.sleep(0.1)
    output_id = (await other.gpt(key).batches.retrieve(batch_id)).output_file_id
    assert output_id is not None
    await other.gpt(key).files.content(output_id)
    async with asyncio.timeout(10):
        while True:
            try:
                await ordered(other.gpt(key), file_id)
            except openai.APIStatusError:
                await asyncio.sleep(0.05)
            else:
                break
    assert len(other.proxy.read_ledger()) == LINES_FIT + 1
    assert await asyncio.to_thread(other.proxy.unreconciled) == []
