"""The composition root: settings → objects → start and stop. The one module that knows everybody.

Start: lock and read the journal → migrate the ledger → settle what a crash left open → keys → settler → listen.
Stop: take no new work → let what runs finish within the grace time → close the rest as `shut_down` → settle → let go.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from proxy.billing.prices import PriceBook
from proxy.billing.record import Price
from proxy.billing.settlement import content_hash, entry
from proxy.gateway.chat import Chat
from proxy.gateway.connection import ClientConnection
from proxy.gateway.ports import Ports, Route
from proxy.gateway.routing import Models
from proxy.gateway.server import Routes, Server, wait_until
from proxy.gateway.tasks import Tasks
from proxy.gateway.upstream import Provider, UpstreamClient
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import load_pepper
from proxy.ledger.database import LedgerUnavailable, open_engine, sqlite_url
from proxy.ledger.key_store import KeyStore
from proxy.ledger.migrate import migrate
from proxy.ledger.settler import Settler
from proxy.ledger.store import LedgerStore, Settled
from proxy.metering.dialect import OPENAI_CHAT
from proxy.metering.estimate import VERSION, Estimator
from proxy.metrics import CONTENT_TYPE, Metrics
from proxy.outbox import LocalOutbox
from proxy.pipeline.journal import Journal
from proxy.pipeline.progress import ProgressTable
from proxy.pipeline.recovery import recover
from proxy.settings import ModelSettings, ProviderSettings, Settings, require_prices
from proxy.settings import route as find_model

# What the estimator has learned is kept this often; a crash forgets no more.
KEEP_ESTIMATOR_S = 30.0
# The ledger gets this long at the end to take what is still in the journal; what it does not take waits there.
LAST_SETTLE_S = 10.0

_log = logging.getLogger(__name__)


class Folder:
    """Where everything of one data directory is."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir
        self.journal = data_dir / "journal"
        self.progress = data_dir / "progress.table"
        self.pepper = data_dir / "pepper"
        self.estimator = data_dir / "estimator.json"
        self.ledger_url = sqlite_url(data_dir / "ledger.db")

    def make(self) -> None:
        """Make it, for its owner only."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)


def price_lookup(book: PriceBook) -> Callable[[ProviderSettings, str], Price | None]:
    """The built-in book, asked as the settings' check asks it: at the present time."""

    def lookup(provider: ProviderSettings, model: str) -> Price | None:
        return book.price(provider=provider.name, base_url=provider.base_url, model=model, at=time.time())

    return lookup


def _models(settings: Settings, book: PriceBook) -> Models:
    providers = {
        name: Provider.of(provider, write_stall_s=settings.write_stall_s)
        for name, provider in settings.providers.items()
    }

    def made(model: ModelSettings, upstream_model: str) -> Route:
        provider = providers[model.provider]

        def prices(at: float) -> tuple[Price | None, Price | None]:
            where = provider.settings
            listed = book.price(provider=where.name, base_url=where.base_url, model=upstream_model, at=at)
            return model.price or listed, model.cost or listed

        return Route(provider, upstream_model, prices)

    def passed(name: str) -> Route | None:
        found = find_model(settings.models, name)
        return None if found is None else made(*found)

    named = {name: made(model, model.upstream_model) for name, model in settings.models.items() if not model.is_pattern}
    return Models(named, passed)


