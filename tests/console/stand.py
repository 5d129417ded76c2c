"""The console by itself: a real ledger, a real listener, and what runs as a test says it. No proxy process."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Engine

from proxy.billing.keys import ApiKey
from proxy.billing.pricing.book import PriceBook
from proxy.billing.pricing.rules import Payer
from proxy.billing.reservation import CounterState
from proxy.console.api.delivery import SinkShown
from proxy.console.api.live import RemoteCoverage, RunningSnapshot, StopResult
from proxy.console.api.models import ConfiguredModel
from proxy.console.api.own_key import OwnPrice
from proxy.console.api.providers import ConfiguredProvider, ProviderState
from proxy.console.caller_threads import called_by
from proxy.foundation.outage import OutageLog
from proxy.gateway.dimensions.ids import DimensionIds
from proxy.gateway.dimensions.requests import RequestDimensions
from proxy.gateway.exchange.running import ExchangeSnapshot
from proxy.gateway.key_info.handler import KeyInfoHandler
from proxy.gateway.key_info.reading import THREADS, WAITING_MAX, KeyReads
from proxy.http.refused_requests import RefusedRequest
from proxy.http.server import Routes, Server
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import digest, hint, new_secret
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.dimensions.values import DimensionValues
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.runtime.proxy.console import THREADS as CONSOLE_THREADS
from proxy.runtime.proxy.console import WAITING_MAX as CONSOLE_WAITING_MAX
from proxy.runtime.proxy.console import Console
from proxy.runtime.proxy.own_prices import own_prices
from proxy.settings import Settings, parse
from proxy.settings.dimensions import DimensionSettings
from proxy.storage.database import open_engine

SECRET = "a-secret-of-0123456789-abcdefghij"
READER, WORKER = "a-reader-of-0123456789-abcdefghijk", "a-worker-of-0123456789-abcdefghijk"
PEPPER = "5e" * 32
MAIL_PASSWORD = "the-pass-word-of-billing"
SECRETS = {"ADMIN": SECRET, "READER": READER, "WORKER": WORKER, "PEPPER": PEPPER, "MAIL": MAIL_PASSWORD}
CONFIG = """
admin:
  port: 0
  secret: "${ADMIN}"
  operators:
    ann@example.com: {secret: "${READER}"}
    ben: {secret: "${WORKER}", role: operate}
key_pepper: "${PEPPER}"
providers: {tera: {base_url: "http://127.0.0.1:1/v1"}}
models: {"*": {provider: tera}}
"""


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(slots=True)
class Inside:
    """What runs, as a test says it."""

    streams: list[ExchangeSnapshot] = field(default_factory=list)
    unsettled: dict[str, str] = field(default_factory=dict)
    remote_coverage: RemoteCoverage = "none"
    refusals: list[RefusedRequest] = field(default_factory=list)
    stops: dict[str, StopResult] = field(default_factory=dict)
    """exchange id → the result of stopping it"""

    async def running(self) -> RunningSnapshot:
        others = {one.node for one in self.streams} - {None}
        return RunningSnapshot(self.streams, 1, len(others), self.remote_coverage)

    async def stop(self, exchange_id: str) -> StopResult:
        return self.stops.get(exchange_id, StopResult.NOT_RUNNING)

    async def models(self, key: ApiKey) -> list[str]:
        return [name for name in ("tera-large", "tera-small") if key.allows(name)]

    async def latest(self) -> list[RefusedRequest]:
        return self.refusals

    async def key_of(self, exchange_id: str) -> str | None:
        return self.unsettled.get(exchange_id)


@dataclass(slots=True)
class Deployed:
    """What is configured and how providers are, as a test says it."""

    settings: Settings
    states: list[ProviderState] = field(default_factory=list)
    sinks_shown: list[SinkShown] = field(default_factory=list)
    book: PriceBook = field(default_factory=PriceBook)

    @property
    def configuration(self) -> Deployed:
        return self

    def providers(self) -> list[ConfiguredProvider]:
        return [ConfiguredProvider(name="tera", base_url="http://127.0.0.1:1", models=["*"])]

    async def provider_states(self) -> list[ProviderState]:
        return self.states

    def models(self, used: Iterable[str]) -> list[ConfiguredModel]:
        return []

    def own_prices(self, key: ApiKey, payer: Payer, names: Iterable[str]) -> list[OwnPrice]:
        return own_prices(self.settings, PriceBook(), key, payer, names, time.time())

    def sinks(self, _engine: Engine) -> list[SinkShown]:
        return self.sinks_shown


@dataclass(slots=True)
class Counters:
    """The budgets' counters, as a test says them."""

    gates: list[CounterState] = field(default_factory=list)

    def time(self) -> float:
        return time.time()

    async def counter_states(self, counter_ids: Collection[str] | None = None) -> list[CounterState]:
        return [one for one in self.gates if counter_ids is None or one.counter_id in counter_ids]


