"""One proxy process: settings → objects → start and stop.

Invariants: the parts start in the order of `Proxy._parts` and stop in the reverse order. A start that fails or is
cancelled stops the parts that had started. A graceful stop refuses new requests, lets running exchanges finish within
the grace time, closes the others as `shut_down`, and settles before it releases the journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from math import ceil
from typing import NoReturn

from proxy.foundation.outage import OutageLog
from proxy.foundation.tasks import Tasks
from proxy.gateway.authentication import Accepting
from proxy.gateway.background.exchanges import BackgroundExchanges
from proxy.gateway.batches.routes import add_to as add_object_routes
from proxy.gateway.exchange.handler import ProxyHandler
from proxy.gateway.exchange.opener import ExchangeOpener
from proxy.gateway.exchange.running import ExchangeOwners
from proxy.gateway.exchange.uploads import Uploads
from proxy.gateway.models.catalogue import Catalogue
from proxy.gateway.models.fetched_lists import FetchedLists
from proxy.gateway.models.handler import ModelsHandler
from proxy.gateway.ports import Ports, Reserve
from proxy.gateway.responses.handler import ResponsesHandler
from proxy.gateway.responses.handler import add_to as add_response_routes
from proxy.gateway.resume.handler import ResumeHandler
from proxy.gateway.resume.others import Others, other_on
from proxy.gateway.tapes.tapes import Tapes
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.health import BreakerState
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.websocket.handler import WebSocketHandler
from proxy.http import errors
from proxy.http.cors import Cors
from proxy.http.probes import ROOT, add_probes
from proxy.http.server import Routes, Server, serving, wait_until
from proxy.keys.keyring import Keyring
from proxy.metering.dialects import DIALECTS
from proxy.runtime.machine.data_folder import DataFolder
from proxy.runtime.machine.integrity_check import count_letters
from proxy.runtime.machine.ledger_stores import keep_partitions, open_ledger
from proxy.runtime.machine.price_file import price_book
from proxy.runtime.machine.traces import close_traces, open_traces
from proxy.runtime.machine.unsettled import close_months
from proxy.runtime.proxy.abandoned_journals import settle_abandoned
from proxy.runtime.proxy.admission import AdmissionService
from proxy.runtime.proxy.background import Resumption
from proxy.runtime.proxy.batches import BatchService
from proxy.runtime.proxy.console import Console
from proxy.runtime.proxy.estimator_file import EstimatorFile
from proxy.runtime.proxy.model_table import model_table, needs_price_book, price_lookup
from proxy.runtime.proxy.node import Node, Recovered
from proxy.runtime.proxy.peer_processes import METRICS, PeerProcesses
from proxy.runtime.proxy.running_exchanges import RunningExchanges
from proxy.runtime.proxy.tokenizers import Tokenizers
from proxy.settings import Settings, require_prices
from proxy.sinks.sender import start_sinks
from proxy.telemetry.event_loop import EventLoopWatch
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.project_lookup import start_projects

STARTING = "The proxy is starting."
# The time for the last settling; what the ledger does not take by then stays in the journal.
LAST_SETTLE_S = 10.0
# So many keys together can take all WebSockets, unless `websockets_per_key_max` is set.
KEYS_OF_SOCKETS = 4
# An exchange that is shut down writes its record within milliseconds.
SHUT_DOWN_S = 5.0


class Proxy:
    """`start` it, then `stop` it."""

    def __init__(self, settings: Settings, peers: PeerProcesses | None = None) -> None:
        """`peers`: the processes on this port, where there are several."""
        self.settings = settings
        self.port = 0
        self._peers = peers
        self._exposing = asyncio.Lock()
        self._is_first = peers is None or peers.number == 0
        self._hurried = False
        self._folder = DataFolder(settings.data_dir, None if peers is None else peers.number)
        self._book = price_book(settings.data_dir)
        self._accepting = Accepting(STARTING)
        self._started = AsyncExitStack()

    async def start(self) -> None:
        """Listen. Raises SettingsError, JournalUnavailable, ProgressBroken, QueueUnsuitable, OSError."""
        async with AsyncExitStack() as started:
            for part in self._parts():
                await part(started)
            self._started = started.pop_all()
        self._accepting.reason = None

    async def stop(self) -> None:
        """Stop gracefully. No admitted exchange is lost, even if the time is too short."""
        self._accepting.reason = "The proxy is shutting down."
        await self._started.aclose()

    def hurry(self) -> None:
        """End the grace time: stop waiting for running streams."""
        self._hurried = True

    @property
    def console_url(self) -> str | None:
        """The URL of the console; None: the console is off, or another process has it."""
        return self._console.url

    def _parts(self) -> tuple[Callable[[AsyncExitStack], Awaitable[None]], ...]:
        """Functions that each start one part, and register its stop before anything can fail."""
        return (
            self._open_telemetry,
            self._open_journal,
            self._open_queue,
            self._open_ledger,
            self._open_keyring,
            self._open_admission,
            self._make_handler,
            self._answer_peers,
            self._open_tasks,
            self._settle,
            self._admit,
            self._reach_providers,
            self._join_roster,
            self._open_console,
            self._listen,
            self._watch_event_loop,
        )

    # -- the parts, in their order

    async def _open_telemetry(self, started: AsyncExitStack) -> None:
        if needs_price_book(self.settings):
            self._book.load()
        require_prices(self.settings, price_lookup(self._book))
        self._tokenizers = Tokenizers(self.settings.models.values(), self.settings.estimates)
        limits = self.settings.metrics
        self._metrics = Metrics(self.settings.models, keys_max=limits.keys_max, projects_max=limits.projects_max)
        self._traces = open_traces(self.settings.traces, self._metrics)
        started.push_async_callback(close_traces, self._traces, 0.0)  # a graceful stop has closed them beside `_settle`

    async def _open_journal(self, started: AsyncExitStack) -> None:
        self._folder.make()
        self._node = Node(self._folder, self.settings)
        started.callback(self._node.release)
        self._learned = EstimatorFile(self._folder.estimator)

    async def _open_queue(self, started: AsyncExitStack) -> None:
        self._queue = None
        if self.settings.queue is not None:
            from proxy.runtime.machine.queue import open_queue

            self._queue = await started.enter_async_context(open_queue(self.settings))

    async def _open_ledger(self, started: AsyncExitStack) -> None:
        ledger = open_ledger(self.settings, self._waiting)
        self._store, self._in_thread = await started.enter_async_context(ledger)
        self._recovered = self._node.recover(self._learned.estimator, self._metrics)

    async def _open_keyring(self, started: AsyncExitStack) -> None:
        self._keyring = Keyring(
            self._store.keys,
            pepper=self._store.pepper(),
            unix_time=time.time,
            observer=OutageLog("refreshing keys (keys in memory stay valid)"),
        )
        started.push_async_callback(asyncio.to_thread, self._keyring.close)
        await self._keyring.start()

    async def _open_admission(self, started: AsyncExitStack) -> None:
        self._admission = AdmissionService(
            self.settings,
            self._folder,
            self._node.node_id,
            self._store.engine,
            self._queue,
            self._keyring,
            self._metrics,
            self._in_thread,
        )
        started.push_async_callback(self._admission.close)

    async def _make_handler(self, started: AsyncExitStack) -> None:
        self._upstream = UpstreamClient()
        resume = self.settings.resume
        self._tapes = None
        if resume is not None:
            self._tapes = Tapes(
                bytes_max=resume.bytes_max, total_bytes_max=resume.total_bytes_max, kept_s=60.0 * resume.minutes
            )
            started.callback(self._tapes.close)
        self._handler, self._background, self._resumption = self._handler_of(self._upstream)
        self._batches = self._batch_service(self._upstream)
        started.callback(self._learned.save)

    async def _answer_peers(self, started: AsyncExitStack) -> None:
        self._running = running = RunningExchanges(
            self._handler,
            self._background,
            self._peers,
            self._queue,
            node=self._node.node_id,
            estimator=self._learned.estimator,
        )

        async def answer_to(request: str) -> bytes:
            return await (self._own_exposition() if request == METRICS else running.answer_to(request))

        if self._peers is not None:
            started.callback((await self._peers.listen(answer_to)).close)

    async def _open_tasks(self, started: AsyncExitStack) -> None:
        self._tasks = Tasks()
        started.push_async_callback(self._tasks.stop)

    async def _settle(self, started: AsyncExitStack) -> None:
        self._add_gauges()
        self._node.on_lost = self._admission.reserve_again
        self._start_node(self._node, self._tasks)
        started.push_async_callback(self._settle_last)

    async def _admit(self, started: AsyncExitStack) -> None:
        started.push_async_callback(self._background.suspend)
        await self._resume(self._recovered, self._node)
        await self._batches.reserve()
        await self._admission.start(self._tasks, self._node.journal)
        self._batches.start(self._tasks)
        started.push_async_callback(self._batches.close)
        engine, tasks = self._store.engine, self._tasks
        if self._queue is None:  # with a queue, the workers do this
            start_sinks(self.settings, engine, self._metrics.sinks, tasks, self._in_thread)
            tasks.start(count_letters(engine, self._metrics, self._in_thread), name="letters")
            if self._is_first:
                closing = close_months(self.settings, engine, self._store.ledger, self._in_thread)
                tasks.start(closing, name="periods")
            if self.settings.ledger is not None:
                tasks.start(keep_partitions(engine, self._in_thread), name="partitions")
        start_projects(self._metrics, engine, tasks, self._in_thread)
        tasks.start(self._keyring.run(), name="keyring")
        tasks.start(self._learned.run(), name="estimator")
        if self._is_first:
            tasks.start(self._settle_abandoned(), name="abandoned")

    async def _reach_providers(self, started: AsyncExitStack) -> None:
        started.callback(self._tokenizers.close)
        self._tokenizers.start()
        started.push_async_callback(self._upstream.close)

    async def _join_roster(self, started: AsyncExitStack) -> None:
        """Join the roster of proxies, whose members answer for each other's running exchanges."""
        resume = self.settings.resume
        self._addresses: Callable[[], list[str]] = list
        if self._queue is not None and resume is not None and resume.address is not None:
            from proxy.delivery.roster import Roster

            roster = Roster(self._queue.redis, resume.address, kind="proxies")
            self._addresses = lambda: roster.others
            self._tasks.start(roster.run(), name="proxies")
            if self._is_first:
                started.push_async_callback(roster.leave)

    async def _open_console(self, started: AsyncExitStack) -> None:
        self._console = Console(self.settings, self._store, self._keyring, self._admission.store, self._running)
        started.push_async_callback(self._console.close)
        if self._is_first:
            await self._console.start(self._metrics.refused)

    async def _listen(self, started: AsyncExitStack) -> None:
        cors = self.settings.cors
        self._server = Server(
            self._routes(), refused=self._metrics.refused, cors=None if cors is None else Cors(cors.origins)
        )
        started.push_async_callback(self._server.close)
        listen = self.settings.listen
        self.port = await self._server.start(listen.host, listen.port, reuse_port=self._peers is not None)
        if self._peers is not None and self._tapes is not None:
            await self._server.listen_at(self._peers.http_socket)
        started.push_async_callback(self._finish_exchanges)

    async def _watch_event_loop(self, started: AsyncExitStack) -> None:
        started.callback(EventLoopWatch(self._metrics.late).stop)

    # -- how they stop

    async def _finish_exchanges(self) -> None:
        """Accept no new connection; after the grace time, end the exchanges that still run."""
        await self._server.stop_listening()
        live, sessions = self._handler.live, self._sockets.sessions
        for session in list(sessions):
            session.stop()
        finished = await wait_until(
            lambda: not (live or sessions) or self._hurried, deadline_s=self.settings.shutdown_grace_s
        )
        if self._hurried or not finished:
            for exchange in list(live):
                exchange.shut_down()
            await wait_until(lambda: not (live or sessions), deadline_s=SHUT_DOWN_S)
        await self._background.suspend()

    async def _settle_last(self) -> None:
        """Settle the records in the journal, while the last spans are sent."""
        spans = close_traces(self._traces, self.settings.shutdown_grace_s)
        await asyncio.gather(self._node.close(LAST_SETTLE_S), spans)

    # -- what they consist of

    def _handler_of(self, upstream: UpstreamClient) -> tuple[ProxyHandler, BackgroundExchanges, Resumption]:
        settings = self.settings
        ports = Ports(
            outbox=self._node.outbox,
            upstream=upstream,
            estimator=self._learned.estimator,
            meters=self._metrics,
            unix_time=time.time,
            admission=self._admission.admission,
            claims=self._admission.claims,
            owners=self._admission.owners,
            traces=self._traces,
            files=lambda key, file_ids: self._batches.check_files(key, file_ids),
            tapes=self._tapes,
        )
        self._providers = providers = {
            name: Provider.of(one, write_stall_s=settings.write_stall_s) for name, one in settings.providers.items()
        }
        for name, one in providers.items():
            self._metrics.providers.watch(name, list(BreakerState), partial(_state, one))
        self._models = model_table(settings, self._book, providers, self._tokenizers)
        self._reserve = Reserve(
            settings.reserve.completion_tokens, settings.reserve.nusd_max, settings.budgets.exceeded_status
        )
        running = ExchangeOwners()
        background = BackgroundExchanges(ports, running)
        resumption = Resumption(
            background, running, ports,
            keyring=self._keyring, models=self._models, providers=providers, admission=self._admission,
        )  # fmt: skip
        opener = ExchangeOpener(keys=self._keyring, models=self._models, ports=ports, reserve=self._reserve)
        self._uploads = Uploads(body_bytes_max=settings.request_bytes_max)
        handler = ProxyHandler(
            keys=self._keyring,
            opener=opener,
            ports=ports,
            uploads=self._uploads,
            request_bytes_max=settings.request_bytes_max,
            accepting=self._accepting,
            background=background.take,
            owners=running,
        )
        self._sockets = WebSocketHandler(
            keys=self._keyring,
            opener=opener,
            ports=ports,
            providers=providers,
            live=handler.live,
            owners=running,
            uploads=self._uploads,
            message_bytes_max=settings.request_bytes_max,
            sessions_max=settings.exchanges_max,
            sessions_per_key_max=settings.websockets_per_key_max or ceil(settings.exchanges_max / KEYS_OF_SOCKETS),
            accepting=self._accepting,
        )
        return handler, background, resumption

    async def _resume(self, recovered: Recovered, node: Node) -> None:
        for response_id in recovered.settled:
            await self._admission.owners.forget(response_id)
        await self._resumption.resume(recovered.resumable, node.outbox)

    def _models_handler(self) -> ModelsHandler:
        lists = FetchedLists(self._upstream, self._tasks)
        return ModelsHandler(self._keyring, Catalogue(self.settings.models, self._providers, lists))

    def _resume_handler(self) -> ResumeHandler | None:
        if self._tapes is None:
            return None
        processes = [] if self._peers is None else [other_on(path) for path in self._peers.http_sockets]
        return ResumeHandler(
            keys=self._keyring,
            tapes=self._tapes,
            others=Others(self._upstream, processes, self._addresses),
            stall_s=self.settings.write_stall_s,
            accepting=self._accepting,
        )

    def _responses_handler(self, resuming: ResumeHandler | None) -> ResponsesHandler:
        return ResponsesHandler(
            keys=self._keyring,
            owners=self._admission.owners,
            providers=self._providers,
            client=self._upstream,
            accepting=self._accepting,
            background=self._background,
            unix_time=time.time,
            resuming=resuming,
        )

    def _batch_service(self, upstream: UpstreamClient) -> BatchService:
        return BatchService(
            node=self._node.node_id,
            stores=self._store,
            in_thread=self._in_thread,
            keyring=self._keyring,
            admission=self._admission,
            models=self._models,
            providers=self._providers,
            client=upstream,
            estimator=self._learned.estimator,
            reserve=self._reserve,
            uploads=self._uploads,
            request_bytes_max=self.settings.request_bytes_max,
            metrics=self._metrics,
            accepting=self._accepting,
        )

    def _add_gauges(self) -> None:
        journal = self._node.journal
        self._metrics.gauges(
            in_flight=lambda: len(self._handler.live) + len(self._background.live),
            websockets=lambda: len(self._sockets.sessions),
            depth=lambda: journal.depth,
            oldest_age_s=lambda: journal.oldest_age_s(time.time()),
            unwritten=lambda: journal.unwritten_count,
        )

    def _start_node(self, node: Node, tasks: Tasks) -> None:
        node.start(tasks, self._store.ledger, self._queue, self._metrics, self._in_thread)

    async def _settle_abandoned(self) -> None:
        folders = self._folder.left_behind(0 if self._peers is None else self._peers.count)
        # All at once: an answer that is made in the background can keep one of them open for hours.
        await asyncio.gather(*(self._settle_folder(folder) for folder in folders))

    async def _settle_folder(self, folder: DataFolder) -> None:
        await settle_abandoned(
            folder,
            self.settings,
            recover=lambda node: node.recover(self._learned.estimator, self._metrics),
            release=self._admission.abandoned,
            resume=self._resume,
            start=self._start_node,
        )

    def _waiting(self, reason: str) -> AbstractAsyncContextManager[None]:
        """Refuse requests on the same port, and report the reason to monitors."""
        routes = Routes()
        for dialect in DIALECTS:
            routes.metered(dialect, _refuse, _refuse)
        add_response_routes(routes, lambda _operation, _response_id: _refuse)
        add_object_routes(routes, lambda _apis, _operation, _object_id: _refuse)
        add_probes(routes, not_ready=lambda: reason, exposition=self._exposition)
        listen = self.settings.listen
        return serving(
            routes, listen.host, listen.port, refused=self._metrics.refused, reuse_port=self._peers is not None
        )

    def _routes(self) -> Routes:
        routes = Routes()
        for dialect in DIALECTS:
            routes.metered(dialect, self._handler.serve, self._sockets.serve)
        routes.local("GET", "/", ROOT)
        self._models_handler().add_to(routes)
        resuming = self._resume_handler()
        self._responses_handler(resuming).add_to(routes)
        self._batches.add_to(routes)
        if resuming is not None:
            resuming.add_to(routes)
        add_probes(routes, not_ready=self._not_ready, exposition=self._exposition)
        self._console.add_public(routes)
        return routes

    def _not_ready(self) -> str | None:
        return self._accepting.reason or ("The journal is broken." if self._node.journal.broken else None)

    async def _exposition(self) -> bytes:
        own = await self._own_exposition()
        return own if self._peers is None else await self._peers.exposition(own)

    async def _own_exposition(self) -> bytes:
        if self._peers is None:
            return self._metrics.exposition()
        async with self._exposing:
            return await self._peers.own(self._metrics.exposition())


async def _refuse(*_request: object) -> NoReturn:
    raise errors.overloaded(STARTING, code="not_accepting")


def _state(provider: Provider) -> BreakerState:
    return provider.health.state(time.monotonic())