class _SettlerSeen:
    """What the settler does, in metrics and, when it cannot, in the log."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def committed(self, settled: Settled, *, unreadable: int, duration_s: float) -> None:
        results = {
            "inserted": len(settled.inserted),
            "repeated": settled.repeated,
            "conflict": settled.conflicts,
            "dead_letter": settled.rejected + unreadable,
        }
        self._metrics.committed(results, entries=settled.inserted, duration_s=duration_s)
        if settled.conflicts or settled.rejected or unreadable:
            _log.error("ledger: records became dead letters: %s", results)

    def failed(self, error: Exception) -> None:
        self._metrics.failed()
        known = isinstance(error, LedgerUnavailable)
        _log.error("ledger: cannot be written to, trying again: %s", error, exc_info=None if known else error)


def _keys_unreadable(error: OSError) -> None:
    _log.warning("keys cannot be refreshed, known ones go on counting: %s", error)


def _load_estimator(file: Path) -> Estimator:
    try:
        return Estimator.restore(json.loads(file.read_bytes()))
    except (OSError, ValueError):
        return Estimator()


def _keep_estimator(file: Path, learned: dict[str, object]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(learned))
    new.chmod(0o600)  # as everything in the folder
    os.replace(new, file)


class Proxy:
    """One proxy process on embedded storage. `start`, then `stop`; nothing runs before or after."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.port = 0
        self._folder = Folder(settings.data_dir)
        self._book = PriceBook()
        self._tasks = Tasks()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._refusing: str | None = "The proxy is starting."

    async def start(self, *, host: str | None = None, port: int | None = None) -> None:
        """Listen. Raises SettingsError, JournalUnavailable, LedgerUnavailable, OSError."""
        require_prices(self.settings, price_lookup(self._book))
        self._folder.make()
        loop = asyncio.get_running_loop()
        journal = self._journal = Journal.open(
            self._folder.journal,
            bytes_max=self.settings.journal.bytes_max,
            durability=self.settings.journal.durability.value,
        )
        self._table = ProgressTable.open(self._folder.progress, slots=self.settings.streams_max, unix_time=time.time)
        self._estimator = _load_estimator(self._folder.estimator)
        self._metrics = Metrics(self.settings.models)
        self._engine = open_engine(self._folder.ledger_url)
        await loop.run_in_executor(self._disk, migrate, self._folder.ledger_url)
        self._recover(journal)
        keyring = Keyring(
            KeyStore(self._engine, clock=time.time),
            pepper=load_pepper(self._folder.pepper),
            unix_time=time.time,
            on_failure=_keys_unreadable,
        )
        await keyring.refresh()
        store = LedgerStore(self._engine, content_hash=content_hash, clock=time.time)
        self._settler = Settler(journal, store, to_entry=entry, observer=_SettlerSeen(self._metrics))
        journal.wakeup = self._settler.wake
        self._outbox = LocalOutbox(journal, self._table, self._disk)
        self._upstream = UpstreamClient()
        self._chat = self._make_chat(keyring)
        self._gauges(journal)
        self._tasks.start(self._settler.run(), name="settler")
        self._tasks.start(keyring.run(), name="keyring")
        self._tasks.start(self._outbox.keep_durable(), name="outbox")
        self._tasks.start(self._keep_estimator(), name="estimator")
        self._server = Server(self._routes(), refused=self._metrics.refused)
        listen = self.settings.listen
        self.port = await self._server.start(host or listen.host, listen.port if port is None else port)
        self._refusing = None

    def _recover(self, journal: Journal) -> None:
        """Close what the last run left open, each exactly once."""
        records = recover(journal.unfinished(), self._table, self._estimator, estimator_version=VERSION)
        for record in records:
            journal.finish(record)
        self._table.clear()
        self._metrics.recovered(journal.depth)
        for damage in journal.damage:
            self._metrics.journal_damage.inc()
            _log.error("journal damaged: %s", damage)
        if records:
            _log.warning("recovered %d exchanges that a crash had cut off", len(records))

    def _make_chat(self, keyring: Keyring) -> Chat:
        ports = Ports(
            outbox=self._outbox,
            upstream=self._upstream,
            estimator=self._estimator,
            meters=self._metrics,
            unix_time=time.time,
        )
        return Chat(
            keys=keyring,
            models=_models(self.settings, self._book),
            ports=ports,
            request_bytes_max=self.settings.request_bytes_max,
            closed=lambda: self._refusing,
        )

    def _gauges(self, journal: Journal) -> None:
        self._metrics.gauges(
            in_flight=lambda: len(self._chat.live),
            depth=lambda: journal.depth,
            oldest_age_s=lambda: journal.oldest_age_s(time.time()),
            held=lambda: journal.held_count,
        )

    def _routes(self) -> Routes:
        routes = Routes()
        routes.metered(OPENAI_CHAT, self._chat.serve)
        routes.local("GET", "/v1/models", self._chat.models)
        routes.local("GET", "/healthz", self._healthz)
        routes.local("GET", "/readyz", self._readyz)
        routes.local("GET", "/metrics", self._expose)
        return routes

    async def _healthz(self, _request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        """The process runs and its loop turns."""
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        """New work is taken."""
        reason = self._refusing or ("The journal is broken." if self._journal.broken else None)
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ready'}\n")

    async def _expose(self, _request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def _keep_estimator(self) -> None:
        while True:
            await asyncio.sleep(KEEP_ESTIMATOR_S)
            learned = self._estimator.export()
            with suppress(OSError):  # the next time; what is not kept is learned again
                await asyncio.get_running_loop().run_in_executor(
                    self._disk, _keep_estimator, self._folder.estimator, learned
                )

    async def stop(self) -> None:
        """Graceful: nothing that was admitted is lost, whatever the time allows."""
        self._refusing = "The proxy is shutting down."
        await self._server.stop_listening()
        grace_s = self.settings.shutdown_grace_s
        if not await wait_until(lambda: not self._chat.live, deadline_s=grace_s):
            for exchange in list(self._chat.live):
                exchange.shut_down()
            await wait_until(lambda: not self._chat.live, deadline_s=5.0)
        await self._server.close()
        await self._upstream.close()
        await self._settler.close(LAST_SETTLE_S)
        await self._tasks.stop()
        with suppress(OSError):
            _keep_estimator(self._folder.estimator, self._estimator.export())
        self._engine.dispose()
        self._journal.close()
        self._table.close()
        self._disk.shutdown()


class Store:
    """The ledger and the keys of a data directory, for commands: whether or not a server runs on it."""

    def __init__(self, settings: Settings) -> None:
        """Make or migrate it first. Raises LedgerUnavailable."""
        self._folder = Folder(settings.data_dir)
        self._folder.make()
        migrate(self._folder.ledger_url)
        self.engine = open_engine(self._folder.ledger_url)
        self.keys = KeyStore(self.engine, clock=time.time)

    def pepper(self) -> bytes:
        """What keys are hashed with; made at its first use."""
        return load_pepper(self._folder.pepper)

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()
