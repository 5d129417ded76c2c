"""What an exchange leaves behind: nothing. A garbage collection holds up every stream; ours must have nothing to do."""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxy.billing.idempotency_record import IdempotencyRecord
from proxy.billing.keys import ApiKey
from proxy.billing.limits import Scope
from proxy.billing.reservation import Denied, Hold, LimitLevel
from proxy.gateway.exchange.exchange import Exchange
from proxy.gateway.exchange.handler import ProxyHandler
from proxy.gateway.ports import Ports, Reserve
from proxy.gateway.upstream.client import Provider, UpstreamClient
from proxy.gateway.upstream.routing import Models, Route
from proxy.http.server import Routes, Server, wait_until
from proxy.journal.journal import Journal
from proxy.journal.progress import ProgressTable
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.estimator.estimate import Estimator
from proxy.runtime.proxy.outbox import LocalOutbox
from proxy.settings import ProviderSettings
from proxy.telemetry.metrics import Metrics
from tests.support.net import ask, chat_request, connect
from tests.support.provider import ScriptedProvider

KEY = ApiKey("k", "k", b"", "", models=None, created_at=0.0, expires_at=None, revoked_at=None, revision=1)


class Everybody:
    """Lets everybody in."""

    async def key(self, presented: str | None, address: str | None = None) -> ApiKey | str:
        return KEY

    def scopes(self, key: ApiKey) -> tuple[Scope, ...]:
        return ()


class Held:
    """Nothing."""

    on_short: Callable[[], None] | None = None
    levels: Sequence[LimitLevel] = ()
    spends = False

    def __init__(self, exchange_id: str) -> None:
        self.hold = Hold(exchange_id, (), 0, 0)

    def grow(self, nusd: int) -> None: ...
    def close(self, nusd: int, tokens: int) -> None: ...


class Unlimited:
    """Nothing is limited."""

    async def admit(
        self, key: ApiKey, scopes: Sequence[Scope], exchange_id: str, *, nusd: int, tokens: int
    ) -> Held | Denied:
        return Held(exchange_id)


class Unclaimed:
    """Nothing has a name."""

    answer_bytes_max = 0

    async def claim(self, key_id: str, token: str, body: bytes, exchange_id: str) -> IdempotencyRecord | None:
        return None

    async def end(self, key_id: str, token: str, exchange_id: str, *, billed: bool, answer: bytes | None) -> None: ...


@pytest.fixture
async def url(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[str]:
    """A gateway in this process, with a journal and no ledger."""
    journal = Journal.open(tmp_path / "journal", bytes_max=1 << 24)
    table = ProgressTable.open(tmp_path / "progress.table", slots=16, unix_time=time.time)
    disk, upstream = ThreadPoolExecutor(1), UpstreamClient()
    settings = ProviderSettings(name="scripted", base_url=provider.base_url)
    route = Route(Provider.of(settings, write_stall_s=60), "electron", lambda _at: (None, None))
    ports = Ports(
        LocalOutbox(journal, table, disk), upstream, Estimator(), Metrics(), time.time, Unlimited(), Unclaimed()
    )
    chat = ProxyHandler(
        keys=Everybody(), models=Models({"electron": route}, lambda _name: None), ports=ports,
        reserve=Reserve(4096, 1 << 40, 402), request_bytes_max=1 << 20, closed=lambda: None,
    )  # fmt: skip
    routes = Routes()
    routes.metered(OPENAI_CHAT, chat.serve)
    server = Server(routes, refused=lambda _status, _code: None)
    yield f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    await server.stop_listening()
    await server.close()
    await upstream.close()
    journal.close()
    table.close()
    disk.shutdown()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Only what nobody refers to any more goes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("stream", [False, True])
async def test_an_exchange_is_gone_when_it_is_over(url: str, stream: bool) -> None:
    async with await connect(url) as client:
        for _ in range(3):
            await client.send(chat_request(ask("electron", stream=stream)))
            assert (await client.read()).status == 200
    assert await wait_until(lambda: not any(type(one) is Exchange for one in gc.get_objects()), deadline_s=10)
