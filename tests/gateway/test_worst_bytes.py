"""Whatever one client or one provider sends, the event loop serves others: see tests/support/worst_bytes.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from proxy.gateway.tapes.tapes import Tapes
from proxy.http import websocket
from proxy.http.websocket_frames import Kind
from proxy.metering.refusal import OPENAI_ERRORS
from tests.gateway.inprocess import Gateway, gateway
from tests.support.examples import each
from tests.support.turns import nobody_waits
from tests.support.worst_bytes import (
    EVENTS,
    FRAMES,
    HEADS,
    MASK,
    NO_MASK,
    UPGRADE,
    Provider,
    frame,
    talk,
    turn_s_max,
)  # fmt: skip

pytestmark = pytest.mark.io

# Times the size of a row in `make test`.
LARGE = 20
SIZES = [pytest.param(1, id="small"), pytest.param(LARGE, id="large", marks=pytest.mark.slow)]


class Proxy(NamedTuple):
    gateway: Gateway
    provider: Provider
    tapes: Tapes

    @property
    def port(self) -> int:
        return int(self.gateway.url.rpartition(":")[2])


@contextmanager
def provider() -> Iterator[Provider]:
    made = Provider()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    monkeypatch.setattr(websocket, "CLOSE_S", 0.2)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(16))
    tapes = Tapes(bytes_max=64 << 20, total_bytes_max=1 << 30, kept_s=60)
    with provider() as made:
        async with gateway(tmp_path, f"http://127.0.0.1:{made.port}/v1", tapes=tapes) as serving:
            yield Proxy(serving, made, tapes)


# -- what they send


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("row", each(4, FRAMES))
async def test_frames_of_a_client(proxy: Proxy, row: str, size: int) -> None:
    wire = UPGRADE + FRAMES[row](size, MASK) + frame(Kind.PING, b"the last one", MASK)
    await nobody_waits(partial(asyncio.to_thread, talk, proxy.port, wire, b"the last one"), turn_s_max)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("row", each(4, FRAMES))
async def test_frames_of_a_provider(proxy: Proxy, row: str, size: int) -> None:
    proxy.provider.answer = FRAMES[row](size, NO_MASK) + frame(Kind.TEXT, b'{"type":"the last one"}', NO_MASK)
    await nobody_waits(partial(asyncio.to_thread, talk, proxy.port, UPGRADE, b"the last one"), turn_s_max)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("row", HEADS)
async def test_heads(proxy: Proxy, row: str, size: int) -> None:
    wire = HEADS[row](size) + b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    await nobody_waits(partial(asyncio.to_thread, talk, proxy.port, wire, b"\0"), turn_s_max)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", ["after=999999999", "starting_after=1"])
@pytest.mark.parametrize("row", each(3, EVENTS))
async def test_streams_that_are_resumed_ten_at_once(proxy: Proxy, row: str, place: str, size: int) -> None:
    exchange_ids = map("0199-exchange-{}".format, count())
    stream = EVENTS[row](size)

    async def resumed() -> None:
        exchange_id = next(exchange_ids)
        tape = proxy.tapes.begin(
            exchange_id, "k", content_type="text/event-stream", errors=OPENAI_ERRORS, heartbeat_s=0
        )
        for at in range(0, len(stream), 1 << 16):
            tape.add(stream[at : at + (1 << 16)])
            await asyncio.sleep(0)
        proxy.tapes.end(tape, whole=True, error_sent=False)
        wire = f"GET /v1/exchanges/{exchange_id}/stream?{place} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n"
        asked = f"{wire}Connection: close\r\n\r\n".encode()
        assert all(await asyncio.gather(*(asyncio.to_thread(talk, proxy.port, asked, b"\0") for _ in range(10))))

    await nobody_waits(resumed, turn_s_max)
