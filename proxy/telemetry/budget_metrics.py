"""The Prometheus series of budgets, limits and alerts. The help texts are the documentation.

Invariant: no key, account or model is a label.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.billing.money import NUSD_PER_USD
from proxy.billing.reservation import DenialReason
from proxy.telemetry.histogram import Series


class BudgetMetrics:
    """The series of budgets, limits and alerts."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self.rejections = series.counter(
            "tokenweir_budget_rejections",
            "Requests refused by a limit, by reason: money, requests, tokens, parallel, or store_unavailable (the "
            "budget store is down, and the key's budget fails closed). A request that another model or provider then "
            "serves counts too.",
            ("reason",),
        )
        for reason in DenialReason:  # `increase` does not count the first refusal of a counter that appears with it
            self.rejections.labels(reason)
        self.outages = series.counter("tokenweir_budget_store_outages", "Outages of the budget store.")
        self.expired = series.counter(
            "tokenweir_reservation_expired", "Reservations of dead proxies that a worker released."
        )
        self.applied = series.counter(
            "tokenweir_budget_applied_entries", "Ledger entries added to the spend totals of budgets."
        )
        self.drift = series.gauge(
            "tokenweir_budget_drift_usd",
            "Difference between the spend totals of budgets and the ledger at the last comparison: an alarm if not 0.",
        )
        self.alerts = series.counter(
            "tokenweir_budget_alerts",
            "Budgets that reached a threshold (percent) in their window, and prepaid balances that became low "
            "(`balance_low`); counted by the first process to detect it.",
            ("threshold",),
        )
        self.webhook_failures = series.counter(
            "tokenweir_webhook_failures", "Webhook deliveries that failed and are retried."
        )
        self.claims_failed = series.counter(
            "tokenweir_idempotency_failures",
            "Requests with an Idempotency-Key whose end could not be stored: retries are answered as if it still ran.",
        )

    def outstanding(self, reserved_nusd: Callable[[], int]) -> None:
        """The gauge of reserved amounts, read at each scrape."""
        self._series.gauge(
            "tokenweir_reservation_outstanding_usd",
            "Budget amounts reserved by running exchanges of this process, in USD.",
        ).set_function(lambda: reserved_nusd() / NUSD_PER_USD)
