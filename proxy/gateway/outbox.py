"""The outbox of exchanges: journal and progress table of this machine.

Invariant: a slot of the progress table is released only when its exchange's record is in the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from proxy.billing.record import Opened, UsageRecord
from proxy.journal.journal import Journal
from proxy.journal.log import JournalUnavailable
from proxy.journal.progress import ProgressFull, ProgressTable, Slot

# A power cut loses at most the writes of this time, unless `durability: power` waits for the disk.
SYNC_S = 0.1

_log = logging.getLogger(__name__)


class OutboxFullError(Exception):
    """No exchange can be opened: the disk or the progress table is full, or the journal is broken."""


class Outbox:
    """Opens exchanges, and writes their records. Each call is synchronous and takes a few microseconds."""

    def __init__(
        self,
        journal: Journal,
        table: ProgressTable,
        disk: Executor,
        *,
        opened: Callable[[Opened], None] | None = None,
        unwritten: Iterable[Slot] = (),
    ) -> None:
        """`disk`: a thread for calls that block on the disk. `opened` is called when an exchange begins, and again when
        it continues with another provider. `unwritten`: slots whose records wait in the journal."""
        self._opened = opened
        self._journal = journal
        self._table = table
        self._disk = disk
        self._unwritten = list(unwritten)
        """slots whose records the disk has refused so far"""
        self._waiting: list[asyncio.Future[None]] = []
        self._sync_wanted = asyncio.Event()
        self._awaits_disk = journal.durability == "power"

    def claim(self, exchange_id: str) -> Slot:
        """A slot of the progress table. Raises OutboxFullError."""
        try:
            return self._table.claim(exchange_id)
        except ProgressFull as full:
            raise OutboxFullError("Too many exchanges are running.") from full

    def begin(self, opened: Opened) -> asyncio.Future[None] | None:
        """Record the exchange as opened. A returned future must be awaited before the first response byte; None: it is
        durable. Raises OutboxFullError."""
        return self._write(self._journal.begin, opened)

    def reassign(self, opened: Opened) -> asyncio.Future[None] | None:
        """Replace an opened exchange that fails over to another provider. Returns as `begin` does. Raises
        OutboxFullError: the exchange is unchanged."""
        return self._write(self._journal.reassign, opened)

    def _write(self, write: Callable[[Opened], None], opened: Opened) -> asyncio.Future[None] | None:
        try:
            write(opened)
        except JournalUnavailable as unavailable:
            raise OutboxFullError("The journal takes no new exchanges now.") from unavailable
        if self._opened is not None:
            self._opened(opened)
        if not self._awaits_disk:
            return None
        durable = asyncio.get_running_loop().create_future()
        self._waiting.append(durable)
        self._sync_wanted.set()
        return durable

    def finish(self, record: UsageRecord, slot: Slot) -> None:
        """Write the record of an ended exchange, once, and release the slot as soon as it is written. Never raises for
        the disk: a refused write is retried."""
        if self._journal.finish(record):
            slot.release()
        else:
            self._unwritten.append(slot)

    async def keep_durable(self) -> None:
        """Sync the journal every SYNC_S, and retry refused writes; ends by being cancelled."""
        while True:
            try:
                async with asyncio.timeout(SYNC_S):
                    await self._sync_wanted.wait()
            except TimeoutError:
                pass
            self._sync_wanted.clear()
            if self._unwritten and self._journal.retry():
                written, self._unwritten = self._unwritten, []
                for slot in written:
                    slot.release()
            if self._journal.dirty:
                await self._sync()

    async def _sync(self) -> None:
        waiting, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._disk, self._journal.sync)
        except JournalUnavailable as failure:
            # The client comes first: its stream continues; new exchanges are refused while the journal is broken.
            _log.error("journal: %s", failure)
            self._journal.retry()
        finally:
            for durable in waiting:
                if not durable.done():
                    durable.set_result(None)
