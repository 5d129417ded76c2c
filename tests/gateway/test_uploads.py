"""Bodies that are still arriving are bounded: of each key in number, and of all keys together in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psutil
import pytest

from proxy.billing.limits import Limits, Scope
from proxy.gateway.exchange.uploads import Uploads
from proxy.http.errors import ApiError
from tests.support.net import RawClient, ask, chat_request, connect
from tests.support.tokenweir import Tokenweir

MIB = 1 << 20


def scopes(*parallel: int | None) -> list[Scope]:
    return [Scope(f"s{number}", Limits(parallel=one), 0.0) for number, one in enumerate(parallel)]


def test_a_key_uploads_as_many_bodies_as_its_tightest_limit() -> None:
    uploads = Uploads(body_bytes_max=MIB)
    with uploads.upload("a", scopes(None, 3, 2)), uploads.upload("a", scopes(None, 3, 2)):
        with pytest.raises(ApiError) as refused, uploads.upload("a", scopes(None, 3, 2)):
            pass
        assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
        with uploads.upload("b", scopes(2)), uploads.upload("c", scopes(None)):
            pass
    with uploads.upload("a", scopes(1)):
        pass


def test_all_bodies_together_have_a_maximum_and_give_it_back() -> None:
    uploads = Uploads(body_bytes_max=10, bytes_max=25)
    for _ in range(3):
        with uploads.upload("a", ()) as first, uploads.upload("b", ()) as second:
            first(10)
            second(10)
            second(5)
            with pytest.raises(ApiError) as refused:
                first(1)
            assert (refused.value.status, refused.value.code) == (503, "not_accepting")


def test_one_body_always_has_room() -> None:
    with Uploads(body_bytes_max=50, bytes_max=25).upload("a", ()) as grew:
        grew(50)


@pytest.mark.process
async def test_a_key_with_one_request_at_a_time_fills_no_memory(tokenweir: Callable[..., Tokenweir]) -> None:
    """From outside: thirty bodies of 4 MiB, each of them without its last byte."""
    running = tokenweir()
    key = running.key("test", "--parallel", "1")
    body = ask("nobody") | {"messages": [{"role": "user", "content": "water " * 700_000}]}
    wire = chat_request(body, key=key)[:-1]
    assert running.child is not None
    process = psutil.Process(running.child.pid)
    before = process.memory_info().rss
    clients: list[RawClient] = []

    async def upload() -> int:
        client = await connect(running.url)
        clients.append(client)
        try:
            async with asyncio.timeout(5):
                await client.send(wire)
        except (ConnectionError, TimeoutError):
            return 0
        return len(wire)

    await asyncio.gather(*(upload() for _ in range(30)))
    await asyncio.sleep(0.5)
    assert process.memory_info().rss - before < 40 * MIB
    for client in clients:
        client.close()
