"""Proxies with files and batches in the process of a test: a real ledger, real HTTP on both sides, a budget that can be
looked at. A proxy can be dropped as a kill drops it: at whatever it waits for, without a word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Engine

from proxy.billing.batch import StoredBatch
from proxy.billing.entries import LedgerEntry
from proxy.billing.keys import ApiKey
from proxy.billing.limits import Limits, Scope
from proxy.billing.money import Nusd
from proxy.billing.pricing.prices import configured
from proxy.billing.record import Price, Rates
from proxy.billing.reservation import DenialReason, Denied, LimitLevel, Reservation
from proxy.billing.settlement import content_hash
from proxy.foundation.secret import Secret
from proxy.gateway.authentication import Accepting
from proxy.gateway.batches.watcher import Watcher
from proxy.gateway.dimensions.ids import DimensionIds
from proxy.gateway.dimensions.requests import RequestDimensions
from proxy.gateway.exchange.uploads import Uploads
from proxy.gateway.ports import RequestLimits, Reserve
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models, Route
from proxy.http.server import Routes, Server
from proxy.keys.access import KeyAccess
from proxy.ledger.dimensions.values import DimensionValues
from proxy.ledger.settling.store import LedgerStore
from proxy.ledger.stored_objects.batches import BatchStore
from proxy.ledger.stored_objects.files import FileStore
from proxy.metering.estimator.estimate import Estimator
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.runtime.proxy.batches import BatchService
from proxy.settings import ProviderSettings
from proxy.settings.dimensions import DimensionSettings
from proxy.storage.database import open_engine
from proxy.telemetry.metrics import Metrics
from tests.gateway.inprocess import KEY, OfToken
from tests.support.batch_provider import SECRET, BatchProvider
from tests.support.sqlite import empty_ledger

PRICE = configured(Rates(2_000_000_000, 1_000_000_000, 8_000_000_000), multipliers={"tier:batch": "0.5"})
TEAM = replace(KEY, project_id="proj_team")
KEYS = {
    "anna": replace(TEAM, key_id="anna"),
    "bert": replace(TEAM, key_id="bert"),
    "carl": replace(KEY, key_id="carl", project_id="proj_other"),
    "dora": replace(KEY, key_id="dora", models=frozenset({"other"}), project_id="proj_other"),
}


class Budget:
    """A budget that all keys share, and the reservations on it."""

    def __init__(self, nusd_max: int = 10**15) -> None:
        self.nusd_max = nusd_max
        self.held: dict[str, int] = {}
        self.spends = True

    @property
    def total(self) -> int:
        return sum(self.held.values())


class Held:
    """One reservation."""

    on_short: Callable[[], None] | None = None
    levels: Sequence[LimitLevel] = ()

    def __init__(self, budget: Budget, exchange_id: str, nusd: int) -> None:
        self._budget = budget
        self.spends = budget.spends
        self.reserved = Reservation(exchange_id, (), nusd, 0, time.time())
        budget.held[exchange_id] = nusd

    def grow(self, nusd: int) -> None: ...

    def close(self, nusd: int, tokens: int, *_: object) -> None:
        if nusd:
            self._budget.held[self.reserved.exchange_id] = nusd
        else:
            self._budget.held.pop(self.reserved.exchange_id, None)


class Admission:
    """As the keyring's and the budgets' together."""

    def __init__(self, budget: Budget, ledger: LedgerStore) -> None:
        self.budget = budget
        self._ledger = ledger
        self.admission = self
        self.held_again: list[str] = []

    async def admit(
        self, key: ApiKey, scopes: Sequence[Scope], exchange_id: str, *, nusd: int, tokens: int, **_: object
    ) -> Held | Denied:
        if self.budget.total + nusd > self.budget.nusd_max:
            return Denied(DenialReason.MONEY, key.key_id, None, (), self.budget.total)
        return Held(self.budget, exchange_id, nusd)

    async def reserve_batches(self, batches: Sequence[StoredBatch]) -> None:
        there = self._ledger.recorded([batch.exchange_id for batch in batches])
        for batch in batches:
            self.held_again.append(batch.exchange_id)
            if batch.exchange_id not in there:  # else budgets release it after the next look at the ledger
                self.budget.held[batch.exchange_id] = batch.reserved_nusd or 0


class Keys(OfToken):
    """Whoever sends a key of KEYS; all have the one budget."""

    def __init__(self) -> None:
        super().__init__(**KEYS)

    def access(self, key: ApiKey) -> KeyAccess:
        return super().access(key)._replace(scopes=(Scope(key.key_id, Limits(budget_nusd=1), 0.0),))

    async def remember(self, key_ids: Collection[str]) -> None: ...

    def known(self, key_id: str) -> ApiKey | None:
        return KEYS.get(key_id)


@dataclass
class Proxy:
    """One process: a URL and what it consists of."""

    url: str
    service: BatchService
    admission: Admission
    server: Server
    upstream: UpstreamClient

    @property
    def watcher(self) -> Watcher:
        return self.service._watcher

    async def drop(self) -> None:
        """As a kill does, as far as others can see."""
        await self.service.close()
        await self.upstream.close()
        await self.server.stop_listening()
        await self.server.close()


class Site:
    """A provider, a ledger, a budget, and proxies."""

    def __init__(self, folder: Path, provider: BatchProvider) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.provider = provider
        self.engine: Engine = open_engine(empty_ledger(folder / "ledger.db"))
        self.ledger = LedgerStore(self.engine, content_hash=content_hash, clock=time.time)
        self._ids = DimensionIds(DimensionValues(self.engine), lambda _: None, new_values_max=100)
        self.dimensions = RequestDimensions(DimensionSettings(), self._ids, b"")
        self.files, self.batches = FileStore(self.engine), BatchStore(self.engine)
        self.budget = Budget()
        self.proxies: list[Proxy] = []
        self.price: Price | None = PRICE
        self.later_s = 0.0
        """added to the clock of watchers"""
        self.before_call: Callable[[str], None] = lambda _: None
        """called with the name of each call to the database"""

    def fail(self, call: str) -> None:
        """Every such call to the database fails from now on."""

        def failing(name: str) -> None:
            if name == call:
                raise OSError("the database is away")

        self.before_call = failing

    async def look(self, proxy: Proxy, later_s: float) -> int:
        """What a watcher finds when its clock is `later_s` ahead."""
        self.later_s = later_s
        return await proxy.watcher.look()

    async def start(self, node: str = "here", **settings: Any) -> Proxy:
        """One more process. `settings`: of its providers."""
        upstream = UpstreamClient()
        providers = {
            "openai": self._provider("openai", self.provider.openai_url, dialects=("openai",), **settings),
            "anthropic": self._provider("anthropic", self.provider.anthropic_url, dialects=("anthropic",), **settings),
        }

        def route(provider: str, upstream_model: str) -> Route:
            return Route(providers[provider], upstream_model, lambda *_: (self.price, self.price))

        models = {
            "electron": route("openai", "electron"), "alias": route("openai", "electron-2026"),
            "other": route("openai", "other"), "claude": route("anthropic", "claude"),
            "haiku": route("anthropic", "haiku-2026"),
        }  # fmt: skip
        admission = Admission(self.budget, self.ledger)
        stores = SimpleNamespace(ledger=self.ledger, files=self.files, batches=self.batches)
        made: Any = BatchService
        limits = RequestLimits(Reserve(4096, Nusd(1 << 40), 402), 8 << 20, 64)
        service = made(
            node=node, stores=stores, in_thread=self._in_thread, keyring=Keys(), admission=admission,
            models=Models(models, lambda _name: None), providers=providers, client=upstream, estimator=Estimator(),
            limits=limits, uploads=Uploads(body_bytes_max=8 << 20), metrics=Metrics(), dimensions=self.dimensions,
            accepting=Accepting(),
        )  # fmt: skip
        service._watcher._unix_time = lambda: time.time() + self.later_s
        routes = Routes()
        service.add_to(routes)
        server = Server(routes, refused=lambda _status, _code: None)
        url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
        proxy = Proxy(url, service, admission, server, upstream)
        self.proxies.append(proxy)
        await service.reserve()
        return proxy

    def _provider(self, name: str, base_url: str, **settings: Any) -> Provider:
        about = {"name": name, "base_url": base_url, "api_key": Secret(SECRET), **settings}
        return Provider.of(ProviderSettings(**about), write_stall_s=60)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        name = getattr(work, "__name__", "")
        self.before_call(name)
        await asyncio.sleep(0)
        result = work(*arguments)
        if name == "settle":  # the budgets see it
            for exchange_id in self.ledger.recorded(list(self.budget.held)):
                del self.budget.held[exchange_id]
        return result

    def entries(self) -> list[LedgerEntry]:
        """All of the ledger."""
        return list(EntryReader(self.engine, EntryFilter()).new_entries())

    async def close(self) -> None:
        for proxy in self.proxies:
            await proxy.drop()
        self._ids.close()
        self.engine.dispose()


@asynccontextmanager
async def site(folder: Path, provider: BatchProvider) -> AsyncIterator[Site]:
    """One without a proxy yet."""
    made = Site(folder, provider)
    try:
        yield made
    finally:
        await made.close()
