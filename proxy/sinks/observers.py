"""What goes on with sinks, told to the metrics and the log. Law: a failure is said once, and its end once."""

from __future__ import annotations

import logging
import time

from sqlalchemy import Engine

from proxy.foundation.tasks import Tasks
from proxy.settings import Settings
from proxy.sinks.progress import SinkStatus
from proxy.sinks.sender import SinkSender
from proxy.telemetry.sink_metrics import SinkMetrics

_log = logging.getLogger(__name__)


def start_sinks(settings: Settings, engine: Engine, metrics: SinkMetrics, tasks: Tasks) -> None:
    """Push from now on, with all the other processes that do."""
    for name, sink in settings.sinks.items():
        sender = SinkSender(engine, sink, unix_time=time.time, observer=SinkObserver(metrics))
        tasks.start(sender.run(), name=f"sink-{name}")


class SinkObserver:
    """One sink's sender."""

    def __init__(self, metrics: SinkMetrics) -> None:
        self._metrics = metrics
        self._failing = False

    def sent(self, name: str, entries: int) -> None:
        """So many more are there."""
        self._metrics.entries.labels(name, "sent").inc(entries)
        if self._failing:
            self._failing = False
            _log.warning("sink %s: goes on", name)

    def refused(self, name: str, entry_id: str, why: str) -> None:
        """It is put aside."""
        self._metrics.entries.labels(name, "refused").inc()
        _log.error("sink %s: entry %s is refused and put aside: %s", name, entry_id, why)

    def unsent(self, name: str, why: str, wait_s: float) -> None:
        """A try failed."""
        self._metrics.failures.labels(name).inc()
        if not self._failing:
            self._failing = True
            _log.error("sink %s: %s; trying again in %.0f s, and until it works", name, why, wait_s)

    def stands(self, name: str, standing: SinkStatus, lag_s: float) -> None:
        """How it stands."""
        self._metrics.lag.labels(name).set(lag_s)
        self._metrics.waiting.labels(name).set(standing.waiting)
        self._metrics.letters.labels(name).set(standing.letters)

    def failed(self, error: Exception) -> None:
        """An outage of the ledger begins, or a bug shows itself."""
        _log.error("sinks: %s", error, exc_info=None if isinstance(error, OSError) else error)

    def healed(self, _error: Exception) -> None:
        """And is over."""
        _log.warning("sinks: go on")
