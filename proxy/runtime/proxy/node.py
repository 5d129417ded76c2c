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
from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET

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
from proxy.runtime.proxy.background import Recovered, Suspended, suspended
from proxy.settings import Settings
from proxy.storage.executor import InThread
from proxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from proxy.runtime.machine.queue import Queue

# A few renewals may be lost before the node counts as dead.
RENEWALS_PER_LEASE = 10

_log = logging.getLogger(__name__)


class Node:
    """The journal and progress table of one process. Call `recover`, and `release` after its `Settling` has ended."""

    def __init__(self, folder: DataFolder, settings: Settings) -> None:
        """Lock the journal. Raises JournalUnavailable, ProgressBroken."""
        with ExitStack() as opened:
            self.journal = opened.enter_context(closing(_open_journal(folder, settings)))
            table = ProgressTable.open(folder.progress, slots=settings.exchanges_max, unix_time=time.time)
            self.table = opened.enter_context(closing(table))
            self.disk = opened.enter_context(ThreadPoolExecutor(1, thread_name_prefix="disk"))
            self._resources = opened.pop_all()
        self.node_id = self.journal.node.node_id
        self.folder, self.settings = folder, settings

    def recover(self, estimator: Estimator, metrics: Metrics) -> Recovered:
        """Close the exchanges that the last run left open, each exactly once, except those that continue."""
        unfinished = self.journal.unfinished()
        resumable = suspended(unfinished, self.table, self.settings.providers)
        cut_off = [
            opened for opened in unfinished if opened.slot not in resumable or resumable[opened.slot][0] is not opened
        ]
        records = recover(cut_off, self.table, estimator)
        unwritten = [record for record in records if not self.journal.finish(record)]
        # On a full disk, a second crash needs their progress again.
        kept = self.table.clear({record.opened.slot for record in unwritten} | resumable.keys())
        for damage in self.journal.damage:
            _log.error("journal damaged: %s", damage)
        if records:
            _log.warning("recovered %d exchanges that a crash interrupted", len(records))
        metrics.recovered(self.journal.depth)
        metrics.ledger.journal_damage.inc(len(self.journal.damage))
        return Recovered(
            resumable=[Suspended(*resumable[slot.index], slot) for slot in kept if slot.index in resumable],
            settled=[opened.background.response_id for opened in cut_off if opened.background is not UNSET],
            unwritten=[slot for slot in kept if slot.index not in resumable],
            backlog_to=(self.journal.node.epoch << COUNT_BITS) + len(records),
        )

    def release(self) -> None:
        """Unlock the journal for the next process."""
        self._resources.close()


class Settling:
    """The outbox of a recovered journal, and the tasks that settle or ship its records. `start` it, then `close` it."""

    def __init__(
        self,
        node: Node,
        recovered: Recovered,
        *,
        queue: Queue | None,
        ledger: LedgerStore,
        in_thread: InThread,
        metrics: Metrics,
        on_lost: Callable[[Sequence[Pending]], None],
    ) -> None:
        """`on_lost`: called with records that the ledger has lost."""
        journal, settings = node.journal, node.settings
        self._renewing: asyncio.Task[None] | None = None
        self._keeper: LeaseKeeper | None = None
        self._settler: Settler | Shipper
        if queue is None:
            self._settler = Settler(LocalQueue(journal), ledger, to_entry=entry, observer=SettlerObserver(metrics))
        else:
            self._keeper = keeper = LeaseKeeper(
                queue.leases, node.table, node=node.node_id, epoch=journal.node.epoch,
                caught_up=partial(_caught_up, journal, recovered.backlog_to),
                observer=OutageLog("renewing leases", metrics.ledger.outages.inc),
                renew_s=min(RENEW_S, settings.lease_s / RENEWALS_PER_LEASE),
                resumed=[one.opened for one in recovered.resumable],
            )  # fmt: skip
            self._settler = Shipper(
                journal, queue.outgoing, ledger, node=node.node_id, observer=ShipperObserver(metrics),
                monotonic=time.monotonic, in_thread=in_thread, on_sent=partial(_end_leases, keeper),
            )  # fmt: skip
        self.outbox = Outbox(
            journal, node.table, node.disk,
            opened=None if self._keeper is None else self._keeper.opened, unwritten=recovered.unwritten,
        )  # fmt: skip

        def revived(lost: Sequence[Pending], seqs: Sequence[int]) -> None:
            on_lost(lost)
            if isinstance(self._settler, Shipper):
                self._settler.send_again(seqs)
            metrics.ledger.journal_replayed.inc(len(seqs))

        self._replayer = None
        if settings.journal.keep_settled_s > 0:
            self._replayer = Replayer(
                node.folder.journal, journal, ledger, in_thread=in_thread, revived=revived,
                observer=OutageLog("looking for records that the ledger has lost"),
            )  # fmt: skip

    def start(self, tasks: Tasks) -> None:
        """Start to settle or ship records."""
        if self._keeper is not None:
            self._renewing = tasks.start(self._keeper.run(), name="leases")
        tasks.start(self._settler.run(), name="settler")
        if self._replayer is not None:
            tasks.start(self._replayer.run(), name="replay")
        tasks.start(self.outbox.keep_durable(), name="outbox")

    async def close(self, deadline_s: float) -> bool:
        """Settle or ship the remaining records. False if `deadline_s` was too short: the next start continues."""
        arrived = await self._settler.close(deadline_s)
        if self._keeper is not None and self._renewing is not None:
            self._renewing.cancel()
            await self._keeper.leave()
        return arrived


def _caught_up(journal: Journal, backlog_to: int) -> bool:
    """True if no record of an earlier run is pending."""
    return all(record.seq > backlog_to for record in journal.pending(1))


def _end_leases(keeper: LeaseKeeper, exchanges: Mapping[int, str | None]) -> None:
    for exchange_id in exchanges.values():
        if exchange_id is not None:
            keeper.ended(exchange_id)


def _open_journal(folder: DataFolder, settings: Settings) -> Journal:
    journal = settings.journal
    return Journal.open(
        folder.journal,
        bytes_max=journal.bytes_max,
        durability=journal.durability.value,
        keep_settled_s=journal.keep_settled_s,
    )
