"""What one proxy process opens before its handlers are made: journal, queue, ledger, keys, admission."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from proxy.foundation.outage import OutageLog
from proxy.keys.keyring import Keyring
from proxy.runtime.machine.data_folder import DataFolder
from proxy.runtime.machine.ledger_stores import LedgerStores, open_ledger
from proxy.runtime.machine.price_file import price_book
from proxy.runtime.machine.traces import close_traces, open_traces
from proxy.runtime.machine.waiting import Waiting
from proxy.runtime.proxy.admission import AdmissionService
from proxy.runtime.proxy.background import Recovered
from proxy.runtime.proxy.configuration import Configuration
from proxy.runtime.proxy.estimator_file import EstimatorFile
from proxy.runtime.proxy.node import Node, Settling
from proxy.runtime.proxy.tokenizers import Tokenizers
from proxy.settings import Settings
from proxy.storage.executor import InThread
from proxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from proxy.runtime.machine.queue import Queue
    from proxy.telemetry.traces.export import Traces


@dataclass(frozen=True, slots=True)
class Resources:
    """The parts that are open until the process stops."""

    settings: Settings
    """the settings at the start; `configuration` has the current ones"""
    metrics: Metrics
    tokenizers: Tokenizers
    configuration: Configuration
    traces: Traces | None
    """None: traces are off"""
    node: Node
    learned: EstimatorFile
    queue: Queue | None
    """None: this process settles its records"""
    store: LedgerStores
    in_thread: InThread
    recovered: Recovered
    keyring: Keyring
    admission: AdmissionService

    def settling(self, node: Node, recovered: Recovered) -> Settling:
        """The settling of the journal of this process, or of an abandoned one."""
        return Settling(
            node, recovered, queue=self.queue, ledger=self.store.ledger, in_thread=self.in_thread,
            metrics=self.metrics, on_lost=self.admission.reserve_again,
        )  # fmt: skip


async def open_resources(
    settings: Settings, folder: DataFolder, metrics: Metrics, waiting: Waiting, stops: AsyncExitStack
) -> Resources:
    """Open all in this order. `waiting`: serves while Redis or the ledger is not there. Raises SettingsError,
    JournalUnavailable, ProgressBroken, QueueUnsuitable, OSError."""
    tokenizers = Tokenizers(settings.models.values(), settings.estimates)
    configuration = Configuration(settings, price_book(settings.data_dir), metrics, tokenizers)
    traces = open_traces(settings.traces, metrics)
    stops.push_async_callback(close_traces, traces, 0.0)  # a graceful stop has closed them beside the last settling

    folder.make()
    node = Node(folder, settings)
    stops.callback(node.release)
    learned = EstimatorFile(folder.estimator)

    queue = await _open_queue(settings, waiting, stops)
    store, in_thread = await stops.enter_async_context(open_ledger(settings, waiting))
    recovered = node.recover(learned.estimator, metrics)

    outages = OutageLog("refreshing keys (keys in memory stay valid)")
    keyring = Keyring(store.keys, pepper=store.pepper(), unix_time=time.time, observer=outages)
    stops.push_async_callback(asyncio.to_thread, keyring.close)
    await keyring.start()

    admission = AdmissionService(settings, folder, node.node_id, store.engine, queue, keyring, metrics, in_thread)
    stops.push_async_callback(admission.close)
    configuration.followers.append(lambda settings, _providers: partial(admission.use, settings))
    stops.callback(learned.save)
    return Resources(
        settings, metrics, tokenizers, configuration, traces, node, learned, queue, store, in_thread, recovered,
        keyring, admission,
    )  # fmt: skip


async def _open_queue(settings: Settings, waiting: Waiting, stops: AsyncExitStack) -> Queue | None:
    if settings.queue is None:
        return None
    from proxy.runtime.machine.queue import open_queue

    return await stops.enter_async_context(open_queue(settings, waiting))
