"""One proxy process: settings → objects → start and stop.

Invariants: the parts start in the order of `Proxy._start` and stop in the reverse order. A start that fails or is
cancelled stops the parts that had started. A graceful stop refuses new requests, lets running exchanges finish within
the grace time, closes the others as `shut_down`, and settles before it releases the journal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from proxy.console.remote_exchanges import RemoteExchanges
from proxy.foundation.tasks import Tasks
from proxy.gateway.authentication import Accepting
from proxy.gateway.dimensions.ids import DimensionIds
from proxy.gateway.dimensions.requests import RequestDimensions
from proxy.gateway.key_info.reading import KeyReads
from proxy.gateway.resume.others import Others, other_on
from proxy.gateway.tapes.tapes import Tapes
from proxy.gateway.upstream.client import UpstreamClient
from proxy.http.cors import Cors
from proxy.http.probes import add_probes
from proxy.http.refused_requests import RefusalLog
from proxy.http.server import Routes, Server, serving, wait_until
from proxy.journal.journal import Journal
from proxy.journal.log import JournalInUse
from proxy.journal.segment import is_locked
from proxy.ledger.dimensions.values import DimensionValues
from proxy.runtime.machine.configuration_file import ConfigurationFile
from proxy.runtime.machine.configured_prices import record_changes
from proxy.runtime.machine.data_folder import DataFolder, ledger_url
from proxy.runtime.machine.integrity_check import count_letters
from proxy.runtime.machine.ledger_stores import keep_partitions, post_grants
from proxy.runtime.machine.price_file import path_in
from proxy.runtime.machine.traces import close_traces
from proxy.runtime.machine.unsettled import close_months
from proxy.runtime.machine.waiting import Waiting
from proxy.runtime.proxy.abandoned_journals import settle_abandoned
from proxy.runtime.proxy.configuration import Reloader
from proxy.runtime.proxy.console import Console
from proxy.runtime.proxy.deployment_state import PROVIDERS, DeploymentState
from proxy.runtime.proxy.handlers import STARTING, Handlers, client_routes, make_handlers, waiting_routes
from proxy.runtime.proxy.handover import FIRST, LEADS, REPLACED, Listeners, Succession, offer, open_offer
from proxy.runtime.proxy.node import Settling
from proxy.runtime.proxy.peer_processes import METRICS, PeerProcesses
from proxy.runtime.proxy.price_refresh import PriceRefresh
from proxy.runtime.proxy.recent_refusals import REFUSALS, RecentRefusals
from proxy.runtime.proxy.resources import Resources, open_resources
from proxy.runtime.proxy.running_exchanges import RunningExchanges
from proxy.settings import Settings
from proxy.settings.values import LogFormat
from proxy.sinks.deliveries import Deliveries
from proxy.storage.database import LedgerUnavailable, open_engine
from proxy.telemetry.event_loop import EventLoopWatch
from proxy.telemetry.log_lines import ExchangeLog
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.project_lookup import start_projects

if TYPE_CHECKING:
    from proxy.delivery.roster import Roster
    from proxy.runtime.machine.queue import Queue

_log = logging.getLogger(__name__)

SHUTTING_DOWN = "The proxy is shutting down."
# The time for the last settling; what the ledger does not take by then stays in the journal.
LAST_SETTLE_S = 10.0
# An exchange that is shut down writes its record within milliseconds.
SHUT_DOWN_S = 5.0


class Proxy:
    """`start` it, then `stop` it."""

    def __init__(
        self,
        settings: Settings,
        peers: PeerProcesses | None = None,
        file: ConfigurationFile | None = None,
        succession: Succession = FIRST,
    ) -> None:
        """`peers`: the processes on this port, where there are several. `file`: where the settings come from; None:
        from the environment. `succession`: the sockets and the proxy that it takes over."""
        self.port = 0
        self.console_url: str | None = None
        """the URL of the console; None: the console is off, or another process has it"""
        self._settings = settings
        """the current settings: those at the start, with the changes of reloads"""
        self._peers = peers
        self._file = file
        self.reload: Callable[[], object] | None = None
        self.refuse_reload: Callable[[], object] | None = None
        """reads the configuration file again, and applies it; the log reports the result. None: before `start`"""
        self.listeners: Callable[[], Listeners] = dict
        """the listening sockets"""
        self._on_lead: Callable[[], None] = lambda: None
        self._succession = succession
        self._is_replaced = False
        self._is_beside_served = succession.is_served
        """the previous proxy still serves on these sockets: what this process has accepted, it answers"""
        self._accepting = Accepting(STARTING)
        self._hurried = False
        self._is_leaving = False
        self._stops = AsyncExitStack()

    async def start(self) -> None:
        """Listen. Raises SettingsError, JournalUnavailable, ProgressBroken, QueueUnsuitable, OSError."""
        async with AsyncExitStack() as stops:
            await self._start(stops)
            self._stops = stops.pop_all()

    async def stop(self) -> None:
        """Stop gracefully. No admitted exchange is lost, even if the time is too short."""
        self._is_leaving = True
        self._is_replaced = self._is_replaced or self._is_beside_served
        if self._settings.drain_delay_s and not self._is_replaced:
            await wait_until(lambda: self._hurried or self._is_replaced, deadline_s=self._settings.drain_delay_s)
        if not self._is_replaced:
            self._accepting.reason = SHUTTING_DOWN
        await self._stops.aclose()

    def hurry(self) -> None:
        """End the times of `drain_delay_s` and `shutdown_grace_s`: stop waiting for running streams."""
        self._hurried = True

    async def _start(self, stops: AsyncExitStack) -> None:
        """Start the parts in their order; each registers its stop before anything can fail."""
        settings, peers, accepting = self._settings, self._peers, self._accepting
        is_first = peers is None or peers.number == 0
        folder = self._folder()
        metrics = _metrics(settings, stops)
        exposition = Exposition(metrics, peers)
        resources = await open_resources(settings, folder, metrics, self._waiting(metrics, exposition), stops)
        settling, journal = resources.settling(resources.node, resources.recovered), resources.node.journal

        tasks = Tasks()
        stops.push_async_callback(tasks.stop)
        reloader = self._reload_on_request(resources, tasks, stops)
        upstream = UpstreamClient()
        stops.push_async_callback(upstream.close)
        tapes = _tapes(settings, stops)
        queue = resources.queue
        roster = _roster(settings, queue)
        processes = [] if peers is None else [other_on(path) for path in peers.http_sockets]
        others = Others(upstream, processes, list if roster is None else roster.others)
        key_reads = KeyReads(open_engine(ledger_url(settings)), resources.admission.store)
        stops.push_async_callback(key_reads.close)
        dimensions = _dimensions(resources, stops)
        refused = RefusalLog(unix_time=time.time, organization_of=resources.keyring.organization_of)
        refusals = RecentRefusals(refused, peers)
        state = DeploymentState(resources.configuration, peers)
        handlers = make_handlers(
            resources, settling.outbox, accepting, upstream, tapes, others, key_reads, dimensions, refusals.local, tasks
        )
        _add_gauges(metrics, handlers, journal)

        remote = None if queue is None else RemoteExchanges(queue.leases, resources.learned.estimator, queue.stops.send)
        running = RunningExchanges(handlers.exchanges, handlers.background, peers, remote, resources.node.node_id)
        if queue is not None:
            tasks.start(queue.stops.follow(running.stop_local), name="stops")
        if peers is not None:
            stops.callback((await peers.listen(partial(_answer, exposition, running, refusals, state))).close)
        settling.start(tasks)
        stops.push_async_callback(_settle_last, settling, resources)

        stops.push_async_callback(handlers.background.suspend)
        await handlers.resumption.resume(resources.recovered, settling.outbox)
        await handlers.batches.reserve()
        await resources.admission.start(tasks, journal)
        _start_work_without_clients(handlers, tasks, stops)
        _start_maintenance(resources, tasks, is_first=is_first)
        _follow_prices(resources, tasks, reloader, upstream, folder if is_first else None)
        if is_first:
            left = folder.left_behind(() if peers is None else peers.data_folders)
            tasks.start(settle_abandoned(left, resources, handlers.resumption), name="abandoned")

        stops.callback(resources.tokenizers.close)
        resources.tokenizers.start()
        _join(queue, roster, tasks, stops, is_first=is_first)
        listening = await self._listen(
            stops, resources, handlers, running, refusals, state, exposition, key_reads, is_first=is_first,
            keeps_tapes=tapes is not None,
        )  # fmt: skip
        self.listeners = listening
        self._on_lead = reloader.started
        await self._serves(tasks)

    async def _serves(self, tasks: Tasks) -> None:
        """Make the previous process stop, and offer the sockets to the next one. A parent process does both for its
        processes."""
        if self._succession.predecessor is not None:
            await self._succession.predecessor.leave()
            self._is_beside_served = False
        elif self._succession.is_served:
            return
        self._on_lead()
        if self._peers is None and (asked := open_offer(self._settings.data_dir)) is not None:
            tasks.start(offer(asked, self.listeners, self._replace), name="handover")

    def told(self, word: bytes) -> None:
        """The parent says LEADS or REPLACED."""
        if word == LEADS:
            self._is_beside_served = False
            self._on_lead()
        elif word == REPLACED:
            self._replace()

    def _waiting(self, metrics: Metrics, exposition: Exposition) -> Waiting:
        """Makes the server that refuses requests while the ledger or Redis is unavailable. Its health routes give the
        reason."""
        listen, sockets = self._settings.listen, self._succession.of("listen")
        of_all = exposition.of_all if self._settings.metrics.port is None else None

        def waiting(reason: str) -> AbstractAsyncContextManager[None]:
            if self._succession.is_served:
                return nullcontext()
            routes = waiting_routes()
            add_probes(routes, not_ready=lambda: reason, exposition=of_all)
            return serving(
                routes, listen.host, listen.port, refused=metrics.refused, reuse_port=self._peers is not None,
                sockets=sockets,
            )  # fmt: skip

        return waiting

    def _folder(self) -> DataFolder:
        """The data folder of this process. Raises JournalInUse."""
        peers = self._peers
        numbers: Sequence[int] = () if peers is None else peers.data_folders
        folder = DataFolder(self._settings.data_dir, None if peers is None else numbers[peers.number])
        if self._succession.is_beside:
            folder = folder.unlocked() if peers is None else folder
            folder.make()
            folder.inherit()
        elif any(is_locked(one.journal) for one in folder.left_behind(numbers)):
            raise JournalInUse(f"another process uses the data folder {folder.root}")
        return folder

    def _replace(self) -> None:
        """Another process serves in place of this one."""
        self._is_replaced = True
        if not self._is_leaving:
            os.kill(os.getpid(), signal.SIGTERM)

    def _use(self, settings: Settings) -> None:
        """Stop as these settings say."""
        self._settings = settings

    def _reload_on_request(self, resources: Resources, tasks: Tasks, stops: AsyncExitStack) -> Reloader:
        number, count = (0, 1) if self._peers is None else (self._peers.number, self._peers.count)
        reloader = Reloader(
            resources.configuration, self._file, resources.metrics, data_dir=self._settings.data_dir, number=number,
            processes=count,
        )  # fmt: skip
        stops.callback(reloader.close)
        resources.configuration.followers.append(lambda settings, _providers: partial(self._use, settings))
        self.reload = lambda: tasks.start(reloader.run(), name="reload")
        self.refuse_reload = reloader.refuse
        return reloader

    async def _listen(
        self,
        stops: AsyncExitStack,
        resources: Resources,
        handlers: Handlers,
        running: RunningExchanges,
        refusals: RecentRefusals,
        state: DeploymentState,
        exposition: Exposition,
        key_reads: KeyReads,
        *,
        is_first: bool,
        keeps_tapes: bool,
    ) -> Callable[[], Listeners]:
        """Serve the console, then clients. All other parts must run. Returns a function that returns the listening
        sockets."""
        settings, peers, accepting, metrics = self._settings, self._peers, self._accepting, resources.metrics
        listen, journal = settings.listen, resources.node.journal
        console = Console(
            settings, resources.store, resources.keyring, resources.admission.store, running, refusals.latest, state,
            handlers.models.names,
        )  # fmt: skip
        stops.push_async_callback(console.close)
        if is_first:
            await console.start(metrics.refused, self._succession.of("admin"))
        self.console_url = console.url

        def not_ready() -> str | None:
            leaving = SHUTTING_DOWN if self._is_leaving and not self._is_replaced else None
            broken = "The journal is broken." if journal.broken else None
            refused = None if resources.queue is None else resources.queue.refusal
            return accepting.reason or leaving or broken or refused

        probes = partial(add_probes, not_ready=not_ready, digest=lambda: resources.configuration.digest)
        monitor = Server(Routes(), refused=metrics.refused)
        stops.push_async_callback(monitor.close)
        if settings.metrics.port is not None and is_first:
            probes(monitor.routes, exposition=exposition.of_all)
            await monitor.start(
                settings.metrics.host, settings.metrics.port, section="metrics", sockets=self._succession.of("metrics")
            )
        routes = client_routes(handlers)
        probes(routes, exposition=exposition.of_all if settings.metrics.port is None else None)
        console.add_public(routes, key_reads)
        cors = None if settings.cors is None else Cors(settings.cors.origins)
        server = Server(routes, refused=metrics.refused, cors=cors, refusals=refusals.local)
        stops.push_async_callback(server.close)
        accepting.reason = None
        self.port = await server.start(
            listen.host, listen.port, reuse_port=peers is not None, sockets=self._succession.of("listen")
        )
        if peers is not None and keeps_tapes:
            await server.listen_at(peers.http_socket)
        beside = (console.leave_to_another, monitor.leave_to_another)
        stops.push_async_callback(self._finish_exchanges, server, beside, handlers)
        stops.callback(EventLoopWatch(metrics.late).stop)
        return lambda: {"listen": server.sockets, "admin": console.sockets, "metrics": monitor.sockets}

    async def _finish_exchanges(
        self, server: Server, beside: Iterable[Callable[[], Awaitable[None]]], handlers: Handlers
    ) -> None:
        """Accept no new connection; after the grace time, end the exchanges that still run."""
        live, sessions = handlers.exchanges.live, handlers.sockets.sessions
        until = time.monotonic() + self._settings.shutdown_grace_s
        for session in list(sessions):
            session.stop()
        if self._is_replaced:
            for leave in (*beside, server.leave_to_another):
                await leave()
            await wait_until(
                lambda: not server.has_connections or self._hurried, deadline_s=self._settings.shutdown_grace_s
            )
            self._accepting.reason = SHUTTING_DOWN
        await server.stop_listening()
        finished = await wait_until(
            lambda: not (live or sessions) or self._hurried, deadline_s=until - time.monotonic()
        )
        if self._hurried or not finished:
            for exchange in list(live):
                exchange.shut_down()
            await wait_until(lambda: not (live or sessions), deadline_s=SHUT_DOWN_S)
        await handlers.background.suspend()


def _metrics(settings: Settings, stops: AsyncExitStack) -> Metrics:
    """The metrics of this process, with the log of exchanges."""
    limits = settings.metrics
    log = ExchangeLog(exchanges=settings.log.exchanges, as_json=settings.log.format is LogFormat.JSON)
    stops.callback(log.close)
    return Metrics(settings.models, keys_max=limits.keys_max, projects_max=limits.projects_max, log=log)


def _tapes(settings: Settings, stops: AsyncExitStack) -> Tapes | None:
    """The kept streams; None: none is kept."""
    resume = settings.resume
    if resume is None:
        return None
    tapes = Tapes(bytes_max=resume.bytes_max, total_bytes_max=resume.total_bytes_max, kept_s=60.0 * resume.minutes)
    stops.callback(tapes.close)
    return tapes


def _join(queue: Queue | None, roster: Roster | None, tasks: Tasks, stops: AsyncExitStack, *, is_first: bool) -> None:
    """Watch the rights in Redis, and keep this process on the list of proxies while it runs."""
    if queue is not None:
        tasks.start(queue.watch_rights(), name="rights")
    if roster is not None:
        tasks.start(roster.run(), name="proxies")
        if is_first:
            stops.push_async_callback(roster.leave)


def _dimensions(resources: Resources, stops: AsyncExitStack) -> RequestDimensions:
    settings, engine = resources.settings, open_engine(ledger_url(resources.settings))
    ids = DimensionIds(
        DimensionValues(engine), resources.metrics.overflowed,
        new_values_max=settings.dimensions.new_values_per_key_hour,
    )  # fmt: skip
    stops.callback(engine.dispose)
    stops.push_async_callback(asyncio.to_thread, ids.close)
    return RequestDimensions(settings.dimensions, ids, resources.store.pepper())


def _follow_prices(
    resources: Resources, tasks: Tasks, reloader: Reloader, upstream: UpstreamClient, folder: DataFolder | None
) -> None:
    """Refresh the prices, if that is set. `folder`: where the list is copied to; None: another process does that."""
    refresh = resources.settings.prices.refresh
    if refresh is not None:
        copy = None if folder is None else path_in(folder.root)
        tasks.start(PriceRefresh(refresh, resources, reloader, upstream, copy).run(), name="prices")


async def _settle_last(settling: Settling, resources: Resources) -> None:
    """Settle the records in the journal, while the last spans are sent."""
    grace_s = resources.configuration.settings.shutdown_grace_s
    await asyncio.gather(settling.close(LAST_SETTLE_S), close_traces(resources.traces, grace_s))


def _roster(settings: Settings, queue: Queue | None) -> Roster | None:
    """The proxies that answer for each other's running exchanges; None: no other machine asks this one."""
    if queue is None or settings.resume is None or settings.resume.address is None:
        return None
    from proxy.delivery.roster import Roster

    return Roster(queue.redis, settings.resume.address, kind="proxies")


