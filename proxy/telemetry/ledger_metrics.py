"""The Prometheus series of the ledger, its usage and the delivery to it. The help texts are the documentation.

Invariants: see `metrics.py`. Keys and projects are labels only if the operator enables it, by id, and only up to a
configured number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from proxy.billing.details import EntryDetails
from proxy.billing.entries import LedgerEntry
from proxy.billing.money import NUSD_PER_USD, Nusd
from proxy.metering.plausibility import IMPLAUSIBLE, REFUTED
from proxy.telemetry.histogram import Series
from proxy.telemetry.project_metrics import OTHER, ProjectMetrics

WRITE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_MODEL = ("provider", "model")
# Providers choose the names of what they report.
NAMES_MAX = 100


class FirstLabels:
    """The first `most` values as labels; all others are "other"."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: set[str] = set()

    def __call__(self, value: str) -> str:
        if len(self._values) < self._most:
            self._values.add(value)
        return value if value in self._values else OTHER


class LedgerMetrics:
    """The series of the ledger. Call from the event-loop thread only."""

    def __init__(self, series: Series, label: Callable[[str], str], *, keys_max: int, projects_max: int) -> None:
        """`label`: model name → label value. `keys_max`, `projects_max`: how many have their own series."""
        self._label = label
        self._keys_max = keys_max
        self._key_label = FirstLabels(keys_max)
        self._name_label = FirstLabels(NAMES_MAX)
        self._make_money(series)
        self._make_settling(series)
        self._make_queue(series)
        self._make_audit(series)
        if keys_max:
            self._make_keys(series)
        self.projects = ProjectMetrics(series, projects_max=projects_max) if projects_max else None
        """series of projects; None: disabled"""

    def _make_money(self, series: Series) -> None:
        """Usage and money of entries."""
        self.tokens = series.counts(
            "tokenweir_tokens",
            "Tokens by type (input, output; cached_input and cache_write_input are parts of input, reasoning_output is "
            "a part of output) and by source (reported by the provider, or estimated). "
            "[gen_ai.client.inference.usage.*]",
            (*_MODEL, "type", "source"),
        )
        self.cost = series.counts(
            "tokenweir_cost_usd",
            "Provider cost of settled exchanges, in USD. Corrections are in the ledger only.",
            _MODEL, per=NUSD_PER_USD,
        )  # fmt: skip
        self.charge = series.counts(
            "tokenweir_charge_usd", "Amount billed to keys for settled exchanges, in USD.", _MODEL, per=NUSD_PER_USD
        )
        self.unpriced = series.counts(
            "tokenweir_unpriced",
            "Settled exchanges without a known price: served and not billed. Add the price.",
            _MODEL,
        )
        self.unpriced_units = series.counter(
            "tokenweir_unpriced_units",
            "Settled exchanges that used something without a price of its own, by its name: searches, tier:priority.",
            ("provider", "unit"),
        )
        self.unread_usage = series.counter(
            "tokenweir_unread_usage",
            "Settled exchanges whose provider reported a number or a word that this version does not read, by its "
            f'path ("other" beyond {NAMES_MAX} names).',
            ("provider", "path"),
        )

        self.contradicted_usage = series.counter(
            "tokenweir_contradicted_usage",
            "Settled exchanges whose reported counts contradict the answer, by the doubt: refuted, or implausible.",
            (*_MODEL, "doubt"),
        )

    def _make_keys(self, series: Series) -> None:
        """Usage and money by key, if enabled."""
        self.key_tokens = series.counter(
            "tokenweir_key_tokens",
            'Tokens by key (its id; "other" beyond the configured number of keys) and type.',
            ("key", "type"),
        )
        self.key_charge = series.counter(
            "tokenweir_key_charge_usd",
            'Amount billed, in USD, by key (its id; "other" beyond the configured number of keys).',
            ("key",),
        )

    def _make_settling(self, series: Series) -> None:
        """Settling of ended exchanges."""
        self.entries = series.counter(
            "tokenweir_ledger_entries",
            "Ledger entries by result: inserted, repeated (already recorded), adjusted (corrects an entry from a "
            "sweep), conflict (same id, other content: an alarm), dead_letter.",
            ("result",),
        )
        self.write = series.histogram(
            "tokenweir_ledger_write_seconds", "Duration of one ledger transaction.", buckets=WRITE_BOUNDS_S
        ).labels()
        self.write_failures = series.counter(
            "tokenweir_ledger_write_failures", "Ledger transactions that failed and are retried."
        )
        self.journal_damage = series.counter(
            "tokenweir_journal_damage",
            "Damaged ranges found in the journal at start; copies are in its quarantine folder.",
        )

        self.journal_replayed = series.counter(
            "tokenweir_journal_replayed",
            "Settled records that the ledger has lost, by a failover or a restore, and that were sent again.",
        )

    def _make_queue(self, series: Series) -> None:
        """Delivery between machines; 0 without a queue."""
        self.records_sent = series.counter(
            "tokenweir_queue_records",
            "Records sent to the queue, by delivery: first, or repeated (the first one was not confirmed, or the queue "
            "lost it).",
            ("delivery",),
        )
        self.outages = series.counter("tokenweir_queue_outages", "Outages of the queue or of the ledger behind it.")
        self.nodes = series.gauge("tokenweir_nodes", "Proxies in the lease registry, as read by this worker.")
        self.swept = series.counter(
            "tokenweir_swept_exchanges", "Exchanges of dead proxies that were settled from their leases."
        )
        self.leases_damaged = series.counter(
            "tokenweir_leases_damaged", "Leases of dead proxies that cannot be read: an alarm."
        )

    def _make_audit(self, series: Series) -> None:
        """Results of the ledger's integrity checks."""
        self.differences = series.gauge(
            "tokenweir_reconcile_differences",
            "Differences found by the last integrity check of the ledger, by check: an alarm if not 0.",
            ("check",),
        )
        self.audited_at = series.gauge(
            "tokenweir_reconcile_timestamp_seconds", "Unix time of the ledger's last integrity check."
        )
        self.dead_letters = series.gauge(
            "tokenweir_dead_letters",
            "Unresolved dead letters: records that the ledger could not take. An alarm if not 0. Read every minute; "
            "every process reports the same number.",
        )

    def committed(self, results: Mapping[str, int], entries: Sequence[LedgerEntry], duration_s: float) -> None:
        """Count one transaction. `results`: number by result; `entries`: the new entries, if known."""
        self.write.observe(duration_s)
        for result, count in results.items():
            if count:
                self.entries.labels(result).inc(count)
        for entry in entries:
            self._add(entry)

    def sent(self, records: int, *, again: int) -> None:
        """Count records that were added to the queue; `again`: how many of them were sent before."""
        self.records_sent.labels("first").inc(records - again)
        if again:
            self.records_sent.labels("repeated").inc(again)

    def _add(self, entry: LedgerEntry) -> None:
        """Count one new entry."""
        where = entry.provider, self._label(entry.model)
        details = EntryDetails.of(entry.details)
        counts = _tokens(entry, details.units)
        for kind, count in counts.items():
            self.tokens.of[*where, kind, entry.usage_source] += count
        # Corrections can be negative, counters cannot: only the ledger has corrections.
        if entry.cost_nusd is not None and entry.cost_nusd > 0:
            self.cost.of[where] += entry.cost_nusd
        if entry.charge_nusd is None:
            self.unpriced.of[where] += 1
        elif entry.charge_nusd > 0:
            self.charge.of[where] += entry.charge_nusd
        for unit in details.unpriced_units or ():
            self.unpriced_units.labels(entry.provider, self._name_label(unit)).inc()
        for path in details.unread or ():
            self.unread_usage.labels(entry.provider, self._name_label(path)).inc()
        for doubt, counts_in_doubt in ((REFUTED, details.refuted), (IMPLAUSIBLE, details.implausible)):
            if counts_in_doubt:
                self.contradicted_usage.labels(*where, doubt).inc()
        if self._keys_max:
            self._add_key(entry, counts)
        if self.projects is not None:
            self.projects.add(entry.key_id, counts, Nusd(max(0, entry.charge_nusd or 0)))

    def _add_key(self, entry: LedgerEntry, counts: Mapping[str, int]) -> None:
        key = self._key_label(entry.key_id)
        for kind, count in counts.items():
            self.key_tokens.labels(key, kind).inc(count)
        self.key_charge.labels(key).inc(max(0, entry.charge_nusd or 0) / NUSD_PER_USD)


def _tokens(entry: LedgerEntry, units: object) -> dict[str, int]:
    """An entry's token counts above 0, by type."""
    written = units.get("cache_write_tokens") if isinstance(units, dict) else None
    counts = (
        ("input", entry.prompt_tokens), ("cached_input", entry.cached_tokens), ("cache_write_input", written),
        ("output", entry.completion_tokens), ("reasoning_output", entry.reasoning_tokens),
    )  # fmt: skip
    return {kind: count for kind, count in counts if count and count > 0}
