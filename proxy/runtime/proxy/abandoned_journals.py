"""Settles the journals of processes that are no longer started, after `--workers` was reduced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from proxy.foundation.tasks import Tasks
from proxy.journal.journal import Journal
from proxy.journal.log import JournalInUse
from proxy.runtime.machine.data_folder import DataFolder
from proxy.runtime.proxy.node import Node, Recovered
from proxy.settings import Settings

# An attempt to settle everything; another one follows.
ATTEMPT_S = 30.0

_log = logging.getLogger(__name__)


async def settle_abandoned(
    folder: DataFolder,
    settings: Settings,
    *,
    recover: Callable[[Node], Recovered],
    release: Callable[[Journal], Awaitable[None]],
    resume: Callable[[Recovered, Node], Awaitable[None]],
    start: Callable[[Node, Tasks], None],
) -> None:
    """Settle the records in `folder`, without a time limit, and keep the settled records for their time. The journal of
    a running process is skipped. `recover` closes the exchanges that a crash interrupted, `release` releases their
    reservations, `resume` continues exchanges in the background, `start` begins to settle."""
    async with AsyncExitStack() as opened:
        try:
            node = Node(folder, settings)
        except JournalInUse:
            return  # another proxy on this data directory
        opened.callback(node.release)
        _log.info("settling the journal of %s, a process that is no longer started", folder.own.name)
        recovered = recover(node)
        await release(node.journal)
        await resume(recovered, node)
        tasks = Tasks()
        opened.push_async_callback(tasks.stop)
        start(node, tasks)
        # Some may continue, and the ledger may still lose confirmed records.
        while node.journal.open_count or node.journal.keeps_segments:
            node.journal.prune_kept()
            await asyncio.sleep(ATTEMPT_S)
        while not await node.close(ATTEMPT_S):
            pass
