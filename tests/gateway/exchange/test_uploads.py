"""Bodies that are still arriving are bounded: of each key in number, and of all keys together in bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from proxy.billing.limits import Limits, Scope
from proxy.gateway.exchange.uploads import Uploads
from proxy.http.errors import ApiError
from tests.gateway.deployment import Deployment
from tests.gateway.inprocess import gateway
from tests.support.net import RawClient, ask, chat_request, connect, listening

MIB = 1 << 20


def scopes(*parallel: int | None) -> list[Scope]:
    return [Scope(f"s{number}", Limits(parallel=one), 0.0) for number, one in enumerate(parallel)]


def test_a_key_uploads_as_many_bodies_as_its_tightest_limit() -> None:
    uploads = Uploads(body_bytes_max=MIB)
    for _ in range(2):
        first, second = (uploads.begin("a", scopes(None, 3, 2)) for _ in range(2))
        with pytest.raises(ApiError) as refused:
            uploads.begin("a", scopes(None, 3, 2))
        assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
        for other in (uploads.begin("b", scopes(2)), uploads.begin("c", scopes(None))):
            other.free()
        first.arrived()
        third = uploads.begin("a", scopes(None, 3, 2))
        for one in (first, second, third, first):
            one.free()
    assert not uploads.arriving


def test_all_bodies_together_have_a_maximum_until_they_are_freed() -> None:
    uploads = Uploads(body_bytes_max=10, bytes_max=25)
    for _ in range(3):
        first, second = uploads.begin("a", ()), uploads.begin("b", ())
        first.grew(10)
        first.arrived()
        second.grew(10)
        second.grew(5)
        with pytest.raises(ApiError) as refused:
            second.grew(1)
        assert (refused.value.status, refused.value.code) == (503, "not_accepting")
        for one in (first, second, first):
            one.free()
        assert uploads.bytes_left == 25


def test_one_body_always_has_room() -> None:
    Uploads(body_bytes_max=50, bytes_max=25).begin("a", ()).grew(50)


@pytest.mark.io
async def test_a_body_counts_until_a_provider_has_accepted_it(tmp_path: Path) -> None:
    """It may be sent again until then, and so is in memory; a stream that runs keeps nothing of its request."""
    accepts, left = asyncio.Event(), 1_000_000

    async def provider(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await accepts.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n")
        while await reader.read(1 << 16):
            pass
        writer.close()

    async with listening(provider) as url, gateway(tmp_path, f"{url}/v1") as one:
        uploads = one.handler._uploads
        uploads.bytes_left = left
        document = ask("electron") | {"messages": [{"role": "user", "content": "w" * 700_000}]}
        async with await connect(one.url) as waiting, await connect(one.url) as refused:
            await waiting.send(chat_request(document))
            async with asyncio.timeout(10):
                while not one.outbox.opened:
                    await asyncio.sleep(0.005)
            assert uploads.bytes_left < left - 400_000
            assert not uploads.arriving
            await refused.send(chat_request(document))
            assert (await refused.read()).status == 503
            accepts.set()
            await waiting.read_body(await waiting.read_head(), until=b"\n\n")
            assert uploads.bytes_left == left
            assert one.handler.live
        async with await connect(one.url) as failing:
            uploads.bytes_left = left
            await failing.send(chat_request(document | {"messages": "w" * 700_000}))
            assert (await failing.read()).status == 400
            assert uploads.bytes_left == left


@pytest.mark.process
async def test_a_key_with_one_request_at_a_time_fills_no_memory(deployment: Deployment) -> None:
    """From outside: twenty bodies of 4 MiB, each of them without its last byte."""
    key = deployment.tokenweir.key("one-at-a-time", "--parallel", "1")
    body = ask("nobody") | {"messages": [{"role": "user", "content": "water " * 700_000}]}
    wire = chat_request(body, key=key)[:-1]
    process = psutil.Process(deployment.pid)
    before = process.memory_info().rss
    clients: list[RawClient] = []

    async def upload() -> int:
        client = await connect(deployment.url)
        clients.append(client)
        try:
            async with asyncio.timeout(5):
                await client.send(wire)
        except (ConnectionError, TimeoutError):
            return 0
        return len(wire)

    await asyncio.gather(*(upload() for _ in range(20)))
    await asyncio.sleep(0.3)
    assert process.memory_info().rss - before < 40 * MIB
    for client in clients:
        client.close()
