"""One journal with its progress table, and the task that settles or ships its records.

Invariants: exchanges that a crash left open are closed before anything else; a record is deleted only when the ledger
has it. Without a queue a settler writes to the ledger from here; with one a shipper sends to it, and leases name the
exchanges that run here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from proxy.billing.record import Opened
from proxy.billing.settlement import entry
from proxy.delivery.leases import RENEW_S, LeaseKeeper
from proxy.delivery.local_queue import LocalQueue
from proxy.delivery.observers import SettlerObserver, ShipperObserver
from proxy.delivery.replay import Replayer
from proxy.delivery.shipper import Shipper
from proxy.foundation.outage import OutageLog
from proxy.foundation.tasks import Tasks
from proxy.gateway.outbox import Outbox
from proxy.journal.journal import Journal, Pending
from proxy.journal.progress import ProgressTable
from proxy.journal.recovery import recover
from proxy.journal.replay import COUNT_BITS
from proxy.ledger.settling.settler import Settler
from proxy.ledger.settling.store import LedgerStore
from proxy.metering.estimator.estimate import Estimator
from proxy.runtime.machine.data_folder import DataFolder
from proxy.runtime.proxy.background import Suspended, suspended
from proxy.settings import Settings
from proxy.storage.executor import InThread
from proxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from proxy.runtime.machine.queue import Queue

# A few renewals may be lost before the node counts as dead.
RENEWALS_PER_LEASE = 10

_log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """The exchanges that the last run left open."""

    resumable: list[Suspended]
    settled: list[str]
    """ids of background responses that were settled before their end: their owner must be deleted, so that no key can
    read them"""


class Node:
    """The journal and progress table of one process. Call `recover`, `start`, `close`, and `release` after the tasks
    have ended."""

    def __init__(self, folder: DataFolder, settings: Settings) -> None:
        """Lock the journal. Raises JournalUnavailable, ProgressBroken."""
        with ExitStack() as opened:
            self.journal = opened.enter_context(closing(_open_journal(folder, settings)))
            table = ProgressTable.open(folder.progress, slots=settings.exchanges_max, unix_time=time.time)
            self.table = opened.enter_context(closing(table))
            self._disk = opened.enter_context(ThreadPoolExecutor(1, thread_name_prefix="disk"))
            self._resources = opened.pop_all()
        self.node_id = self.journal.node.node_id
        self._backlog_to = self.journal.node.epoch << COUNT_BITS
        """the last seq of the records of earlier runs, recovered ones included"""
        self._lease_s = settings.lease_s
        self._providers = frozenset(settings.providers)
        self._resumed: list[Opened] = []
        """exchanges of earlier runs that continue"""
        self._folder = folder.journal
        self._keeps_settled = settings.journal.keep_settled_s > 0
        self.on_lost: Callable[[Sequence[Pending]], None] = lambda _: None
        """called with records that the ledger has lost; the owner of this object sets it"""
        self._keeper: LeaseKeeper | None = None
        self._settler: Settler | Shipper | None = None
        self._renewing: asyncio.Task[None] | None = None
        self.outbox = Outbox(self.journal, self.table, self._disk, opened=self._on_opened)

    def recover(self, estimator: Estimator, metrics: Metrics) -> Recovered:
        """Close the exchanges that the last run left open, each exactly once, except those that continue."""
        unfinished = self.journal.unfinished()
        resumable = suspended(unfinished, self.table, self._providers)
        cut_off = [
            opened for opened in unfinished if opened.slot not in resumable or resumable[opened.slot][0] is not opened
        ]
        records = recover(cut_off, self.table, estimator)
        unwritten = [record for record in records if not self.journal.finish(record)]
        self._backlog_to += len(records)
        # On a full disk, a second crash needs their progress again.
        kept = self.table.clear({record.opened.slot for record in unwritten} | resumable.keys())
        self.outbox.keep(slot for slot in kept if slot.index not in resumable)
        self._resumed = [opened for opened, _ in resumable.values()]
        for damage in self.journal.damage:
            _log.error("journal damaged: %s", damage)
        if records:
            _log.warning("recovered %d exchanges that a crash interrupted", len(records))
        metrics.recovered(self.journal.depth)
        metrics.ledger.journal_damage.inc(len(self.journal.damage))
        return Recovered(
            [Suspended(*resumable[slot.index], slot) for slot in kept if slot.index in resumable],
            [opened.background.response_id for opened in cut_off if opened.background is not UNSET],
        )

    def start(
        self, tasks: Tasks, store: LedgerStore, queue: Queue | None, metrics: Metrics, in_thread: InThread
    ) -> None:
        """Start to settle or ship records."""
        if queue is None:
            self._settler = Settler(LocalQueue(self.journal), store, to_entry=entry, observer=SettlerObserver(metrics))
        else:
            self._keeper = LeaseKeeper(
                queue.leases, self.table, node=self.node_id, epoch=self.journal.node.epoch,
                caught_up=self._caught_up, observer=OutageLog("renewing leases", metrics.ledger.outages.inc),
                renew_s=min(RENEW_S, self._lease_s / RENEWALS_PER_LEASE), resumed=self._resumed,
            )  # fmt: skip
            self._renewing = tasks.start(self._keeper.run(), name="leases")
            self._settler = Shipper(
                self.journal, queue.outgoing, store, node=self.node_id, observer=ShipperObserver(metrics),
                monotonic=time.monotonic, in_thread=in_thread, on_sent=self._on_sent,
            )  # fmt: skip
        tasks.start(self._settler.run(), name="settler")
        if self._keeps_settled:
            tasks.start(self._replayer(store, metrics, in_thread).run(), name="replay")
        tasks.start(self.outbox.keep_durable(), name="outbox")

    async def close(self, deadline_s: float) -> bool:
        """Settle or ship the remaining records. False if `deadline_s` was too short: the next start continues."""
        assert self._settler is not None
        arrived = await self._settler.close(deadline_s)
        if self._keeper is not None and self._renewing is not None:
            self._renewing.cancel()
            await self._keeper.leave()
        return arrived

    def release(self) -> None:
        """Unlock the journal for the next process."""
        self._resources.close()

    def _replayer(self, store: LedgerStore, metrics: Metrics, in_thread: InThread) -> Replayer:
        def revived(lost: Sequence[Pending], seqs: Sequence[int]) -> None:
            self.on_lost(lost)
            if isinstance(self._settler, Shipper):
                self._settler.send_again(seqs)
            metrics.ledger.journal_replayed.inc(len(seqs))

        return Replayer(
            self._folder, self.journal, store, observer=OutageLog("looking for records that the ledger has lost"),
            in_thread=in_thread, revived=revived,
        )  # fmt: skip

    def _caught_up(self) -> bool:
        """True if no record of an earlier run is pending."""
        return all(record.seq > self._backlog_to for record in self.journal.pending(1))

    def _on_opened(self, opened: Opened) -> None:
        if self._keeper is not None:
            self._keeper.opened(opened)

    def _on_sent(self, exchanges: Mapping[int, str | None]) -> None:
        assert self._keeper is not None
        for exchange_id in exchanges.values():
            if exchange_id is not None:
                self._keeper.ended(exchange_id)


def _open_journal(folder: DataFolder, settings: Settings) -> Journal:
    journal = settings.journal
    return Journal.open(
        folder.journal,
        bytes_max=journal.bytes_max,
        durability=journal.durability.value,
        keep_settled_s=journal.keep_settled_s,
    )
