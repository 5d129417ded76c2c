"""The Prometheus series of budgets, limits and alerts; their help text is the documentation.

Law: no key, account or model is a label: who is refused is in the ledger's words, not in a metric's.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from proxy.billing.money import NUSD_PER_USD
from proxy.billing.reservation import DenialReason


class BudgetMetrics:
    """Every series that has to do with what keys may spend."""

    def __init__(self, registry: CollectorRegistry) -> None:
        r = self._registry = registry
        self.rejections = Counter(
            "tokenweir_budget_rejections",
            "Requests refused by a limit: money, requests, tokens, parallel, or store_unavailable (the store of "
            "budgets is down, and the key may not go on without).",
            ("reason",), registry=r,
        )  # fmt: skip
        for reason in DenialReason:  # a counter that appears with its first refusal would hide that one from `increase`
            self.rejections.labels(reason)
        self.outages = Counter(
            "tokenweir_budget_store_outages", "Times that the store of budgets stopped answering.", registry=r
        )
        self.expired = Counter(
            "tokenweir_reservation_expired",
            "Reservations of proxies that died, let go by a worker.",
            registry=r,
        )
        self.applied = Counter(
            "tokenweir_budget_applied_entries", "Ledger entries that sums of budgets have taken in.", registry=r
        )
        self.drift = Gauge(
            "tokenweir_budget_drift_usd",
            "By how much the sums of budgets differed from the ledger when they were last compared: an alarm if not 0.",
            registry=r,
        )
        self.alerts = Counter(
            "tokenweir_budget_alerts",
            "Budgets that reached a threshold (percent) in their window, as this process was the first to see.",
            ("threshold",), registry=r,
        )  # fmt: skip
        self.webhook_failures = Counter(
            "tokenweir_webhook_failures", "Webhooks that were not accepted, and are tried again.", registry=r
        )
        self.claims_failed = Counter(
            "tokenweir_idempotency_failures",
            "Ends of requests with an Idempotency-Key that could not be written down: a repeat is told it still runs.",
            registry=r,
        )

    def outstanding(self, held_nusd: Callable[[], int]) -> None:
        """What running exchanges hold, read when scraped."""
        Gauge(
            "tokenweir_reservation_outstanding_usd",
            "What running exchanges of this process hold of budgets, in USD.",
            registry=self._registry,
        ).set_function(lambda: held_nusd() / NUSD_PER_USD)
