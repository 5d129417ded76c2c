"""Starts the sinks, with their metrics and log lines."""

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
    """Starts a sender task for each configured sink."""
    for name, sink in settings.sinks.items():
        sender = SinkSender(
            engine, sink, unix_time=time.time, observer=SinkObserver(metrics, name), in_thread=in_thread
        )
        tasks.start(sender.run(), name=f"sink-{name}")


class SinkObserver(OutageLog):
    """Metrics and log lines of one sink."""

    def __init__(self, metrics: SinkMetrics, name: str) -> None:
        super().__init__(f"sink {name}")
        self._metrics = metrics
        self._server = Outage(self)
        """outage of the sink's server; the sender reports outages of the ledger by `failed` and `healed`"""

    def sent(self, name: str, entries: int) -> None:
        """Counts accepted entries."""
        self._metrics.entries.labels(name, "sent").inc(entries)
        self._server.over()

    def refused(self, name: str, entry_id: str, why: str) -> None:
        """Counts and logs a rejected entry."""
        self._metrics.entries.labels(name, "rejected").inc()
        _log.error(
            "sink %s: entry %s rejected: %s; correct the cause, then: tokenweir sinks retry %s",
            name,
            entry_id,
            why,
            name,
        )

    def unsent(self, name: str, why: str, wait_s: float) -> None:
        """Counts a failed attempt; logs the first of an outage."""
        self._metrics.failures.labels(name).inc()
        self._server.began(OSError(f"{why}; next attempt in {wait_s:.0f} s, retried until it succeeds"))

    def status(self, name: str, status: SinkStatus, lag_s: float) -> None:
        """Updates the gauges."""
        self._metrics.lag.labels(name).set(lag_s)
        self._metrics.pending.labels(name).set(status.waiting)
        self._metrics.rejected.labels(name).set(status.letters)
