"""One worker process: settles the records in the queue and the exchanges of dead proxies, and maintains the ledger.

Invariants: any number of workers run at once, and no work is done twice. Of each shard of the queue, one worker takes
the records, and settles them in the ledger's shard of equal number. The parts start in one order and stop in the
reverse; a start that fails or is cancelled stops the parts that had started. A graceful stop finishes the current
batches.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from msgspec import UNSET

from proxy.billing.record import UsageRecord
from proxy.billing.settlement import entry
from proxy.budgets.open_budgets import open_budgets
from proxy.delivery.observers import SettlerObserver, SweeperObserver
from proxy.delivery.sweeper import Sweeper
from proxy.foundation.tasks import Tasks
from proxy.http.probes import add_probes
from proxy.http.server import Routes, Server, serving
from proxy.keys.claims_redis import RedisClaims
from proxy.keys.response_owners import OwnerStore, name_of
from proxy.ledger.settling.clock import add_clocks
from proxy.ledger.settling.settler import EXTEND_CLAIM_S, Settler
from proxy.ledger.settling.store import Arrival
from proxy.metering.estimator.estimate import Estimator
from proxy.runtime.machine.integrity_check import check_integrity, count_letters
from proxy.runtime.machine.ledger_stores import keep_partitions, open_ledger
from proxy.runtime.machine.queue import open_queue
from proxy.runtime.machine.unsettled import close_months
from proxy.runtime.proxy.admission import LedgerFollowing
from proxy.settings import Settings
from proxy.sinks.sender import start_sinks
from proxy.telemetry.event_loop import EventLoopWatch
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.project_lookup import start_projects

# A transaction costs as much as dozens of rows, and a worker has no streams that wait for its event loop.
BATCH_RECORDS_MAX = 1_000
# A few of them may be lost before another worker claims a batch.
CLAIM_EXTENSIONS_PER_LEASE = 6
# A batch takes milliseconds; if the ledger is away, another worker claims the batch later.
LAST_SETTLE_S = 10.0


class Worker:
    """`start` it, then `stop` it."""

    def __init__(self, settings: Settings) -> None:
        assert settings.queue is not None
        self.settings = settings
        self.port = 0
        limits = settings.metrics
        self._metrics = Metrics(settings.models, keys_max=limits.keys_max, projects_max=limits.projects_max)
        self._started = AsyncExitStack()

    async def start(self) -> None:
        """Start to settle. Raises QueueUnsuitable, LedgerUnavailable, OSError."""
        async with AsyncExitStack() as started:
            self._queue = await started.enter_async_context(open_queue(self.settings))
            ledger = open_ledger(self.settings, self._waiting)
            self._store, self._in_thread = await started.enter_async_context(ledger)
            self._budgets = open_budgets(self.settings, f"worker-{os.getpid()}")
            started.push_async_callback(self._budgets.aclose)
            server = Server(self._routes(), refused=self._metrics.refused)
            started.push_async_callback(server.close)
            self.port = await server.start(self.settings.worker.host, self.settings.worker.port)
            started.push_async_callback(server.stop_listening)
            tasks = Tasks()
            started.push_async_callback(tasks.stop)
            await self._start_settlers(tasks, started)
            self._start_maintenance(tasks)
            started.callback(EventLoopWatch(self._metrics.late).stop)
            self._started = started.pop_all()

    async def stop(self) -> None:
        """Finish the current batches."""
        await self._started.aclose()

    def hurry(self) -> None:
        """No-op: a worker's batches finish within milliseconds."""

    async def _start_settlers(self, tasks: Tasks, started: AsyncExitStack) -> None:
        shards = self._queue.shards
        await self._in_thread(add_clocks, self._store.engine, len(shards))
        stores = [self._store.ledger.of_shard(one.shard) for one in shards]
        settlers = [
            Settler(
                lane, stores[lane.shard], to_entry=entry, observer=SettlerObserver(self._metrics),
                batch_records_max=BATCH_RECORDS_MAX,
                extend_claim_s=min(EXTEND_CLAIM_S, self.settings.lease_s / CLAIM_EXTENSIONS_PER_LEASE),
            )
            for lane in self._queue.lanes
        ]  # fmt: skip
        tasks.start(self._queue.roster.run(), name="roster")
        for number, settler in enumerate(settlers):
            tasks.start(settler.run(), name=f"settler-{number}")

        async def finish() -> None:
            await self._queue.roster.leave()
            await asyncio.gather(*(settler.close(LAST_SETTLE_S) for settler in settlers))

        started.push_async_callback(finish)

    def _start_maintenance(self, tasks: Tasks) -> None:
        settings, engine, metrics, in_thread = self.settings, self._store.engine, self._metrics, self._in_thread
        self._responses: OwnerStore = RedisClaims(self._queue.redis, retention_s=settings.idempotency.retention_s)
        LedgerFollowing(settings, self._budgets, engine, metrics, in_thread).start(tasks)
        sweeper = Sweeper(
            self._queue.leases, self._settle_swept, Estimator(),
            lease_s=settings.lease_s, monotonic=time.monotonic, observer=SweeperObserver(metrics),
            release=self._release,
        )  # fmt: skip
        tasks.start(sweeper.run(), name="sweeper")
        tasks.start(close_months(settings, engine, self._store.ledger, in_thread), name="periods")
        tasks.start(keep_partitions(engine, in_thread), name="partitions")
        tasks.start(check_integrity(settings, engine, metrics, in_thread), name="integrity")
        start_sinks(settings, engine, metrics.sinks, tasks, in_thread)
        start_projects(metrics, engine, tasks, in_thread)
        tasks.start(count_letters(engine, metrics, in_thread), name="letters")

    async def _settle_swept(self, records: Sequence[UsageRecord]) -> None:
        """Settle records of a sweeper. The owner of a background response is deleted first, because its record is
        settled before the response has ended."""
        for record in records:
            if record.opened.background is not UNSET:
                await self._responses.forget(name_of(record.opened.background.response_id))
        arrivals = [Arrival(entry(record)) for record in records]
        began = time.perf_counter()
        settled = await self._in_thread(self._store.ledger.settle, arrivals)
        SettlerObserver(self._metrics).committed(settled, unreadable=0, duration_s=time.perf_counter() - began)

    async def _release(self, node: str, spared: Collection[str]) -> None:
        batches = await self._in_thread(self._store.batches.of_node, node)  # they continue without their node
        spared = {*spared, *(batch.exchange_id for batch in batches)}
        self._metrics.budgets.expired.inc(await self._budgets.abandon(node, spared))

    def _waiting(self, reason: str) -> AbstractAsyncContextManager[None]:
        listen = self.settings.worker
        return serving(self._routes(reason), listen.host, listen.port, refused=self._metrics.refused)

    def _routes(self, not_ready: str | None = None) -> Routes:
        routes = Routes()
        add_probes(routes, not_ready=lambda: not_ready, exposition=self._exposition)
        return routes

    async def _exposition(self) -> bytes:
        return self._metrics.exposition()