class Stand:
    """Listens until it is closed."""

    def __init__(self, folder: Path, engine: Engine, config: str = CONFIG) -> None:
        self.engine = engine
        self.inside = Inside()
        self.budgets = Counters()
        self.keys = KeyStore(engine, clock=time.time)
        self.refused: list[tuple[int, str | None]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._console: Console = self._run(self._started(parse(config, env=SECRETS, folder=folder)))
        assert self._console.url is not None
        self.url = self._console.url

    async def _started(self, settings: Settings) -> Console:
        self._keyring = Keyring(
            self.keys, pepper=bytes.fromhex(PEPPER), unix_time=time.time, observer=OutageLog("keys")
        )
        await self._keyring.refresh()
        self.deployed = Deployed(settings)
        made = Console(
            settings, LedgerStores(settings, self.engine), self._keyring, self.budgets,  # type: ignore[arg-type]
            self.inside, self.inside.latest, self.deployed, self.inside.models,  # type: ignore[arg-type]
        )  # fmt: skip
        await made.start(lambda status, code: self.refused.append((status, code)))
        return made

    def key(self, key_id: str = "key-1", **fields: Any) -> str:
        """A new key's secret."""
        secret = new_secret().reveal()
        made = {"alias": key_id, "models": None, "expires_at": None, **fields}
        self.keys.create(key_id=key_id, digest=digest(secret, bytes.fromhex(PEPPER)), hint=hint(secret), **made)
        self._run(self._keyring.refresh())
        return secret

    def __call__(
        self, method: str, path: str, body: Any = None, *, key: str | None = SECRET, at: str = "", **headers: str
    ) -> Answered:
        """One request; a body that is bytes goes as it is. `headers`: more of them, with `_` for `-`. `at`: the URL of
        another listener."""
        where = urlsplit(at or self.url)
        connection = HTTPConnection(where.hostname or "", where.port, timeout=10)
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            given = {} if key is None else {"Authorization": f"Bearer {key}"}
            connection.request(method, path, sent, given | {one.replace("_", "-"): headers[one] for one in headers})
            response = connection.getresponse()
            text = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return Answered(response.status, dict(response.headers), json.loads(text) if is_json else text)
        finally:
            connection.close()

    def get(self, path: str, *, key: str = SECRET) -> Any:
        """The body of a 200."""
        answered = self("GET", path, key=key)
        assert answered.status == 200, answered
        return answered.body

    def post(self, path: str, body: Any) -> Any:
        """The body of a 200."""
        answered = self("POST", path, body)
        assert answered.status == 200, answered
        return answered.body

    @contextmanager
    def clients(self, *, waiting: bool = False) -> Iterator[str]:
        """The clients' listener; its URL. `waiting`: all of its threads for reads are taken."""
        reads = KeyReads(open_engine(self.engine.url.render_as_string(hide_password=False)), self.budgets)  # type: ignore[arg-type]
        routes, free = Routes(), threading.Event()
        self._console.add_public(routes, reads)
        ids = DimensionIds(DimensionValues(self.engine), lambda _: None, new_values_max=0)
        KeyInfoHandler(self._keyring, reads, RequestDimensions(DimensionSettings(), ids, b"")).add_to(routes)

        async def begin() -> tuple[Server, int]:
            for _ in range(THREADS + WAITING_MAX if waiting else 0):
                reads.threads.run(free.wait)
            server = Server(routes, refused=lambda _status, _code: None)
            return server, await server.start("127.0.0.1", 0)

        server, port = self._run(begin())
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            free.set()
            self._run(server.close())
            self._run(reads.close())

    @contextmanager
    def keys_waiting(self) -> Iterator[None]:
        """All threads for the requests of keys are taken."""
        free = threading.Event()

        async def begin() -> None:
            with called_by(is_key=True):
                for _ in range(CONSOLE_THREADS + CONSOLE_WAITING_MAX):
                    self._console.threads.run(free.wait)

        self._run(begin())
        try:
            yield
        finally:
            free.set()

    def close(self) -> None:
        self._run(self._console.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)
