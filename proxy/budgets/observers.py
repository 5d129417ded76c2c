"""Observers of budgets: they write metrics and log lines."""

from __future__ import annotations

import logging

from proxy.billing.money import NUSD_PER_USD, usd_text
from proxy.budgets.thresholds import LOW_BALANCE, Alert
from proxy.foundation.outage import OutageLog
from proxy.telemetry.budget_metrics import BudgetMetrics

_log = logging.getLogger(__name__)


class AdmissionObserver(OutageLog):
    """Receives denials, and outages of the budget store."""

    def __init__(self, metrics: BudgetMetrics) -> None:
        super().__init__("budgets", metrics.outages.inc)
        self._metrics = metrics

    def denied(self, why: str) -> None:
        """A request was refused."""
        self._metrics.rejections.labels(why).inc()

    def claim_failed(self, error: OSError) -> None:
        """The end of a request could not be recorded in its idempotency claim."""
        self._metrics.claims_failed.inc()
        _log.error("idempotency claim not updated, a repeat of the request gets 409 until it expires: %s", error)


class FollowerObserver(OutageLog):
    """Receives the follower's progress, and outages of the budget store and of the ledger."""

    def __init__(self, metrics: BudgetMetrics) -> None:
        super().__init__("following the ledger")
        self._metrics = metrics

    def absorbed(self, entries: int) -> None:
        """Entries were added to the spend totals."""
        self._metrics.applied.inc(entries)

    def drift(self, nusd: int) -> None:
        """Spend totals were compared with the ledger: their total difference in nUSD; anything but 0 is a bug."""
        self._metrics.drift.set(nusd / NUSD_PER_USD)
        if nusd:
            _log.error("budget spend totals differ from the ledger by %d nUSD: run `tokenweir budgets rebuild`", nusd)


class ThresholdObserver:
    """Receives new alerts of budgets."""

    def __init__(self, metrics: BudgetMetrics) -> None:
        self._metrics = metrics

    def noticed(self, alert: Alert) -> None:
        """A budget has reached a threshold, or a balance is low; called in one of all processes."""
        if alert.threshold == LOW_BALANCE:
            self._metrics.alerts.labels("balance_low").inc()
            _log.warning("prepaid balance of %s: %s USD left", alert.scope_id, usd_text(-alert.spent_nusd))
            return
        self._metrics.alerts.labels(str(alert.threshold)).inc()
        _log.warning("budget of %s: %d %% spent", alert.scope_id, alert.threshold)


class WebhookObserver(OutageLog):
    """Receives failed deliveries of alerts, and outages of the webhook."""

    def __init__(self, metrics: BudgetMetrics) -> None:
        super().__init__("sending webhooks")
        self._metrics = metrics

    def unsent(self, alert: Alert, why: str, *, given_up: bool) -> None:
        """A delivery attempt failed."""
        self._metrics.webhook_failures.inc()
        _log.warning("webhook %s %s: %s", alert.alert_id, "abandoned" if given_up else "failed, will be retried", why)
