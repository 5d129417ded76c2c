"""What goes on with budgets, told to the metrics and the log. Law: an outage is said once, and its end once."""

from __future__ import annotations

import logging

from proxy.billing.money import NUSD_PER_USD
from proxy.budgets.thresholds import Alert
from proxy.telemetry.budget_metrics import BudgetMetrics

_log = logging.getLogger(__name__)


class AdmissionObserver:
    """What admission meets."""

    def __init__(self, metrics: BudgetMetrics) -> None:
        self._metrics = metrics
        self._failing = False

    def denied(self, why: str) -> None:
        """A request was refused."""
        self._metrics.rejections.labels(why).inc()

    def store_failed(self, error: Exception) -> None:
        """It could not be asked, or told; or a bug shows itself."""
        if not self._failing:
            self._failing = True
            self._metrics.outages.inc()
            _log.error("budgets: %s", error, exc_info=None if isinstance(error, OSError) else error)

    def store_works(self) -> None:
        """The outage is over."""
        if self._failing:
            self._failing = False
            _log.warning("budgets: goes on")

    def claim_failed(self, error: OSError) -> None:
        """The end of a request could not be written down."""
        self._metrics.claims_failed.inc()
        _log.error("idempotency: %s", error)


class _Outages:
    """What stops, and goes on."""

    what: str

    def __init__(self, metrics: BudgetMetrics) -> None:
        self._metrics = metrics

    def failed(self, error: Exception) -> None:
        """An outage begins, or a bug shows itself."""
        _log.error("%s: %s", self.what, error, exc_info=None if isinstance(error, OSError) else error)

    def healed(self, _error: Exception) -> None:
        """And is over."""
        _log.warning("%s: goes on", self.what)


class FollowerObserver(_Outages):
    """What follows the ledger."""

    what = "following the ledger"

    def absorbed(self, entries: int) -> None:
        """So many more are in the sums."""
        self._metrics.absorbed.inc(entries)

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


class WebhookObserver(_Outages):
    """What goes out about it."""

    what = "sending webhooks"

    def unsent(self, alert: Alert, why: str, *, given_up: bool) -> None:
        """A try failed."""
        self._metrics.webhook_failures.inc()
        _log.warning("webhook %s %s: %s", alert.alert_id, "is given up" if given_up else "will be tried again", why)
