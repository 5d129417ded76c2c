"""*Pipeline health*: settlement of ended exchanges, and the ledger's integrity. From Prometheus.

Recorded series and alerts of deploy/prometheus are shown unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from grafana.panels import BAD, FAIR, GOOD, Board, Panel, Query

Limits = Sequence[tuple[float | None, str]]
_ZERO: Limits = [(None, GOOD), (1, BAD)]


def _one(text: str, legend: str = "") -> list[Query]:
    return [Query(text, legend)]


def _stat(title: str, says: str, text: str, unit: str = "short", limits: Limits = _ZERO) -> Panel:
    return Panel(
        title=title, says=says, queries=_one(text), kind="stat", width=4, height=4, unit=unit, limits=limits
    )  # fmt: skip


PIPELINE = Board(
    uid="tokenweir-pipeline",
    title="Pipeline health",
    says="From the end of a request to the ledger, and the ledger's integrity.",
    panels=[
        _stat(
            "Firing alerts", "Alerts of deploy/prometheus; its RUNBOOK.md has the remedies.",
            'count(ALERTS{alertname=~"Tokenweir.*", alertstate="firing"}) or vector(0)',
        ),
        _stat(
            "Targets up", "Share of the proxies and workers that Prometheus reaches.",
            'sum(up{job=~".*tokenweir.*"}) / count(up{job=~".*tokenweir.*"})', "percentunit",
            [(None, BAD), (1, GOOD)],
        ),
        _stat(
            "Journal backlog", "Ended requests that the ledger does not have yet.",
            "sum(tokenweir_journal_pending_records)", limits=[(None, GOOD), (1000, FAIR), (100_000, BAD)],
        ),
        _stat(
            "Oldest record", "Age of the oldest record in a journal. Usually under a second.",
            "max(tokenweir_journal_oldest_pending_age_seconds)", "s", [(None, GOOD), (10, FAIR), (120, BAD)],
        ),
        _stat(
            "Dead letters", "Records that could not be settled: see `tokenweir dead-letters list`.",
            "max(tokenweir_dead_letters)",
        ),
        _stat(
            "Reconciliation differences", "Differences of the last integrity check. Workers check every ten minutes.",
            "sum(max by (check) (tokenweir_reconcile_differences)) or vector(0)",
        ),
        Panel(
            title="Journal backlog by proxy", stacked=True,
            says="Ended requests that the ledger does not have yet.",
            queries=_one("sum by (instance) (tokenweir_journal_pending_records)", "{{instance}}"),
        ),
        Panel(
            title="Age of the oldest record", unit="s",
            says="Rises by a second per second while the ledger or the queue is unreachable.",
            queries=_one("max by (instance) (tokenweir_journal_oldest_pending_age_seconds)", "{{instance}}"),
        ),
        Panel(
            title="Unaccounted requests",
            says="Requests that were admitted and are neither running, nor in a journal, nor in the ledger. Usually 0.",
            queries=_one("instance:tokenweir_unaccounted_exchanges:sum", "{{instance}}"),
        ),
        Panel(
            title="Settled entries by result", unit="ops", stacked=True,
            says="New entries, repeated records, adjustments, conflicts and dead letters.",
            queries=_one("sum by (result) (rate(tokenweir_ledger_entries_total[$__rate_interval]))", "{{result}}"),
        ),
        Panel(
            title="Duration of ledger transactions", unit="s",
            says="A transaction writes up to a thousand entries and their sums.",
            queries=[
                Query(
                    f"histogram_quantile({q}, sum by (le) (rate(tokenweir_ledger_write_seconds_bucket"
                    "[$__rate_interval])))", name,
                )
                for q, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
            ],
        ),
        Panel(
            title="Retries", unit="ops",
            says="Failed operations that are tried again: ledger transactions, queue, budget store, webhooks.",
            queries=[
                Query(f"sum(rate({series}_total[$__rate_interval]))", name)
                for series, name in (
                    ("tokenweir_ledger_write_failures", "transactions"), ("tokenweir_queue_outages", "queue"),
                    ("tokenweir_budget_store_outages", "budget store"), ("tokenweir_webhook_failures", "webhooks"),
                )
            ],
        ),
        Panel(
            title="Queue deliveries", unit="ops", stacked=True,
            says="First deliveries, and repeated ones after an unconfirmed delivery.",
            queries=_one("sum by (delivery) (rate(tokenweir_queue_records_total[$__rate_interval]))", "{{delivery}}"),
        ),
        Panel(
            title="Estimated share of output tokens", unit="percentunit",
            says="Share of the output tokens that the provider did not report, by model. Of the last hour.",
            queries=_one("model:tokenweir_estimated_output_tokens:ratio_rate1h", "{{provider}} {{model}}"),
        ),
        Panel(
            title="Estimate error, p90", unit="percentunit",
            says="Nine of ten estimates are at most this far from the reported usage. Of the last hour.",
            queries=_one("model:tokenweir_estimate_error_ratio:p90_1h", "{{provider}} {{model}}"),
        ),
        Panel(
            title="Provider error rate", unit="percentunit",
            says="Failed attempts, as a share of all attempts.",
            link="requests?outcome=upstream_failed",
            queries=_one("provider:tokenweir_failed_attempts:ratio_rate5m", "{{provider}}"),
        ),
        Panel(
            title="Circuit breakers", stacked=True,
            says="Number of proxies whose breaker of a provider is open or half-open.",
            queries=_one(
                'sum by (provider, state) (tokenweir_provider_breaker{state!="closed"})', "{{provider}} {{state}}"
            ),
        ),
        Panel(
            title="Outstanding reservations", unit="currencyUSD", stacked=True,
            says="Amount that running and unsettled requests reserve in budgets.",
            queries=_one("sum by (instance) (tokenweir_reservation_outstanding_usd)", "{{instance}}"),
        ),
        Panel(
            title="Requests rejected by limits", unit="reqps", stacked=True,
            says="By the limit: money, requests, tokens, parallel; store_unavailable: budgets could not be checked.",
            link="budgets",
            queries=_one("sum by (reason) (rate(tokenweir_budget_rejections_total[$__rate_interval]))", "{{reason}}"),
        ),
        Panel(
            title="Budget drift", unit="currencyUSD",
            says="Largest difference of a budget counter from the ledger at the last comparison.",
            queries=_one("max by (instance) (abs(tokenweir_budget_drift_usd))", "{{instance}}"),
        ),
        Panel(
            title="CPU", unit="percentunit",
            says="Share of one core. A process uses one core: at 80 % add a process.",
            queries=_one(
                'sum by (instance) (rate(process_cpu_seconds_total{job=~".*tokenweir.*"}[$__rate_interval]))',
                "{{instance}}",
            ),
        ),
        Panel(
            title="Memory", unit="bytes", says="Resident memory.",
            queries=_one('process_resident_memory_bytes{job=~".*tokenweir.*"}', "{{instance}}"),
        ),
        Panel(
            title="Open files", unit="percentunit",
            says="Share of the limit. A stream takes two file descriptors.",
            queries=_one(
                'process_open_fds{job=~".*tokenweir.*"} / process_max_fds{job=~".*tokenweir.*"}', "{{instance}}"
            ),
        ),
    ],
)  # fmt: skip
