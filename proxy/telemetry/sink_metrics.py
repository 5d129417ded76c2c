"""The Prometheus series of sinks. The help texts are the documentation.

Invariant: the label `sink` is a name that the operator has configured.
"""

from __future__ import annotations

from proxy.telemetry.histogram import Series

_SINK = ("sink",)


class SinkMetrics:
    """The series of entries pushed to sinks."""

    def __init__(self, series: Series) -> None:
        self.entries = series.counter(
            "tokenweir_sink_entries",
            "Ledger entries pushed by this process, by sink and result: sent, or rejected (kept: see "
            "tokenweir sinks status).",
            ("sink", "result"),
        )
        self.failures = series.counter("tokenweir_sink_failures", "Requests to a sink's server that failed.", _SINK)
        self.lag = series.gauge(
            "tokenweir_sink_lag_seconds",
            "How long the oldest entry not yet sent to a sink has waited; 0: all are sent.", _SINK,
        )  # fmt: skip
        self.pending = series.gauge(
            "tokenweir_sink_pending_entries", "Ledger entries not yet sent to a sink; counted up to 100,000.", _SINK
        )
        self.rejected = series.gauge(
            "tokenweir_sink_rejected_entries", "Rejected events: entries that a sink's server refused.", _SINK
        )

    def forget(self, sink: str) -> None:
        """Export the status of this sink no longer."""
        for one in (self.lag, self.pending, self.rejected):
            one.remove(sink)
