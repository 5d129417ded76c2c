"""Stored responses, asked for by their ids with OpenAI's own SDK: by whom, and where."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from proxy.foundation.secret import Secret
from tests.gateway.inprocess import KEY, Gateway, OfToken, OwnersInMemory, gateway
from tests.support.responses_provider import SECRET, ResponsesProvider, responses_provider
from tests.support.sdks import openai

pytestmark = pytest.mark.io

TEAM = replace(KEY, project_id="proj_team")
KEYS = OfToken(
    anna=replace(TEAM, key_id="anna"),
    bert=replace(TEAM, key_id="bert"),
    carl=replace(KEY, key_id="carl", project_id="proj_other"),
    dora=replace(KEY, key_id="dora"),
    emil=replace(KEY, key_id="emil"),
)
Sdk: TypeAlias = Callable[[str], "openai.AsyncOpenAI"]


@pytest.fixture
async def provider() -> AsyncIterator[ResponsesProvider]:
    async with responses_provider() as made:
        yield made


@pytest.fixture
def store() -> OwnersInMemory:
    return OwnersInMemory()


@pytest.fixture
async def proxy(provider: ResponsesProvider, store: OwnersInMemory, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path, provider.url, keys=KEYS, store=store, api_key=Secret(SECRET)) as made:
        yield made


@pytest.fixture
async def sdk(proxy: Gateway) -> AsyncIterator[Sdk]:
    """The SDK with this key."""
    async with AsyncExitStack() as opened:
        http = await opened.enter_async_context(openai.DefaultAsyncHttpxClient(verify=False, trust_env=False))
        yield lambda key: openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=key, max_retries=0, http_client=http)


async def test_a_response_is_asked_for_by_its_id(provider: ResponsesProvider, proxy: Gateway, sdk: Sdk) -> None:
    client = sdk("anna")
    made = await client.responses.create(model="electron", input="How much?")
    got = await client.responses.retrieve(made.id, include=["reasoning.encrypted_content"])
    assert (got.id, got.status, got.output_text) == (made.id, "completed", "Much.")
    items = await client.responses.input_items.list(made.id, limit=5, order="asc")
    assert [item.id for item in items.data] == ["msg_0"]
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        await client.responses.retrieve(made.id)
    assert provider.asked[1:] == [
        ("GET", f"/v1/responses/{made.id}?include%5B%5D=reasoning.encrypted_content", f"Bearer {SECRET}"),
        ("GET", f"/v1/responses/{made.id}/input_items?limit=5&order=asc", f"Bearer {SECRET}"),
        ("DELETE", f"/v1/responses/{made.id}", f"Bearer {SECRET}"),
    ], "what is deleted is not asked for"
    assert len(proxy.outbox.records) == 1, "asking for it is no exchange"
    assert proxy.outbox.records[0].provider_response_id == made.id


async def test_a_response_is_streamed_again(sdk: Sdk) -> None:
    made = await sdk("anna").responses.create(model="electron", input="How much?")
    stream = await sdk("anna").responses.retrieve(made.id, stream=True)
    assert [event.type async for event in stream] == ["response.created", "response.completed"]
    stream = await sdk("anna").responses.retrieve(made.id, stream=True, starting_after=0)
    assert [event.type async for event in stream] == ["response.completed"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_another_customers_response_does_not_exist(
    provider: ResponsesProvider, proxy: Gateway, sdk: Sdk, streamed: bool
) -> None:
    if streamed:
        stream = await sdk("anna").responses.create(model="electron", input="How much?", stream=True)
        _ = [event async for event in stream]
    else:
        await sdk("anna").responses.create(model="electron", input="How much?")
    (response_id,) = provider.stored
    assert (await sdk("bert").responses.retrieve(response_id)).id == response_id, "of the same project"
    for key in ("carl", "dora"):
        other = sdk(key).responses
        for ask in (other.retrieve, other.delete, other.cancel, other.input_items.list):
            with pytest.raises(openai.NotFoundError, match="not found"):
                await ask(response_id)
        with pytest.raises(openai.BadRequestError, match="Previous response") as refused:
            await other.create(model="electron", input="And?", previous_response_id=response_id)
        assert refused.value.code == "previous_response_not_found"
    await sdk("anna").responses.create(model="electron", input="And?", previous_response_id=response_id)
    assert [method for method, _, _ in provider.asked] == ["POST", "GET", "POST"]


async def test_the_default_project_shares_nothing(sdk: Sdk) -> None:
    made = await sdk("dora").responses.create(model="electron", input="How much?")
    with pytest.raises(openai.NotFoundError):
        await sdk("emil").responses.retrieve(made.id)


@pytest.mark.parametrize("response_id", ["resp_unknown", "a%2Fb", "..", "x" * 300, "chat/completions", "%2e%2e"])
async def test_nothing_else_is_asked_for(provider: ResponsesProvider, sdk: Sdk, response_id: str) -> None:
    client = sdk("anna")
    with pytest.raises(openai.NotFoundError):
        await client.get(f"/responses/{response_id}", cast_to=object)
    assert provider.asked == []


async def test_what_is_not_stored_is_not_remembered(proxy: Gateway, store: OwnersInMemory, sdk: Sdk) -> None:
    made = await sdk("anna").responses.create(model="electron", input="How much?", store=False)
    with pytest.raises(openai.NotFoundError):
        await sdk("anna").responses.retrieve(made.id)
    assert store.owners == {}


async def test_another_proxy_knows_it(
    provider: ResponsesProvider, proxy: Gateway, store: OwnersInMemory, sdk: Sdk, tmp_path: Path
) -> None:
    made = await sdk("anna").responses.create(model="electron", input="How much?")
    (tmp_path / "other").mkdir()
    async with gateway(tmp_path / "other", provider.url, keys=KEYS, store=store) as other:
        elsewhere = sdk("anna").with_options(base_url=f"{other.url}/v1")
        assert (await elsewhere.responses.retrieve(made.id)).id == made.id
        store.down = True
        assert (await sdk("anna").responses.retrieve(made.id)).id == made.id, "it has made it itself"
        with pytest.raises(openai.InternalServerError, match="cannot be looked up now"):
            await elsewhere.responses.retrieve("resp_9999")


async def test_a_providers_error_is_passed_on(provider: ResponsesProvider, sdk: Sdk) -> None:
    made = await sdk("anna").responses.create(model="electron", input="How much?")
    provider.failing = [500, 401]
    with pytest.raises(openai.InternalServerError, match="It fails"):
        await sdk("anna").responses.retrieve(made.id)
    with pytest.raises(openai.InternalServerError, match="refused the proxy's credentials"):
        await sdk("anna").responses.retrieve(made.id)
