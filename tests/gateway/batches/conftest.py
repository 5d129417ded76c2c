"""A provider, and proxies before it; clients of both families."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.batches.site import Proxy, Site, site
from tests.support.batch_provider import BatchProvider, batch_provider
from tests.support.clients import Claude, Clients, Gpt
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
def gpt(clients: Clients, proxy: Proxy) -> Gpt:
    """A client of OpenAI's API with this key."""
    return lambda key="anna", url=proxy.url: clients.gpt(url, key)


@pytest.fixture
def claude(clients: Clients, proxy: Proxy) -> Claude:
    """One of Anthropic's."""
    return lambda key="anna", url=proxy.url: clients.claude(url, key)
