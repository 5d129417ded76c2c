"""The Prometheus series of sinks; their help text is the documentation. Law: the one label is a name that the operator
has configured."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

_SINK = ("sink",)


class SinkMetrics:
    """Every series that has to do with entries pushed to others."""

    def __init__(self, registry: CollectorRegistry) -> None:
        r = registry
        self.entries = Counter(
            "tokenweir_sink_entries",
            "Ledger entries that this process has pushed, by sink and result: sent, or rejected (put aside: "
            "tokenweir sinks status).",
            ("sink", "result"), registry=r,
        )  # fmt: skip
        self.failures = Counter(
            "tokenweir_sink_failures", "Tries that a sink's server did not answer with success.", _SINK, registry=r
        )
        self.lag = Gauge(
            "tokenweir_sink_lag_seconds",
            "How long the oldest entry has waited that a sink has not got; 0: it has all.", _SINK, registry=r,
        )  # fmt: skip
        self.pending = Gauge(
            "tokenweir_sink_pending_entries",
            "Ledger entries that a sink has not got; at most 100,000.",
            _SINK,
            registry=r,
        )
        self.rejected = Gauge(
            "tokenweir_sink_rejected_entries",
            "Entries that a sink's server has rejected, and nobody has dealt with.",
            _SINK,
            registry=r,
        )
