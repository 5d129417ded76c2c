"""Dimensions of what is no single HTTP request: sessions of WebSockets, and batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import UNSET

from proxy.billing.details import EntryDetails
from proxy.ledger.dimensions.values import DimensionValues
from tests.gateway.batches.asking import CHAT, ended, line, uploaded
from tests.gateway.batches.site import Site, site
from tests.gateway.websocket.sockets import CREATE, RESPONSES, Stage, ask, begun, completed, done, on, said, tell
from tests.support.batch_provider import BatchProvider, batch_provider
from tests.support.sdks import openai
from tests.support.turns import each_step_is_a_turn

__all__ = ["each_step_is_a_turn", "on"]

pytestmark = pytest.mark.io

HEADERS = {"Authorization": "Bearer k", "x-tokenweir-session": "s"}


async def test_each_request_of_a_session_has_those_of_the_handshake_and_its_own(on: Stage) -> None:
    async with on.client(RESPONSES, headers=HEADERS) as client:
        await client.say(CREATE | {"user": "alice"})
        link = await on.provider.link()
        await link.hear("response.create")
        await tell(client, link, begun(), completed())
        await client.say(CREATE | {"safety_identifier": "bob", "metadata": {"team": "red"}})
        await link.hear("response.create")
        await tell(client, link, begun("resp_2"), completed("resp_2"))
    assert (await on.record(0)).opened.dimensions == {"session": "v_s", "end_user": "v_alice"}
    assert (await on.record(1)).opened.dimensions == {"session": "v_s", "end_user": "v_bob", "tag:team": "v_red"}


async def test_an_answer_that_the_provider_begins_has_those_of_the_handshake(on: Stage) -> None:
    async with on.talk(headers=HEADERS) as (client, link):
        await ask(client, link, metadata={"team": "red"})
        await tell(client, link, begun(), said("x"), done())
        await tell(client, link, begun("resp_2"), said("y", "resp_2"), done("resp_2"))
    assert (await on.record(0)).opened.dimensions == {"session": "v_s", "tag:team": "v_red"}
    assert (await on.record(1)).opened.dimensions == {"session": "v_s"}


async def test_a_session_without_any_has_none(on: Stage) -> None:
    async with on.answering() as (client, link):
        await tell(client, link, begun(), done())
    assert (await on.record()).opened.dimensions is UNSET


@pytest.fixture
async def at(tmp_path: Path, provider: BatchProvider) -> AsyncIterator[Site]:
    async with site(tmp_path, provider) as made:
        yield made


@pytest.fixture
async def provider() -> AsyncIterator[BatchProvider]:
    async with batch_provider() as made:
        yield made


@pytest.mark.thorough
async def test_the_lines_of_a_batch_have_those_of_its_request_also_from_another_process(
    at: Site, provider: BatchProvider
) -> None:
    proxy = await at.start()
    headers = {"x-tokenweir-end-user": "alice"}
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="anna", default_headers=headers) as client:
        file_id = await uploaded(client, line("a"), line("b"))
        metadata = {"team": "red"}
        batch = await client.batches.create(
            input_file_id=file_id, endpoint=CHAT, completion_window="24h", metadata=metadata
        )
    await proxy.drop()
    other = await at.start("other")
    provider.end(batch.id)
    async with openai.AsyncOpenAI(base_url=f"{other.url}/v1", api_key="anna") as client:
        await client.files.content(await ended(client, batch.id))
    of_entries = [EntryDetails.of(one.details).dimensions or {} for one in at.entries()]
    assert len(of_entries) == 3
    assert of_entries[0] == of_entries[1] == of_entries[2]
    names = DimensionValues(at.engine).names(list(of_entries[0].values()))
    assert {name: names[value_id] for name, value_id in of_entries[0].items()} == {
        "end_user": "alice", "tag:team": "red",
    }  # fmt: skip
