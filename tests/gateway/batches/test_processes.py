"""Batches with the whole of a proxy: real budgets, kills, what a reconciliation says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from proxy.keys.narrowing import narrowed_text
from tests.gateway.batches.asking import CHAT, LINE_NUSD, ended, line, made_by, ordered, request, uploaded
from tests.support.batch_provider import BatchProvider
from tests.support.clients import FAILURES, Clients, RefusedError, refusal
from tests.support.postgres import Server
from tests.support.sdks import openai
from tests.support.tokenweir import Tokenweir, provider_section
from tests.support.valkey import Valkey

pytestmark = pytest.mark.process

PRICE = {"input": 2, "cached_input": 1, "output": 8, "multipliers": {"tier:batch": 0.5}}
# A line holds 100 tokens of output at half of 8 USD per million, and its prompt.
LINES_FIT = 3
BUDGET_USD = "0.0014"


def proxy_before(provider: BatchProvider, folder: Path, **settings: Any) -> Tokenweir:
    """A proxy before the provider, not started."""
    return Tokenweir(
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


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    """Plain ones."""
    async with Clients() as made:
        yield made


@pytest.fixture
async def site(provider: BatchProvider, tmp_path: Path) -> AsyncIterator[Tokenweir]:
    provider.clock = time.time
    with closing(proxy_before(provider, tmp_path / "site")) as made:
        yield await asyncio.to_thread(made.start)


async def until_ordered(client: openai.AsyncOpenAI, file_id: str) -> None:
    """The budget has seen the entries: what was reserved beyond them is free."""
    async with asyncio.timeout(10):
        while True:
            try:
                await ordered(client, file_id)
            except RefusedError:
                await asyncio.sleep(0.05)
            else:
                return


@pytest.mark.thorough
@pytest.mark.parametrize("limit", ["budget", "cap of a narrowed key"])
async def test_a_reservation_outlives_the_process_until_the_lines_are_booked(
    provider: BatchProvider, site: Tokenweir, clients: Clients, limit: str
) -> None:
    if limit == "budget":
        key = await asyncio.to_thread(site.key, "anna", "--budget", BUDGET_USD)
    else:
        key = narrowed_text(await asyncio.to_thread(site.key, "anna", "--narrowable"), [f"usd={BUDGET_USD}"])
    lines = [line(str(number)) for number in range(LINES_FIT)]
    file_id = await uploaded(clients.gpt(site.url, key), *lines)
    batch_id = await ordered(clients.gpt(site.url, key), file_id)
    await asyncio.to_thread(site.kill)
    await asyncio.to_thread(site.start)
    with refusal(402, match=f"{LINES_FIT} lines with "):
        await ordered(clients.gpt(site.url, key), file_id)
    assert (await clients.gpt(site.url, key).batches.retrieve(batch_id)).status == "validating"
    provider.end(batch_id)
    output_id = await ended(clients.gpt(site.url, key), batch_id)
    assert (await clients.gpt(site.url, key).files.content(output_id)).content == provider.contents[output_id]
    entries = await asyncio.to_thread(site.entries, LINES_FIT + 1)
    assert [one["charge_usd"] for one in entries].count(f"{LINE_NUSD / 1e9:.9f}".rstrip("0")) == LINES_FIT
    told = site.said("ledger", "--explain")
    assert f"line 0 of the batch {batch_id}" in told
    assert f"batch {batch_id}: completed, {LINES_FIT} of {LINES_FIT} lines answered" in told
    await until_ordered(clients.gpt(site.url, key), file_id)
    assert await asyncio.to_thread(site.unreconciled) == []


@pytest.mark.slow
async def test_a_kill_before_the_answer_leaves_no_batch_without_an_owner(
    provider: BatchProvider, site: Tokenweir, clients: Clients
) -> None:
    key = await asyncio.to_thread(site.key)
    reached = provider.when_one_is_made(lambda: provider.make_anthropic([request("a"), request("b")]))
    asking = asyncio.ensure_future(made_by(clients.claude(site.url, key), request("a"), request("b")))  # noqa: TID251  awaited below
    await reached.wait()
    await asyncio.to_thread(site.kill)
    with pytest.raises(FAILURES):
        await asking
    provider.before = None
    (batch_id,) = provider.batches
    provider.end(batch_id)
    await asyncio.to_thread(site.start)
    async with asyncio.timeout(20):
        while not (found := (await clients.claude(site.url, key).messages.batches.list()).data):
            await asyncio.sleep(0.1)
    assert [one.id for one in found] == [batch_id]
    results = await clients.claude(site.url, key).messages.batches.results(batch_id)
    assert [one.custom_id async for one in results] == ["a", "b"]
    assert len(site.read_ledger()) == 3


async def test_requests_name_files_of_their_own_keys_only(
    provider: BatchProvider, site: Tokenweir, clients: Clients
) -> None:
    anna, carl = [await asyncio.to_thread(site.key, name) for name in ("anna", "carl")]
    theirs = (await clients.gpt(site.url, anna).files.create(file=("a.pdf", b"text"), purpose="user_data")).id
    claudes = (await clients.claude(site.url, anna).beta.files.upload(file=("a.pdf", b"text"))).id
    chat: Any = [{"role": "user", "content": [{"type": "file", "file": {"file_id": theirs}}]}]
    source = {"type": "file", "file_id": claudes}
    message: Any = [{"role": "user", "content": [{"type": "document", "source": source}]}]
    await clients.gpt(site.url, anna).chat.completions.create(model="electron", messages=chat)
    await clients.claude(site.url, anna).messages.create(model="claude", messages=message, max_tokens=9)
    other: Any = [{"role": "user", "content": [{"type": "file", "file": {"file_id": claudes}}]}]
    for asking in (
        clients.gpt(site.url, carl).chat.completions.create(model="electron", messages=chat),
        clients.claude(site.url, carl).messages.create(model="claude", messages=message, max_tokens=9),
        clients.gpt(site.url, anna).chat.completions.create(model="electron", messages=other),
    ):
        with refusal(400, match="file_id"):
            await asking
    escaped = '{"model":"electron","messages":[{"role":"user","content":[{"type":"input_file","file\\u005fid":"%s"}]}]}'
    with refusal(400, match="file_id: no file"):
        await clients.gpt(site.url, carl).post("/chat/completions", cast_to=object, content=(escaped % theirs).encode())
    assert provider.count("POST", "/chat/completions") == 1
    assert provider.count("POST", "/messages") == 1


LEASE_S = 1.0


@pytest.fixture
async def machines(
    provider: BatchProvider, tmp_path: Path, postgres: Server, migrated: str, valkey: Valkey
) -> AsyncIterator[tuple[Tokenweir, Tokenweir]]:
    """Two proxies and a worker, with a ledger and a queue that they share."""
    provider.clock = time.time
    name = postgres.new_database(migrated)
    shared = {"ledger_url": postgres.url(name), "queue_url": valkey.url, "lease_s": LEASE_S}
    async with AsyncExitStack() as opened:
        opened.callback(postgres.drop_database, name)
        both = [proxy_before(provider, tmp_path / name, **shared) for name in ("one", "other")]
        worker = both[0].worker()
        for process in (worker, *both):
            opened.callback(process.close)
            await asyncio.to_thread(process.start)
        yield both[0], both[1]


@pytest.mark.slow
async def test_a_reservation_outlives_the_machine_until_the_lines_are_booked(
    provider: BatchProvider, machines: tuple[Tokenweir, Tokenweir], clients: Clients
) -> None:
    """The machine dies while the batch is made."""
    one, other = machines
    key = await asyncio.to_thread(one.key, "anna", "--budget", BUDGET_USD)
    file_id = await uploaded(clients.gpt(one.url, key), *(line(str(number)) for number in range(LINES_FIT)))
    order = {"input_file_id": file_id, "endpoint": CHAT}
    reached = provider.when_one_is_made(lambda: provider.make_openai(order))
    asking = asyncio.ensure_future(ordered(clients.gpt(one.url, key), file_id))  # noqa: TID251  awaited below
    await reached.wait()
    await asyncio.to_thread(one.kill)
    with pytest.raises(FAILURES):
        await asking
    provider.before = None
    until = time.monotonic() + 4 * LEASE_S  # by then the machine is taken for dead, and what it held is released
    while time.monotonic() < until:
        with refusal(402):
            await ordered(clients.gpt(other.url, key), file_id)
        await asyncio.sleep(0.1)
    (batch_id,) = provider.batches
    provider.end(batch_id)
    await asyncio.to_thread(one.start)
    async with asyncio.timeout(20):
        while not (await clients.gpt(other.url, key).batches.list()).data:
            await asyncio.sleep(0.1)
    output_id = await ended(clients.gpt(other.url, key), batch_id)
    await clients.gpt(other.url, key).files.content(output_id)
    await until_ordered(clients.gpt(other.url, key), file_id)
    assert len(other.read_ledger()) == LINES_FIT + 1
    assert await asyncio.to_thread(other.unreconciled) == []
