"""What goes on with sinks, in metrics and in the log."""

from __future__ import annotations

import logging
import time

from sqlalchemy import Engine

from proxy.foundation.outage import Outage, OutageLog
from proxy.foundation.tasks import Tasks
from proxy.settings import Settings
from proxy.sinks.progress import SinkStatus
from proxy.sinks.sender import SinkSender
from proxy.storage.executor import InThread
from proxy.telemetry.sink_metrics import SinkMetrics

_log = logging.getLogger(__name__)


def start_sinks(settings: Settings, engine: Engine, metrics: SinkMetrics, tasks: Tasks, in_thread: InThread) -> None:
    """Push from now on, with all the other processes that do."""
    for name, sink in settings.sinks.items():
        sender = SinkSender(
            engine, sink, unix_time=time.time, observer=SinkObserver(metrics, name), in_thread=in_thread
        )
        tasks.start(sender.run(), name=f"sink-{name}")


class SinkObserver(OutageLog):
    """One sink's sender."""

    def __init__(self, metrics: SinkMetrics, name: str) -> None:
        super().__init__(f"sink {name}")
        self._metrics = metrics
        self._away = Outage(self)
        """of the sink; those of the ledger come as `failed` and `healed`"""

    def sent(self, name: str, entries: int) -> None:
        """So many more are there."""
        self._metrics.entries.labels(name, "sent").inc(entries)
        self._away.over()

    def refused(self, name: str, entry_id: str, why: str) -> None:
        """It is put aside."""
        self._metrics.entries.labels(name, "rejected").inc()
        _log.error("sink %s: entry %s is refused and put aside: %s", name, entry_id, why)

    def unsent(self, name: str, why: str, wait_s: float) -> None:
        """A try failed."""
        self._metrics.failures.labels(name).inc()
        self._away.began(OSError(f"{why}; trying again in {wait_s:.0f} s, and until it works"))

    def stands(self, name: str, standing: SinkStatus, lag_s: float) -> None:
        """How it stands."""
        self._metrics.lag.labels(name).set(lag_s)
        self._metrics.pending.labels(name).set(standing.waiting)
        self._metrics.rejected.labels(name).set(standing.letters)
