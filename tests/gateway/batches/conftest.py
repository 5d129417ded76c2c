"""A provider, and proxies before it; the SDKs of both families."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.gateway.batches.sdks import AnthropicSdk, OpenAiSdk
from tests.gateway.batches.site import Proxy, Site, site
from tests.support.batch_provider import BatchProvider, batch_provider
from tests.support.sdks import anthropic, openai
from tests.support.turns import each_step_is_a_turn

__all__ = ["each_step_is_a_turn"]


@pytest.fixture
async def provider() -> AsyncIterator[BatchProvider]:
    async with batch_provider() as made:
        yield made


@pytest.fixture
async def at(provider: BatchProvider, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path / "site", provider) as made:
        yield made


@pytest.fixture
async def proxy(at: Site) -> Proxy:
    return await at.start()


@pytest.fixture
async def gpt(proxy: Proxy) -> AsyncIterator[OpenAiSdk]:
    """OpenAI's SDK with this key."""
    async with AsyncExitStack() as opened:
        http = await opened.enter_async_context(openai.DefaultAsyncHttpxClient(verify=False, trust_env=False))

        def client(key: str = "anna", url: str = proxy.url) -> openai.AsyncOpenAI:
            return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http)

        yield client


@pytest.fixture
async def claude(proxy: Proxy) -> AsyncIterator[AnthropicSdk]:
    """Anthropic's."""
    async with AsyncExitStack() as opened:
        http = await opened.enter_async_context(anthropic.DefaultAsyncHttpxClient(verify=False, trust_env=False))

        def client(key: str = "anna", url: str = proxy.url) -> anthropic.AsyncAnthropic:
            return anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, http_client=http)

        yield client
