"""One proxy process: settings → objects → start and stop.

Start: lock and read the journal → the ledger is as this version wants it → settle what a crash left open → keys →
carry → listen.
Stop: take no new work → let what runs finish within the grace time → close the rest as `shut_down` → carry → let go.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from proxy.billing.prices import PriceBook
from proxy.billing.record import Price
from proxy.foundation.outage import OutageLog
from proxy.foundation.tasks import Tasks
from proxy.gateway.exchange.handler import ProxyHandler
from proxy.gateway.ports import Ports, Reserve
from proxy.gateway.upstream.client import Provider, UpstreamClient
from proxy.gateway.upstream.health import BreakerState
from proxy.gateway.upstream.routing import Models, Route
from proxy.http.server import Routes, Server, wait_until
from proxy.journal.log import JournalInUse
from proxy.keys.keyring import Keyring
from proxy.metering.dialects import DIALECTS
from proxy.metering.estimator.estimate import Estimator
from proxy.runtime.machine.command_store import LEDGER_THREADS, CommandStore
from proxy.runtime.machine.data_folder import DataFolder
from proxy.runtime.machine.integrity_check import count_letters
from proxy.runtime.machine.probes import add_probes
from proxy.runtime.machine.projects import start_projects
from proxy.runtime.machine.queue import Queue
from proxy.runtime.machine.traces import close_traces, open_traces
from proxy.runtime.proxy.admission import AdmissionService
from proxy.runtime.proxy.console import Console, RunningExchanges
from proxy.runtime.proxy.node import Node
from proxy.runtime.proxy.peer_processes import METRICS, PeerProcesses
from proxy.runtime.proxy.tokenizers import Tokenizers
from proxy.settings import ModelSettings, ProviderSettings, Settings, TargetSettings, require_prices
from proxy.settings import route as find_model
from proxy.sinks.observers import start_sinks
from proxy.storage.executor import BoundedExecutor
from proxy.telemetry.metrics import Metrics

# What the estimator has learned is kept this often; a crash forgets no more.
KEEP_ESTIMATOR_S = 30.0
# The ledger gets this long at the end to take what is still in the journal; what it does not take waits there.
LAST_SETTLE_S = 10.0

_log = logging.getLogger(__name__)


def price_lookup(book: PriceBook) -> Callable[[ProviderSettings, str], Price | None]:
    """The built-in book, asked as the settings' check asks it: at the present time."""

    def lookup(provider: ProviderSettings, model: str) -> Price | None:
        return book.price(provider=provider.name, base_url=provider.base_url, model=model, at=time.time())

    return lookup


def _models(settings: Settings, book: PriceBook, providers: Mapping[str, Provider], tokenizers: Tokenizers) -> Models:
    def listed(target: TargetSettings, upstream_model: str, at: float) -> Price | None:
        where = settings.providers[target.provider]
        return book.price(provider=where.name, base_url=where.base_url, model=upstream_model, at=at)

    def made(model: ModelSettings, passed: str) -> Route:
        """The first provider of a model, and all others behind it; `passed`: the name there, where a pattern has it."""
        first, counter = model.providers[0], tokenizers.of(model.name)

        def way(target: TargetSettings, others: tuple[Route, ...]) -> Route:
            def prices(at: float) -> tuple[Price | None, Price | None]:
                # Whoever answers, the price is the same: the model's own, or the book's for the first provider.
                price = model.price or listed(first, first.upstream_model or passed, at)
                return price, target.cost or listed(target, target.upstream_model or passed, at)

            provider, name = providers[target.provider], target.upstream_model or passed
            return Route(provider, name, prices, model.completion_tokens_max, target.weight, others, counter)

        return way(first, tuple(way(target, ()) for target in model.providers[1:]))

    def passed(name: str) -> Route | None:
        found = find_model(settings.models, name)
        return None if found is None else made(*found)

    named = {name: made(model, "") for name, model in settings.models.items() if not model.is_pattern}
    return Models(named, passed)