def _add_gauges(metrics: Metrics, handlers: Handlers, journal: Journal) -> None:
    metrics.gauges(
        in_flight=lambda: len(handlers.exchanges.live) + len(handlers.background.live),
        websockets=lambda: len(handlers.sockets.sessions),
        depth=lambda: journal.depth,
        oldest_age_s=lambda: journal.oldest_age_s(time.time()),
        unwritten=lambda: journal.unwritten_count,
    )


def _start_work_without_clients(handlers: Handlers, tasks: Tasks, stops: AsyncExitStack) -> None:
    handlers.batches.start(tasks)
    handlers.later_usage.start(tasks)
    stops.push_async_callback(handlers.batches.close)


def _start_maintenance(resources: Resources, tasks: Tasks, *, is_first: bool) -> None:
    settings, metrics, store, in_thread = resources.settings, resources.metrics, resources.store, resources.in_thread
    if resources.queue is None:  # with a queue, the workers do this
        deliveries = Deliveries(store.engine, metrics, tasks, in_thread)
        deliveries.use(settings)
        resources.configuration.followers.append(lambda settings, _providers: deliveries.prepared(settings))
        tasks.start(count_letters(store.engine, metrics, in_thread), name="letters")
        if is_first:
            tasks.start(close_months(settings, store.engine, store.ledger, in_thread), name="periods")
            tasks.start(post_grants(store.grants, in_thread), name="grants")
        if settings.ledger is not None:
            tasks.start(keep_partitions(store.engine, in_thread), name="partitions")
    if is_first:
        _record_prices(resources, tasks)
    start_projects(metrics, store.engine, tasks, in_thread)
    tasks.start(resources.keyring.run(), name="keyring")
    tasks.start(resources.learned.run(), name="estimator")


