"""*Pipeline health*: whether all that ends reaches the ledger, and whether its numbers agree. From Prometheus.

What deploy/prometheus records and rings for is shown as it is there.
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
    says="Whether all that ends reaches the ledger, and whether its numbers agree.",
    panels=[
        _stat(
            "Alerts", "Those of deploy/prometheus that ring now; what to do is in its RUNBOOK.md.",
            'count(ALERTS{alertname=~"Tokenweir.*", alertstate="firing"}) or vector(0)',
        ),
        _stat(
            "Processes that answer", "Proxies and workers, of those that are scraped.",
            'sum(up{job=~".*tokenweir.*"}) / count(up{job=~".*tokenweir.*"})', "percentunit",
            [(None, BAD), (1, GOOD)],
        ),
        _stat(
            "Waiting", "Ended exchanges that the ledger does not have yet.",
            "sum(tokenweir_journal_pending_records)", limits=[(None, GOOD), (1000, FAIR), (100_000, BAD)],
        ),
        _stat(
            "The oldest of them", "Under a second where all is well.",
            "max(tokenweir_journal_oldest_pending_age_seconds)", "s", [(None, GOOD), (10, FAIR), (120, BAD)],
        ),
        _stat(
            "Dead letters", "Records that could not be settled, and nobody has dealt with.",
            "max(tokenweir_dead_letters)",
        ),
        _stat(
            "Differences", "What the last audit of the ledger found. Workers audit every ten minutes.",
            "sum(max by (check) (tokenweir_reconcile_differences)) or vector(0)",
        ),
        Panel(
            title="Waiting, by proxy", stacked=True,
            says="Ended exchanges that the ledger does not have yet.",
            queries=_one("sum by (instance) (tokenweir_journal_pending_records)", "{{instance}}"),
        ),
        Panel(
            title="Age of the oldest", unit="s",
            says="Of what waits. It rises by a second a second while the ledger or the queue is away.",
            queries=_one("max by (instance) (tokenweir_journal_oldest_pending_age_seconds)", "{{instance}}"),
        ),
        Panel(
            title="Unaccounted exchanges",
            says="Admitted, but neither running, nor waiting, nor in the ledger, by the counters: 0 but for moments.",
            queries=_one("instance:tokenweir_unaccounted_exchanges:sum", "{{instance}}"),
        ),
        Panel(
            title="Settled per second, by result", unit="ops", stacked=True,
            says="Entries that are new, known already, put right, in conflict, or dead letters.",
            queries=_one("sum by (result) (rate(tokenweir_ledger_entries_total[$__rate_interval]))", "{{result}}"),
        ),
        Panel(
            title="Time of one ledger transaction", unit="s",
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
            title="What fails and is tried again", unit="ops",
            says="Transactions, the queue, the store of budgets, webhooks.",
            queries=[
                Query(f"sum(rate({series}_total[$__rate_interval]))", name)
                for series, name in (
                    ("tokenweir_ledger_write_failures", "transactions"), ("tokenweir_queue_outages", "queue"),
                    ("tokenweir_budget_store_outages", "store of budgets"), ("tokenweir_webhook_failures", "webhooks"),
                )
            ],
        ),
        Panel(
            title="Sent to the queue", unit="ops", stacked=True,
            says="First deliveries, and repeated ones: the first was not confirmed.",
            queries=_one("sum by (delivery) (rate(tokenweir_queue_records_total[$__rate_interval]))", "{{delivery}}"),
        ),
        Panel(
            title="Estimated, of the output tokens", unit="percentunit",
            says="Within an hour, by model: where usage does not come.",
            queries=_one("model:tokenweir_estimated_output_tokens:ratio_rate1h", "{{provider}} {{model}}"),
        ),
        Panel(
            title="How far estimates are off", unit="percentunit",
            says="Of those that would have been made where usage was reported, nine in ten are closer. Within an hour.",
            queries=_one("model:tokenweir_estimate_error_ratio:p90_1h", "{{provider}} {{model}}"),
        ),
        Panel(
            title="Providers that fail", unit="percentunit",
            says="Of all that each was asked, tries in vain included.",
            queries=_one("provider:tokenweir_failed_attempts:ratio_rate5m", "{{provider}}"),
        ),
        Panel(
            title="Circuit breakers", stacked=True,
            says="How many proxies do not ask a provider now, or try it with one request.",
            queries=_one(
                'sum by (provider, state) (tokenweir_provider_breaker{state!="closed"})', "{{provider}} {{state}}"
            ),
        ),
        Panel(
            title="Held by running exchanges", unit="currencyUSD", stacked=True,
            says="What is reserved of budgets, until it is settled.",
            queries=_one("sum by (instance) (tokenweir_reservation_outstanding_usd)", "{{instance}}"),
        ),
        Panel(
            title="Refused by a limit", unit="reqps", stacked=True,
            says="By what was at its end: money, requests, tokens, parallel; store_unavailable: no budget store.",
            queries=_one("sum by (reason) (rate(tokenweir_budget_rejections_total[$__rate_interval]))", "{{reason}}"),
        ),
        Panel(
            title="Budgets against the ledger", unit="currencyUSD",
            says="By how much the sums that budgets are decided by were off when they were last compared.",
            queries=_one("max by (instance) (abs(tokenweir_budget_drift_usd))", "{{instance}}"),
        ),
        Panel(
            title="CPU", unit="percentunit",
            says="Of one core. A process has one: at 80 % it is time for another.",
            queries=_one(
                'sum by (instance) (rate(process_cpu_seconds_total{job=~".*tokenweir.*"}[$__rate_interval]))',
                "{{instance}}",
            ),
        ),
        Panel(
            title="Memory", unit="bytes", says="Resident.",
            queries=_one('process_resident_memory_bytes{job=~".*tokenweir.*"}', "{{instance}}"),
        ),
        Panel(
            title="Open files", unit="percentunit",
            says="Of those allowed. A stream takes two.",
            queries=_one(
                'process_open_fds{job=~".*tokenweir.*"} / process_max_fds{job=~".*tokenweir.*"}', "{{instance}}"
            ),
        ),
    ],
)  # fmt: skip
