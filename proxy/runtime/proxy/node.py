"""One journal with its progress table, and what carries its records to the ledger.

Law: what a crash left open is closed before anything else; what is carried is forgotten only when the ledger has it.
Embedded, a settler writes to the ledger from here; with a queue, a shipper sends to it, and leases say what runs here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from proxy.billing.record import Opened
from proxy.billing.settlement import entry
from proxy.delivery.leases import RENEW_S, LeaseKeeper
from proxy.delivery.local_queue import LocalQueue
from proxy.delivery.observers import SettlerObserver, ShipperObserver
from proxy.delivery.shipper import Shipper
from proxy.foundation.outage import OutageLog
from proxy.foundation.tasks import Tasks
from proxy.journal.frames import decode_envelope
from proxy.journal.journal import Journal, Pending
from proxy.journal.progress import ProgressTable
from proxy.journal.recovery import recover
from proxy.journal.replay import COUNT_BITS
from proxy.ledger.settling.settler import Settler
from proxy.ledger.settling.store import LedgerStore
from proxy.metering.estimator.estimate import VERSION, Estimator
from proxy.runtime.machine.data_folder import DataFolder
from proxy.runtime.machine.queue import Queue
from proxy.runtime.proxy.outbox import LocalOutbox
from proxy.settings import Settings
from proxy.storage.executor import InThread
from proxy.telemetry.metrics import Metrics

# A few renewals may be lost before anybody takes the node for dead.
RENEWALS_PER_LEASE = 10

_log = logging.getLogger(__name__)


class Carrier(Protocol):
    """Brings records to the ledger, or to the queue before it."""

    async def run(self) -> None: ...
    async def close(self, deadline_s: float) -> bool: ...


class Node:
    """`open` it, `start` it, `close` it."""

    def __init__(self, folder: DataFolder, settings: Settings) -> None:
        """Take the journal over. Raises JournalUnavailable, ProgressBroken."""
        self.journal = Journal.open(
            folder.journal, bytes_max=settings.journal.bytes_max, durability=settings.journal.durability.value
        )
        self.table = ProgressTable.open(folder.progress, slots=settings.exchanges_max, unix_time=time.time)
        self._backlog_to = self.journal.node.epoch << COUNT_BITS
        """the last seq of what earlier runs left, recovered records included"""
        self._lease_s = settings.lease_s
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._keeper: LeaseKeeper | None = None
        self._carrier: Carrier | None = None
        self._renewing: asyncio.Task[None] | None = None
        self.outbox = LocalOutbox(self.journal, self.table, self._disk, opened=self._opened)

    def recover(self, estimator: Estimator) -> int:
        """Close what the last run left open, each exactly once; how many that were."""
        records = recover(self.journal.unfinished(), self.table, estimator, estimator_version=VERSION)
        for record in records:
            self.journal.finish(record)
        self._backlog_to += len(records)
        self.table.clear()
        for damage in self.journal.damage:
            _log.error("journal damaged: %s", damage)
        if records:
            _log.warning("recovered %d exchanges that a crash had cut off", len(records))
        return len(records)

    def start(
        self, tasks: Tasks, store: LedgerStore, queue: Queue | None, metrics: Metrics, in_thread: InThread
    ) -> None:
        """Carry from now on."""
        name = self.journal.node.node_id
        if queue is None:
            source = LocalQueue(self.journal)
            self.journal.wakeup = source.wake
            self._carrier = Settler(source, store, to_entry=entry, observer=SettlerObserver(metrics))
        else:
            self._keeper = LeaseKeeper(
                queue.leases, self.table, node=name, epoch=self.journal.node.epoch,
                caught_up=self._caught_up, observer=OutageLog("leases", metrics.ledger.outages.inc),
                renew_s=min(RENEW_S, self._lease_s / RENEWALS_PER_LEASE),
            )  # fmt: skip
            self._renewing = tasks.start(self._keeper.run(), name="leases")
            self._carrier = shipper = Shipper(
                self.journal, queue.outgoing, store, node=name, observer=ShipperObserver(metrics),
                monotonic=time.monotonic, in_thread=in_thread, on_sent=self._sent,
            )  # fmt: skip
            self.journal.wakeup = shipper.wake
        tasks.start(self._carrier.run(), name="carrier")
        tasks.start(self.outbox.keep_durable(), name="outbox")

    async def close(self, deadline_s: float) -> bool:
        """Carry what is left, within `deadline_s`; True if all of it arrived. What did not waits for the next start."""
        assert self._carrier is not None
        arrived = await self._carrier.close(deadline_s)
        if self._keeper is not None and self._renewing is not None:
            self._renewing.cancel()
            await self._keeper.leave()
        return arrived

    def release(self) -> None:
        """Give the journal to the next process; after the tasks have ended."""
        self.journal.close()
        self.table.close()
        self._disk.shutdown()

    def _caught_up(self) -> bool:
        """Nothing is left of the runs before this one."""
        return all(one.seq > self._backlog_to for one in self.journal.pending(1))

    def _opened(self, opened: Opened) -> None:
        if self._keeper is not None:
            self._keeper.opened(opened)

    def _sent(self, records: Sequence[Pending]) -> None:
        assert self._keeper is not None
        for record in records:
            self._keeper.ended(decode_envelope(record.payload).opened.exchange_id)
