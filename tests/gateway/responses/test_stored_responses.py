"""Stored responses, asked for by their ids: by whom, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import ClientSession

from proxy.keys.response_owners import name_of
from tests.gateway.inprocess import gateway
from tests.gateway.responses.stage import ASKED, KEYS, Stage
from tests.support.clients import refusal
from tests.support.responses_provider import SECRET

pytestmark = pytest.mark.io


async def test_a_response_is_asked_for_by_its_id(on: Stage) -> None:
    made = await on.anna.responses.create(**ASKED)
    got = await on.anna.responses.retrieve(made.id, include=["reasoning.encrypted_content"])
    assert (got.id, got.status, got.output_text) == (made.id, "completed", "Much.")
    items = await on.anna.responses.input_items.list(made.id, limit=5, order="asc")
    assert [item.id for item in items.data] == ["msg_0"]
    await on.anna.responses.delete(made.id)
    with refusal(404, match="not found"):
        await on.anna.responses.retrieve(made.id)
    assert on.provider.asked[1:] == [
        ("GET", f"/v1/responses/{made.id}?include%5B%5D=reasoning.encrypted_content", f"Bearer {SECRET}"),
        ("GET", f"/v1/responses/{made.id}/input_items?limit=5&order=asc", f"Bearer {SECRET}"),
        ("DELETE", f"/v1/responses/{made.id}", f"Bearer {SECRET}"),
    ], "what is deleted is not asked for"
    assert len(on.proxy.outbox.records) == 1, "asking for it is no exchange"
    assert on.proxy.outbox.records[0].provider_response_id == made.id


async def test_a_response_is_streamed_again(on: Stage) -> None:
    made = await on.anna.responses.create(**ASKED)
    stream = await on.anna.responses.retrieve(made.id, stream=True)
    assert [event.type async for event in stream] == ["response.created", "response.completed"]
    stream = await on.anna.responses.retrieve(made.id, stream=True, starting_after=0)
    assert [event.type async for event in stream] == ["response.completed"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_another_customers_response_does_not_exist(on: Stage, streamed: bool) -> None:
    if streamed:
        stream = await on.anna.responses.create(**ASKED, stream=True)
        _ = [event async for event in stream]
    else:
        await on.anna.responses.create(**ASKED)
    (response_id,) = on.provider.stored
    assert (await on.gpt("bert").responses.retrieve(response_id)).id == response_id, "of the same project"
    for key in ("carl", "dora"):
        other = on.gpt(key).responses
        for ask in (other.retrieve, other.delete, other.cancel, other.input_items.list):
            with refusal(404, match="not found"):
                await ask(response_id)
        with refusal(400, match="Previous response") as refused:
            await other.create(model="electron", input="And?", previous_response_id=response_id)
        assert refused.value.code == "previous_response_not_found"
    await on.anna.responses.create(model="electron", input="And?", previous_response_id=response_id)
    assert [method for method, _, _ in on.provider.asked] == ["POST", "GET", "POST"]


async def test_the_default_project_shares_nothing(on: Stage) -> None:
    made = await on.gpt("dora").responses.create(**ASKED)
    with refusal(404):
        await on.gpt("emil").responses.retrieve(made.id)


@pytest.mark.parametrize("response_id", ["resp_unknown", "a%2Fb", "..", "x" * 300, "chat/completions", "%2e%2e"])
async def test_nothing_else_is_asked_for(on: Stage, response_id: str) -> None:
    with refusal(404):
        await on.anna.get(f"/responses/{response_id}", cast_to=object)
    assert on.provider.asked == []


@pytest.mark.parametrize("response_id", ["\ud800", "resp_\udfff", "resp\n1", "r" * 257])
async def test_what_can_be_no_id_is_refused(on: Stage, response_id: str) -> None:
    """JSON can write half a surrogate pair; nothing else can."""
    body = json.dumps({"model": "electron", "input": "And?", "previous_response_id": response_id})
    async with (
        ClientSession(headers={"Authorization": "Bearer anna"}) as client,
        client.post(f"{on.proxy.url}/v1/responses", data=body) as response,
    ):
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "previous_response_id")
    assert on.provider.asked == []


def test_a_name_in_the_store_is_that_of_one_id() -> None:
    names = {name_of(one) for one in ("resp_1", "resp_2", "\ud800", "\udfff", "?", "\ufffd")}
    assert len(names) == 6
    assert {len(one) for one in names} == {32}


async def test_what_is_not_stored_is_not_remembered(on: Stage) -> None:
    made = await on.anna.responses.create(**ASKED, store=False)
    with refusal(404):
        await on.anna.responses.retrieve(made.id)
    assert on.store.owners == {}


async def test_another_proxy_knows_it(on: Stage, tmp_path: Path) -> None:
    made = await on.anna.responses.create(**ASKED)
    (tmp_path / "other").mkdir()
    async with gateway(tmp_path / "other", on.provider.url, keys=KEYS, store=on.store) as other:
        elsewhere = on.clients.gpt(other.url)
        assert (await elsewhere.responses.retrieve(made.id)).id == made.id
        on.store.down = True
        assert (await on.anna.responses.retrieve(made.id)).id == made.id, "it has made it itself"
        with refusal(500, 502, 503, match="cannot be looked up now"):
            await elsewhere.responses.retrieve("resp_9999")


async def test_a_providers_error_is_passed_on(on: Stage) -> None:
    made = await on.anna.responses.create(**ASKED)
    on.provider.failing = [500, 401]
    with refusal(500, 502, 503, match="It fails"):
        await on.anna.responses.retrieve(made.id)
    with refusal(500, 502, 503, match="refused the proxy's credentials"):
        await on.anna.responses.retrieve(made.id)
