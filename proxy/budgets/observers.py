"""What goes on with budgets, in metrics and in the log."""

from __future__ import annotations

import logging

from proxy.billing.money import NUSD_PER_USD
from proxy.budgets.thresholds import Alert
from proxy.foundation.outage import OutageLog
from proxy.telemetry.budget_metrics import BudgetMetrics

_log = logging.getLogger(__name__)


class AdmissionObserver(OutageLog):
    """What admission meets."""

    def __init__(self, metrics: BudgetMetrics) -> None:
        super().__init__("budgets", metrics.outages.inc)
        self._metrics = metrics

    def denied(self, why: str) -> None:
        """A request was refused."""
        self._metrics.rejections.labels(why).inc()

    def claim_failed(self, error: OSError) -> None:
        """The end of a request could not be written down."""
        self._metrics.claims_failed.inc()
        _log.error("idempotency: %s", error)


class FollowerObserver(OutageLog):
    """What follows the ledger."""

    def __init__(self, metrics: BudgetMetrics) -> None:
        super().__init__("following the ledger")
        self._metrics = metrics

    def absorbed(self, entries: int) -> None:
        """So many more are in the sums."""
        self._metrics.applied.inc(entries)

    def drift(self, nusd: int) -> None:
        """The sums were compared with the ledger."""
        self._metrics.drift.set(nusd / NUSD_PER_USD)
        if nusd:
            _log.error("sums of budgets differ from the ledger by %d nUSD: tokenweir budgets rebuild", nusd)


class ThresholdObserver:
    """What is noticed of budgets."""

    def __init__(self, metrics: BudgetMetrics) -> None:
        self._metrics = metrics

    def noticed(self, alert: Alert) -> None:
        """So much of a budget is spent."""
        self._metrics.alerts.labels(str(alert.threshold)).inc()
        _log.warning("budget of %s: %d %% spent", alert.scope_id, alert.threshold)


class WebhookObserver(OutageLog):
    """What goes out about it."""

    def __init__(self, metrics: BudgetMetrics) -> None:
        super().__init__("sending webhooks")
        self._metrics = metrics

    def unsent(self, alert: Alert, why: str, *, given_up: bool) -> None:
        """A try failed."""
        self._metrics.webhook_failures.inc()
        _log.warning("webhook %s %s: %s", alert.alert_id, "is given up" if given_up else "will be tried again", why)
