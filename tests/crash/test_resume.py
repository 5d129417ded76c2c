"""A stream that broke off is taken up at any process of its machine, and at another machine."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from proxy.demo.script import Shape
from tests.crash.chaos import deployment
from tests.crash.stage import entries_of, quick_key
from tests.support import sse
from tests.support.by_hand import Reading, asking, get
from tests.support.net import ask, chat_request
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

pytestmark = pytest.mark.process

SHAPE = Shape("openai", tokens=60, pace_ms=10)
TAKEN_UP = 10


async def left(url: str, key: str, model: str) -> tuple[str, int]:
    """A client that leaves a stream: the exchange, and the events that it has got."""
    client = await asking(url, chat_request(ask(model), key=key))
    assert await client.head() == 200
    events = len(sse.data_events(await client.take(600)))
    client.leave()
    return client.headers["x-tokenweir-exchange"], events


async def taken_up(url: str, key: str, exchange_id: str, after: int) -> Reading:
    client = await asking(url, get(f"/v1/exchanges/{exchange_id}/stream?after={after}", key))
    assert await client.head() == 200
    await client.rest()
    assert client.ended
    client.leave()
    return client


@pytest.mark.slow
async def test_any_process_has_the_streams_of_all(tmp_path: Path, provider: ScriptedProvider) -> None:
    proxy = deployment(tmp_path, provider, options=("--workers", "3"), resume={"minutes": 1})
    key, other = quick_key(proxy), quick_key(proxy, alias="other")
    provider.script("resumed", SHAPE)
    with closing(proxy):
        await asyncio.to_thread(proxy.start)
        exchange_id, events = await left(proxy.url, key, "resumed")
        bodies = await asyncio.gather(
            *(taken_up(proxy.url, key, exchange_id, after) for after in [events, *[0] * TAKEN_UP])
        )
        rest, *whole = (client.body for client in bodies)
        assert len(set(whole)) == 1
        assert whole[0].endswith(rest)
        assert sse.done(rest)
        assert len(sse.data_events(whole[0])) - len(sse.data_events(rest)) == events
        for _ in range(TAKEN_UP):
            refused = await asking(proxy.url, get(f"/v1/exchanges/{exchange_id}/stream", other))
            assert await refused.head() == 404
            refused.leave()
        (entry,) = entries_of(proxy, "resumed")
        assert (entry["completion_tokens"], entry["usage_source"]) == (60, "reported")
        assert entry["details"]["policy"] == "resume"
    outputs = proxy.outputs()
    assert [event for event in sse.data_events(whole[0])[:-1] if event.wire in outputs] == [], "nothing is on the disk"


async def test_without_the_setting_there_is_no_such_route(running: Tokenweir, key: str) -> None:
    client = await asking(running.url, get("/v1/exchanges/01a211ab-c891-7cd3-9bd4-7945fec2922d/stream", key))
    assert await client.head() == 404
    client.leave()
