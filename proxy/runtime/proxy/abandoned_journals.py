"""Settles the journals of processes that do not start again: after `--workers` was reduced, or `serve --take-over`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import AsyncExitStack

from proxy.foundation.tasks import Tasks
from proxy.journal.log import JournalInUse
from proxy.runtime.machine.data_folder import DataFolder
from proxy.runtime.proxy.background import Resumption
from proxy.runtime.proxy.node import Node
from proxy.runtime.proxy.resources import Resources

# Between two looks whether a running process has ended.
LOCKED_S = 1.0
# An attempt to settle everything; another one follows.
ATTEMPT_S = 30.0

_log = logging.getLogger(__name__)


async def settle_abandoned(folders: Iterable[DataFolder], resources: Resources, resumption: Resumption) -> None:
    """Settle the records in `folders`, without a time limit, and keep the settled records for their time. The journal
    of a running process waits for its end: it is draining."""
    # All at once: an answer that is made in the background can keep one of them open for hours.
    await asyncio.gather(*(_settle(folder, resources, resumption) for folder in folders))


async def _settle(folder: DataFolder, resources: Resources, resumption: Resumption) -> None:
    async with AsyncExitStack() as opened:
        node = await _opened(folder, resources)
        opened.callback(node.release)
        _log.info("settling the remaining records of the journal %s, left by an earlier process", folder.own.name)
        recovered = node.recover(resources.learned.estimator, resources.metrics)
        await resources.admission.abandoned(node.journal)
        settling = resources.settling(node, recovered)
        await resumption.resume(recovered, settling.outbox)
        tasks = Tasks()
        opened.push_async_callback(tasks.stop)
        settling.start(tasks)
        # Some may continue, and the ledger may still lose confirmed records.
        while node.journal.open_count or node.journal.keeps_segments:
            node.journal.prune_kept()
            await asyncio.sleep(ATTEMPT_S)
        while not await settling.close(ATTEMPT_S):
            pass


async def _opened(folder: DataFolder, resources: Resources) -> Node:
    """Once no other process has it."""
    while True:
        try:
            return Node(folder, resources.settings)
        except JournalInUse:
            await asyncio.sleep(LOCKED_S)