def _record_prices(resources: Resources, tasks: Tasks) -> None:
    """Record changed prices of the configuration in the audit log, now and after each reload."""

    async def recorded(settings: Settings) -> None:
        try:
            await resources.in_thread(record_changes, settings, resources.store.audit_log)
        except (LedgerUnavailable, OSError) as failure:
            _log.warning("changed prices are not in the audit log yet: %s", failure)

    def record(settings: Settings) -> None:
        tasks.start(recorded(settings), name="configured prices")

    record(resources.configuration.settings)
    resources.configuration.followers.append(lambda settings, _providers: partial(record, settings))


class Exposition:
    """The series of one process and of its peers."""

    def __init__(self, metrics: Metrics, peers: PeerProcesses | None) -> None:
        self._metrics, self._peers = metrics, peers
        self._in_order = asyncio.Lock()

    async def own(self) -> bytes:
        """The series of this process."""
        if self._peers is None:
            return self._metrics.exposition()
        async with self._in_order:
            return await self._peers.own(self._metrics.exposition())

    async def of_all(self) -> bytes:
        """The added series of all processes."""
        own = await self.own()
        return own if self._peers is None else await self._peers.exposition(own)


async def _answer(
    exposition: Exposition,
    running: RunningExchanges,
    refusals: RecentRefusals,
    state: DeploymentState,
    request: str,
) -> bytes:
    """The answer to a peer."""
    if request == REFUSALS:
        return refusals.answer()
    if request == PROVIDERS:
        return state.answer()
    return await (exposition.own() if request == METRICS else running.answer_to(request))
