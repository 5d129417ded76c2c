"""The journal and the progress table as one thing that an exchange is opened in and closed in.

Law: a slot of the progress table is let go only when its exchange's record is in the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from proxy.billing.record import Opened, UsageRecord
from proxy.gateway.ports import LeasedSlot, OutboxFullError
from proxy.journal.journal import Journal
from proxy.journal.log import JournalUnavailable
from proxy.journal.progress import ProgressFull, ProgressTable

# A power cut loses at most what was written in this time, unless `durability: power` waits for the disk.
SYNC_S = 0.1

_log = logging.getLogger(__name__)


class LocalOutbox:
    """What the gateway's `Outbox` asks for, on this machine's disk."""

    def __init__(
        self,
        journal: Journal,
        table: ProgressTable,
        disk: Executor,
        *,
        opened: Callable[[Opened], None] = lambda _: None,
    ) -> None:
        """`disk`: a thread of its own for what blocks on the disk. `opened` is told what has begun, and again what
        goes on with another provider."""
        self._opened = opened
        self._journal = journal
        self._table = table
        self._disk = disk
        self._held: list[LeasedSlot] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._sync_wanted = asyncio.Event()
        self._awaits_disk = journal.durability == "power"

    def claim(self, exchange_id: str) -> LeasedSlot:
        """A slot. Raises OutboxFullError."""
        try:
            return self._table.claim(exchange_id)
        except ProgressFull as full:
            raise OutboxFullError("Too many exchanges are running.") from full

    def begin(self, opened: Opened) -> asyncio.Future[None] | None:
        """Open durably. Raises OutboxFullError."""
        return self._written(self._journal.begin, opened)

    def reassign(self, opened: Opened) -> asyncio.Future[None] | None:
        """It is this from now on, durably. Raises OutboxFullError: it is what it was."""
        return self._written(self._journal.reassign, opened)

    def _written(self, write: Callable[[Opened], None], opened: Opened) -> asyncio.Future[None] | None:
        try:
            write(opened)
        except JournalUnavailable as unavailable:
            raise OutboxFullError("The journal takes no new exchanges now.") from unavailable
        self._opened(opened)
        if not self._awaits_disk:
            return None
        durable = asyncio.get_running_loop().create_future()
        self._waiting.append(durable)
        self._sync_wanted.set()
        return durable

    def finish(self, record: UsageRecord, slot: LeasedSlot) -> None:
        """Close, and let go of the slot as soon as the record is written."""
        if self._journal.finish(record):
            slot.release()
        else:
            self._held.append(slot)

    async def keep_durable(self) -> None:
        """Runs for ever: brings what was written to the disk, and writes what could not be written before."""
        while True:
            try:
                async with asyncio.timeout(SYNC_S):
                    await self._sync_wanted.wait()
            except TimeoutError:
                pass
            self._sync_wanted.clear()
            if self._held and self._journal.retry():
                held, self._held = self._held, []
                for slot in held:
                    slot.release()
            if self._journal.dirty:
                await self._sync()

    async def _sync(self) -> None:
        waiting, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._disk, self._journal.sync)
        except JournalUnavailable as failure:
            # The client comes first: its stream goes on; new exchanges are refused while the journal is unwell.
            _log.error("journal: %s", failure)
            self._journal.retry()
        finally:
            for durable in waiting:
                if not durable.done():
                    durable.set_result(None)
