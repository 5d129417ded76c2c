"""One worker process: takes what proxies queued, settles it, sweeps what dead proxies left, and looks after the ledger.

Law: any number of workers do the same work at once, and nothing is done twice. Stop: finish the batch in hand, no more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Collection, Sequence

from proxy.billing.record import UsageRecord
from proxy.billing.settlement import entry
from proxy.delivery.observers import SettlerObserver, SweeperObserver
from proxy.delivery.sweeper import Sweeper
from proxy.foundation.tasks import Tasks
from proxy.http.server import Routes, Server
from proxy.ledger.schema.partitions import make_partitions
from proxy.ledger.settling.settler import HOLD_S, Settler
from proxy.ledger.settling.store import Arrival
from proxy.metering.estimator.estimate import Estimator
from proxy.runtime.machine.budgets import open_budgets
from proxy.runtime.machine.command_store import LEDGER_THREADS, CommandStore
from proxy.runtime.machine.integrity_check import check_integrity, count_letters
from proxy.runtime.machine.probes import add_probes
from proxy.runtime.machine.projects import start_projects
from proxy.runtime.machine.queue import Queue
from proxy.runtime.proxy.admission import LedgerFollowing
from proxy.settings import Settings
from proxy.sinks.observers import start_sinks
from proxy.storage.database import LedgerUnavailable
from proxy.storage.executor import BoundedExecutor
from proxy.telemetry.metrics import Metrics

# A transaction costs as much as dozens of rows, and here nobody's stream waits for the event loop.
BATCH_RECORDS_MAX = 1_000
# A few of them may be lost before another worker takes a batch over.
HOLDS_PER_LEASE = 6
# A batch takes milliseconds; if the ledger is away, the next worker takes what this one lets go.
LAST_SETTLE_S = 10.0
# Partitions are made months ahead: a failed day is no harm.
PARTITIONS_S = 86_400.0

_log = logging.getLogger(__name__)


class Worker:
    """`start`, then `stop`; nothing runs before or after."""

    def __init__(self, settings: Settings) -> None:
        assert settings.queue is not None
        self.settings = settings
        self.port = 0
        self._tasks = Tasks()
        self._ledger = BoundedExecutor(LEDGER_THREADS, name="ledger")

    async def start(self) -> None:
        """Settle from now on. Raises QueueUnsuitable, LedgerUnavailable, OSError."""
        self._queue = Queue(self.settings)
        await self._queue.check()
        self._store = await self._ledger.run(CommandStore.open, self.settings)
        self._engine = self._store.engine
        shown = self.settings.metrics
        self._metrics = Metrics(self.settings.models, keys_max=shown.keys_max, projects_max=shown.projects_max)
        self._settlers = [
            Settler(
                lane, self._store.ledger, to_entry=entry, observer=SettlerObserver(self._metrics),
                batch_records_max=BATCH_RECORDS_MAX, hold_s=min(HOLD_S, self.settings.lease_s / HOLDS_PER_LEASE),
            )
            for lane in self._queue.lanes
        ]  # fmt: skip
        self._budgets = open_budgets(self.settings, f"worker-{os.getpid()}")
        LedgerFollowing(self.settings, self._budgets, self._engine, self._metrics, self._ledger.run).start(self._tasks)
        for number, settler in enumerate(self._settlers):
            self._tasks.start(settler.run(), name=f"settler-{number}")
        sweeper = Sweeper(
            self._queue.leases, self._settle_swept, Estimator(),
            lease_s=self.settings.lease_s, monotonic=time.monotonic, observer=SweeperObserver(self._metrics),
            release=self._release,
        )  # fmt: skip
        self._tasks.start(sweeper.run(), name="sweeper")
        self._tasks.start(self._keep_partitions(), name="partitions")
        self._tasks.start(check_integrity(self.settings, self._engine, self._metrics, self._ledger.run), name="audit")
        start_sinks(self.settings, self._engine, self._metrics.sinks, self._tasks, self._ledger.run)
        start_projects(self._metrics, self._engine, self._tasks, self._ledger.run)
        self._tasks.start(count_letters(self._engine, self._metrics, self._ledger.run), name="letters")
        self._server = Server(self._routes(), refused=self._metrics.refused)
        self.port = await self._server.start(self.settings.worker.host, self.settings.worker.port)

    async def stop(self) -> None:
        """Finish the batch in hand."""
        await asyncio.gather(*(settler.close(LAST_SETTLE_S) for settler in self._settlers))
        await self._tasks.stop()
        await self._server.stop_listening()
        await self._server.close()
        await self._budgets.aclose()
        await self._queue.close()
        await asyncio.to_thread(self._ledger.close)
        self._store.close()

    async def _settle_swept(self, records: Sequence[UsageRecord]) -> None:
        arrivals = [Arrival(entry(record)) for record in records]
        began = time.perf_counter()
        settled = await self._ledger.run(self._store.ledger.settle, arrivals)
        SettlerObserver(self._metrics).committed(settled, unreadable=0, duration_s=time.perf_counter() - began)

    async def _release(self, node: str, spared: Collection[str]) -> None:
        self._metrics.budgets.expired.inc(await self._budgets.abandon(node, spared))

    async def _keep_partitions(self) -> None:
        while True:
            try:
                await self._ledger.run(make_partitions, self._engine, time.time())
            except LedgerUnavailable as error:
                _log.warning("partitions cannot be made ahead now, tomorrow again: %s", error)
            await asyncio.sleep(PARTITIONS_S)

    def _routes(self) -> Routes:
        routes = Routes()
        add_probes(routes, not_ready=lambda: None, exposition=self._exposition)
        return routes

    async def _exposition(self) -> bytes:
        return self._metrics.exposition()
