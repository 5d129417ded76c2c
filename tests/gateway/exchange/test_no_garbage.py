"""What an exchange leaves behind: nothing. A garbage collection holds up every stream; ours must have nothing to do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from weakref import WeakSet

import pytest

from proxy.gateway.exchange.exchange import Exchange
from proxy.http.server import wait_until
from tests.gateway.inprocess import gateway
from tests.support.net import ask, chat_request, connect
from tests.support.provider import ScriptedProvider


@pytest.fixture
async def url(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[str]:
    async with gateway(tmp_path, provider.base_url) as made:
        yield made.url


@pytest.mark.parametrize("stream", [False, True])
async def test_an_exchange_is_gone_when_it_is_over(url: str, living: WeakSet[Exchange], stream: bool) -> None:
    async with await connect(url) as client:
        for _ in range(3):
            await client.send(chat_request(ask("electron", stream=stream)))
            assert (await client.read()).status == 200
    assert await wait_until(lambda: not living, deadline_s=10)
