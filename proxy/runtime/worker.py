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
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from msgspec import UNSET

from proxy.billing.record import UsageRecord
from proxy.billing.settlement import entry
from proxy.budgets.open_budgets import open_budgets
from proxy.budgets.store import BudgetStore
from proxy.delivery.observers import SettlerObserver, SweeperObserver
from proxy.delivery.roster import WorkerRoster
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
from proxy.runtime.machine.ledger_stores import LedgerStores, keep_partitions, open_ledger, post_grants
from proxy.runtime.machine.queue import open_queue
from proxy.runtime.machine.unsettled import close_months
from proxy.runtime.proxy.admission import LedgerFollowing
from proxy.settings import Settings
from proxy.sinks.deliveries import Deliveries
from proxy.storage.executor import InThread
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
        self.port = 0
        self.reload: Callable[[], object] | None = None
        self.refuse_reload: Callable[[], object] | None = None
        self._settings = settings
        self._stops = AsyncExitStack()

    async def start(self) -> None:
        """Start to settle. Raises QueueUnsuitable, LedgerUnavailable, OSError."""
        async with AsyncExitStack() as stops:
            await self._start(stops)
            self._stops = stops.pop_all()

    async def stop(self) -> None:
        """Finish the current batches."""
        await self._stops.aclose()

    def hurry(self) -> None:
        """No-op: a worker's batches finish within milliseconds."""

    async def _start(self, stops: AsyncExitStack) -> None:
        """Start the parts in their order; each registers its stop before anything can fail."""
        settings, limits, listen = self._settings, self._settings.metrics, self._settings.worker
        metrics = Metrics(settings.models, keys_max=limits.keys_max, projects_max=limits.projects_max)

        def waiting(reason: str) -> AbstractAsyncContextManager[None]:
            return serving(_routes(metrics, lambda: reason), listen.host, listen.port, refused=metrics.refused)

        queue = await stops.enter_async_context(open_queue(settings, waiting))
        store, in_thread = await stops.enter_async_context(open_ledger(settings, waiting))
        budgets = open_budgets(settings, f"worker-{os.getpid()}")
        stops.push_async_callback(budgets.aclose)
        server = Server(_routes(metrics, lambda: queue.refusal), refused=metrics.refused)
        stops.push_async_callback(server.close)
        self.port = await server.start(listen.host, listen.port, section="worker")
        stops.push_async_callback(server.stop_listening)
        tasks = Tasks()
        stops.push_async_callback(tasks.stop)

        await in_thread(add_clocks, store.engine, len(queue.shards))
        stores = [store.ledger.of_shard(one.shard) for one in queue.shards]
        settlers = [
            Settler(
                lane, stores[lane.shard], to_entry=entry, observer=SettlerObserver(metrics),
                batch_records_max=BATCH_RECORDS_MAX,
                extend_claim_s=min(EXTEND_CLAIM_S, settings.lease_s / CLAIM_EXTENSIONS_PER_LEASE),
            )
            for lane in queue.lanes
        ]  # fmt: skip
        tasks.start(queue.watch_rights(), name="rights")
        tasks.start(queue.roster.run(), name="roster")
        for number, settler in enumerate(settlers):
            tasks.start(settler.run(), name=f"settler-{number}")
        stops.push_async_callback(_finish, queue.roster, settlers)

        engine = store.engine
        low_nusd = settings.alerts.balance_low_nusd
        LedgerFollowing(budgets, engine, metrics, in_thread, low_nusd=low_nusd).start(tasks)
        responses = RedisClaims(queue.redis, retention_s=settings.idempotency.retention_s)
        dead = DeadNodes(store, in_thread, responses, budgets, metrics)
        sweeper = Sweeper(
            queue.leases, dead.settle, Estimator(),
            lease_s=settings.lease_s, monotonic=time.monotonic, observer=SweeperObserver(metrics), release=dead.release,
        )  # fmt: skip
        tasks.start(sweeper.run(), name="sweeper")
        tasks.start(close_months(settings, engine, store.ledger, in_thread), name="periods")
        tasks.start(keep_partitions(engine, in_thread), name="partitions")
        tasks.start(post_grants(store.grants, in_thread), name="grants")
        tasks.start(check_integrity(settings, engine, metrics, in_thread), name="integrity")
        Deliveries(engine, metrics, tasks, in_thread).use(settings)
        start_projects(metrics, engine, tasks, in_thread)
        tasks.start(count_letters(engine, metrics, in_thread), name="letters")
        stops.callback(EventLoopWatch(metrics.late).stop)


@dataclass(frozen=True, slots=True)
class DeadNodes:
    """Settles exchanges of dead proxies, and releases their reservations."""

    store: LedgerStores
    in_thread: InThread
    responses: OwnerStore
    budgets: BudgetStore
    metrics: Metrics

    async def settle(self, records: Sequence[UsageRecord]) -> None:
        """Settle records of a sweeper. The owner of a background response is deleted first, because its record is
        settled before the response has ended."""
        for record in records:
            if record.opened.background is not UNSET:
                await self.responses.forget(name_of(record.opened.background.response_id))
        arrivals = [Arrival(entry(record)) for record in records]
        began = time.perf_counter()
        settled = await self.in_thread(self.store.ledger.settle, arrivals)
        SettlerObserver(self.metrics).committed(settled, unreadable=0, duration_s=time.perf_counter() - began)

    async def release(self, node: str, spared: Collection[str]) -> None:
        """Release the reservations of a node, except those of `spared` exchanges and of its batches, which continue
        without it."""
        batches = await self.in_thread(self.store.batches.of_node, node)
        spared = {*spared, *(batch.exchange_id for batch in batches)}
        self.metrics.budgets.expired.inc(await self.budgets.abandon(node, spared))


async def _finish(roster: WorkerRoster, settlers: Sequence[Settler]) -> None:
    await roster.leave()
    await asyncio.gather(*(settler.close(LAST_SETTLE_S) for settler in settlers))


def _routes(metrics: Metrics, not_ready: Callable[[], str | None]) -> Routes:
    async def exposition() -> bytes:
        return metrics.exposition()

    routes = Routes()
    add_probes(routes, not_ready=not_ready, exposition=exposition)
    return routes
