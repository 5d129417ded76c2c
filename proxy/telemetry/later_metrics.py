"""The Prometheus series of usage that is requested afterwards. The help texts are the documentation.

Invariants: see `metrics.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.billing.details import EntryDetails
from proxy.billing.entries import LedgerEntry
from proxy.billing.later import UNANSWERED
from proxy.metering.usage import UsageSource
from proxy.telemetry.histogram import Series

ERROR_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
_MODEL = ("provider", "model")


class LaterMetrics:
    """The series of exchanges that had ended with an estimate. Call from the event-loop thread only."""

    def __init__(self, series: Series, label: Callable[[str], str]) -> None:
        """`label`: model name → label value."""
        self._label = label
        self.results = series.counter(
            "tokenweir_later_usage",
            "Exchanges with an estimate whose provider was asked afterwards, by result: reported, or unanswered (no "
            "report within a day: the estimate stays).",
            (*_MODEL, "result"),
        )
        self.error = series.histogram(
            "tokenweir_later_estimate_error_ratio",
            "Relative error of the estimated output tokens of an exchange, by the usage that its provider reported "
            "afterwards.",
            _MODEL, buckets=ERROR_BOUNDS,
        )  # fmt: skip

    def settled(self, adjustment: LedgerEntry, estimate: int | None) -> None:
        """Count an exchange. `estimate`: its output tokens before this adjustment."""
        where = adjustment.provider, self._label(adjustment.model)
        is_unanswered = UNANSWERED in (EntryDetails.of(adjustment.details).flags or ())
        self.results.labels(*where, "unanswered" if is_unanswered else "reported").inc()
        reported = (estimate or 0) + (adjustment.completion_tokens or 0)
        if adjustment.usage_source == UsageSource.PROVIDER_LATER and reported > 0:  # else an operator has set it
            self.error.labels(*where).observe(abs((estimate or 0) - reported) / reported)
