"""Lists of models, as the official SDKs read them: what a tool does before it starts.

Law: the SDK's own types are the judge.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.model_lists import Listing, listing, upstream
from tests.support.sdks import openai

pytestmark = pytest.mark.io

FAMILIES = ("openai", "anthropic", "gemini", "cohere", "mistral", "ollama")
MODELS = {"*": {"providers": [{"provider": family} for family in FAMILIES]}}
CLAUDE = ["claude-opus-4-5-20251101", "claude-3-haiku-20240307"]


@pytest.fixture
async def at() -> AsyncIterator[Listing]:
    async with upstream() as providers, listing(providers, MODELS, *FAMILIES) as made:
        yield made


def openai_client(at: Listing, key: str = "good") -> openai.AsyncOpenAI:
    # Without certificates: reading the system's for each client costs more than the rest of a test.
    http = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(api_key=key, base_url=f"{at.url}/v1", max_retries=0, http_client=http)


async def test_openai(at: Listing) -> None:
    async with openai_client(at) as client:
        names = [one.id async for one in client.models.list()]
        assert names[:3] == ["gpt-4o", "gpt-4o-mini", "meta/llama-3"]
        assert len(names) == 12
        for name in names:
            one = await client.models.retrieve(name)
            assert (one.id, one.object) == (name, "model")
        assert (await client.models.retrieve("gpt-4o")).created == 1715367049
        with pytest.raises(openai.NotFoundError) as refusal:
            await client.models.retrieve("no/such-model")
        assert (refusal.value.code, refusal.value.param) == ("model_not_found", "model")


async def test_openai_with_a_wrong_key(at: Listing) -> None:
    async with openai_client(at, "bad") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


@pytest.mark.thorough
@pytest.mark.parametrize("credential", ["api_key", "auth_token"])
async def test_anthropic(anthropic: Any, at: Listing, credential: str) -> None:
    http = anthropic.DefaultAsyncHttpxClient(verify=False)
    given = {"api_key": None, "auth_token": None, credential: "good"}
    async with anthropic.AsyncAnthropic(**given, base_url=at.url, max_retries=0, http_client=http) as client:
        page = await client.models.list(limit=1)
        assert (page.has_more, page.first_id, page.last_id) == (True, CLAUDE[0], CLAUDE[0])
        assert [one.id async for one in client.models.list(limit=1)] == CLAUDE
        back = await client.models.list(before_id=CLAUDE[1], limit=5)
        assert ([one.id for one in back.data], back.has_more) == (CLAUDE[:1], False)
        one = await client.models.retrieve(CLAUDE[0])
        assert (one.type, one.created_at, one.lifecycle) == ("model", datetime(2025, 11, 24, tzinfo=UTC), "active")
        assert (one.max_input_tokens, one.max_tokens) == (200000, 64000)
        with pytest.raises(anthropic.NotFoundError) as refusal:
            await client.models.retrieve("gpt/4o")
        assert refusal.value.body["error"]["type"] == "not_found_error"
        with pytest.raises(anthropic.BadRequestError, match="limit: must be"):
            await client.models.list(limit=0)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")  # aiohttp's, of what the SDK does
@pytest.mark.parametrize("version", ["v1beta", "v1"])
async def test_google(genai: Any, at: Listing, version: str) -> None:
    options = {"base_url": at.url, "api_version": version}
    async with genai.Client(api_key="good", vertexai=False, http_options=options).aio as client:
        (one,) = [one async for one in await client.models.list(config={"page_size": 1})]
        assert (one.name, one.supported_actions) == ("models/gemini-2.5-flash", ["generateContent"])
        assert (one.input_token_limit, one.output_token_limit) == (1048576, 65536)
        for name in ("gemini-2.5-flash", "models/gemini-2.5-flash"):
            assert (await client.models.get(model=name)).name == "models/gemini-2.5-flash"
        with pytest.raises(genai.errors.ClientError) as refusal:
            await client.models.get(model="other")
        assert (refusal.value.code, refusal.value.status) == (404, "NOT_FOUND")


@pytest.mark.thorough
async def test_azure(at: Listing) -> None:
    http = openai.DefaultAsyncHttpxClient(verify=False)
    given = {"api_key": "good", "azure_endpoint": at.url, "api_version": "2024-10-21"}
    async with openai.AsyncAzureOpenAI(**given, max_retries=0, http_client=http) as client:
        assert (await client.models.retrieve("meta/llama-3")).id == "meta/llama-3"
        assert "gpt-4o" in [one.id async for one in client.models.list()]