def _state(provider: Provider) -> BreakerState:
    return provider.health.state(time.monotonic())


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
    """`start`, then `stop`; nothing runs before or after."""

    def __init__(self, settings: Settings, siblings: PeerProcesses | None = None) -> None:
        """`siblings`: this is one of several processes on one port."""
        self.settings = settings
        self.port = 0
        self._peers = siblings
        self._folder = DataFolder(settings.data_dir, None if siblings is None else siblings.mine)
        self._book = PriceBook()
        self._tasks = Tasks()
        self._ledger = BoundedExecutor(LEDGER_THREADS, name="ledger")
        self._refusing: str | None = "The proxy is starting."

    async def start(self) -> None:
        """Listen. Raises SettingsError, JournalUnavailable, ProgressBroken, QueueUnsuitable, OSError."""
        require_prices(self.settings, price_lookup(self._book))
        shown = self.settings.metrics
        self._metrics = Metrics(self.settings.models, keys_max=shown.keys_max, projects_max=shown.projects_max)
        self._traces = open_traces(self.settings.traces, self._metrics)
        self._tokenizers = Tokenizers(self.settings.models.values())
        self._folder.make()
        self._node = Node(self._folder, self.settings)
        self._estimator = _load_estimator(self._folder.estimator)
        self._queue = None
        if self.settings.queue is not None:
            self._queue = Queue(self.settings)
            await self._queue.check()
        self._store = await self._ledger.run(CommandStore.open, self.settings)
        engine = self._store.engine
        self._recover(self._node)
        self._keyring = keyring = Keyring(
            self._store.keys,
            pepper=self._store.pepper(),
            unix_time=time.time,
            observer=OutageLog("refreshing keys (known ones stay valid)"),
        )
        await keyring.refresh()
        self._admission = AdmissionService(
            self.settings,
            self._node.journal.node.node_id,
            engine,
            self._queue,
            keyring,
            self._metrics,
            self._ledger.run,
        )
        self._upstream = UpstreamClient()
        self._tokenizers.start()
        self._handler = self._make_chat(keyring)
        self._gauges()
        self._node.start(self._tasks, self._store.ledger, self._queue, self._metrics, self._ledger.run)
        await self._admission.start(self._tasks, self._node.journal)
        if self._queue is None:  # with a queue, workers do
            start_sinks(self.settings, engine, self._metrics.sinks, self._tasks, self._ledger.run)
        start_projects(self._metrics, engine, self._tasks, self._ledger.run)
        self._tasks.start(keyring.run(), name="keyring")
        self._tasks.start(self._keep_estimator(), name="estimator")
        if self._queue is None:  # else the workers do
            self._tasks.start(count_letters(engine, self._metrics, self._ledger.run), name="letters")
        if self._peers is None or self._peers.mine == 0:
            self._tasks.start(self._adopt(), name="adopt")
        node = self._node.journal.node.node_id
        inside = RunningExchanges(self._handler, self._peers, self._queue, node=node, estimator=self._estimator)
        self._console = Console(self.settings, self._store, keyring, self._admission.store, inside)
        self._server = Server(self._routes(), refused=self._metrics.refused)
        listen = self.settings.listen
        self._asked_by_siblings = await self._listen_to_siblings(inside)
        if self._peers is None or self._peers.mine == 0:
            await self._console.start(self._metrics.refused)
        self.port = await self._server.start(listen.host, listen.port, reuse_port=self._peers is not None)
        self._refusing = None

    @property
    def console_url(self) -> str | None:
        """Where the console listens; None: it is off, or another process has it."""
        return self._console.url

    async def _listen_to_siblings(self, inside: RunningExchanges) -> asyncio.Server | None:
        def answer_to(question: str) -> bytes:
            return self._metrics.exposition() if question == METRICS else inside.answer_to(question)

        return None if self._peers is None else await self._peers.listen(answer_to)

    def _recover(self, node: Node) -> None:
        node.recover(self._estimator)
        self._metrics.recovered(node.journal.depth)
        self._metrics.ledger.journal_damage.inc(len(node.journal.damage))

    async def _adopt(self) -> None:
        """Settle what processes left that nobody starts any more: those beyond a smaller `--workers`."""
        for folder in self._folder.left_behind(0 if self._peers is None else self._peers.count):
            try:
                node = Node(folder, self.settings)
            except JournalInUse:
                continue  # another proxy on this data directory still has it
            _log.info("settling what %s left", folder.own.name)
            self._recover(node)
            await self._admission.abandoned(node.journal)
            tasks = Tasks()
            node.start(tasks, self._store.ledger, self._queue, self._metrics, self._ledger.run)
            try:
                while not await node.close(KEEP_ESTIMATOR_S):
                    pass
            finally:
                await tasks.stop()
                node.release()

    def _make_chat(self, keyring: Keyring) -> ProxyHandler:
        ports = Ports(
            outbox=self._node.outbox,
            upstream=self._upstream,
            estimator=self._estimator,
            meters=self._metrics,
            unix_time=time.time,
            admission=self._admission.admission,
            claims=self._admission.claims,
            traces=self._traces,
        )
        providers = {
            name: Provider.of(one, write_stall_s=self.settings.write_stall_s)
            for name, one in self.settings.providers.items()
        }
        for name, one in providers.items():
            self._metrics.providers.watch(name, list(BreakerState), partial(_state, one))
        return ProxyHandler(
            keys=keyring,
            models=_models(self.settings, self._book, providers, self._tokenizers),
            ports=ports,
            reserve=Reserve(
                self.settings.reserve.completion_tokens,
                self.settings.reserve.usd_max,
                self.settings.budgets.exceeded_status,
            ),
            request_bytes_max=self.settings.request_bytes_max,
            closed=lambda: self._refusing,
        )

    def _gauges(self) -> None:
        journal = self._node.journal
        self._metrics.gauges(
            in_flight=lambda: len(self._handler.live),
            depth=lambda: journal.depth,
            oldest_age_s=lambda: journal.oldest_age_s(time.time()),
            held=lambda: journal.held_count,
        )

    def _routes(self) -> Routes:
        routes = Routes()
        for dialect in DIALECTS:
            routes.metered(dialect, self._handler.serve)
        routes.local("GET", "/v1/models", self._handler.models)
        add_probes(routes, not_ready=self._not_ready, exposition=self._exposition)
        self._console.add_public(routes)
        return routes

    def _not_ready(self) -> str | None:
        return self._refusing or ("The journal is broken." if self._node.journal.broken else None)

    async def _exposition(self) -> bytes:
        mine = self._metrics.exposition()
        return mine if self._peers is None else await self._peers.exposition(mine)

    async def _keep_estimator(self) -> None:
        while True:
            await asyncio.sleep(KEEP_ESTIMATOR_S)
            learned = self._estimator.export()
            with suppress(OSError):  # the next time; what is not kept is learned again
                await asyncio.get_running_loop().run_in_executor(None, _keep_estimator, self._folder.estimator, learned)

    async def stop(self) -> None:
        """Graceful: nothing that was admitted is lost, whatever the time allows."""
        self._refusing = "The proxy is shutting down."
        await self._server.stop_listening()
        grace_s = self.settings.shutdown_grace_s
        if not await wait_until(lambda: not self._handler.live, deadline_s=grace_s):
            for exchange in list(self._handler.live):
                exchange.shut_down()
            await wait_until(lambda: not self._handler.live, deadline_s=5.0)
        await self._server.close()
        await self._console.close()
        await self._upstream.close()
        self._tokenizers.close()
        await asyncio.gather(self._node.close(LAST_SETTLE_S), close_traces(self._traces, grace_s))
        await self._tasks.stop()
        await self._admission.close()
        if self._asked_by_siblings is not None:
            self._asked_by_siblings.close()
        if self._queue is not None:
            await self._queue.close()
        with suppress(OSError):
            _keep_estimator(self._folder.estimator, self._estimator.export())
        self._node.release()
        await asyncio.to_thread(self._ledger.close)
        await asyncio.to_thread(self._keyring.close)
        self._store.close()
