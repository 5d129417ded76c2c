"""A provider of responses that are stored and made in the background, a proxy before it, and clients of the proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from proxy.billing.record import UsageRecord
from proxy.foundation.secret import Secret
from proxy.gateway.background.polling import Pace
from proxy.http.server import wait_until
from tests.gateway.inprocess import KEY, Gateway, OfToken, OwnersInMemory, gateway
from tests.support.clients import Clients
from tests.support.responses_provider import SECRET, USAGE, ResponsesProvider, responses_provider

if TYPE_CHECKING:
    import openai

# A background response is asked for every few hundredths of a second.
QUICK = Pace(first_s=0.02, pause_s_max=0.05, usage_s=0.05, gone_s=0.2, stopping_s=0.2)
TEAM = replace(KEY, project_id="proj_team")
KEYS = OfToken(
    anna=replace(TEAM, key_id="anna"),
    bert=replace(TEAM, key_id="bert"),
    annas=replace(TEAM, key_id="anna", uses_stored=False),
    carl=replace(KEY, key_id="carl", project_id="proj_other"),
    dora=replace(KEY, key_id="dora"),
    emil=replace(KEY, key_id="emil"),
)
TOKENS = (USAGE["input_tokens"], USAGE["output_tokens"])
ASKED: dict[str, Any] = {"model": "electron", "input": "How much?"}


@dataclass
class Stage:
    """What a test uses."""

    provider: ResponsesProvider
    proxy: Gateway
    store: OwnersInMemory
    clients: Clients

    def gpt(self, key: str) -> openai.AsyncOpenAI:
        """A client with this key."""
        return self.clients.gpt(self.proxy.url, key)

    @property
    def anna(self) -> openai.AsyncOpenAI:
        return self.gpt("anna")

    async def record(self) -> UsageRecord:
        """The one record of the one exchange, once it is there; nothing runs or is reserved any more."""
        return await the_record(self.proxy)

    async def polled(self, response_id: str, times: int = 2) -> None:
        """The provider is asked for the response so often, from now on."""
        wanted = self.provider.polls(response_id) + times
        assert await wait_until(lambda: self.provider.polls(response_id) >= wanted, deadline_s=10, every_s=0.005)


async def the_record(proxy: Gateway) -> UsageRecord:
    """See Stage.record."""
    assert await wait_until(lambda: not proxy.background.live and not proxy.handler.live, deadline_s=10, every_s=0.005)
    (record,) = proxy.outbox.records
    (held,) = proxy.unlimited.held
    assert held.closed == 1
    return record


def tokens(record: UsageRecord) -> tuple[int | None, int | None]:
    return record.reading.usage.prompt_tokens, record.reading.usage.completion_tokens


@asynccontextmanager
async def stage(folder: Path, clients: Clients, **settings: Any) -> AsyncIterator[Stage]:
    """`settings`: of the gateway and of its provider."""
    store = OwnersInMemory()
    settings = {"keys": KEYS, "pace": QUICK, "api_key": Secret(SECRET), **settings}
    async with responses_provider() as provider, gateway(folder, provider.url, store=store, **settings) as proxy:
        yield Stage(provider, proxy, store, clients)


@pytest.fixture
async def on(tmp_path: Path, clients: Clients) -> AsyncIterator[Stage]:
    async with stage(tmp_path, clients) as made:
        yield made
