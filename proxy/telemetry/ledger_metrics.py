"""The Prometheus series of the ledger, of what it counts, and of the way to it. Their help text is the documentation.

Law: as of all metrics (see `metrics.py`): what is counted here indicates, what is billed stands in the ledger. A key or
a project is a label only where an operator asked for it, by its id, and only the first so many of them.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from proxy.billing.entries import LedgerEntry
from proxy.billing.money import NUSD_PER_USD
from proxy.telemetry.histogram import Histogram
from proxy.telemetry.project_metrics import OTHER, ProjectMetrics

WRITE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_MODEL = ("provider", "model")


class LedgerMetrics:
    """Every series that is fed when entries are written. Call from the event-loop thread only."""

    def __init__(self, r: CollectorRegistry, label: Callable[[str], str], *, keys_max: int, projects_max: int) -> None:
        """`label`: a model's name as a label has it. `keys_max`, `projects_max`: how many have series of their own."""
        self._label = label
        self._keys_max = keys_max
        self._keys: set[str] = set()
        self._make_money(r)
        self._make_settling(r)
        self._make_queue(r)
        self._make_audit(r)
        if keys_max:
            self._make_keys(r)
        self.projects = ProjectMetrics(r, projects_max=projects_max) if projects_max else None
        """None: nobody asked for them"""

    def _make_money(self, r: CollectorRegistry) -> None:
        """What entries count."""
        self.tokens = Counter(
            "tokenweir_tokens",
            "Tokens by type (input, output; of the first cached_input and cache_write_input, of the second "
            "reasoning_output are parts) and by source (reported by the provider, or estimated). "
            "[gen_ai.client.inference.usage.*]",
            (*_MODEL, "type", "source"), registry=r,
        )  # fmt: skip
        self.cost = Counter(
            "tokenweir_cost_usd",
            "What providers charge for settled exchanges, in USD. Corrections are in the ledger only.",
            _MODEL,
            registry=r,
        )
        self.charge = Counter(
            "tokenweir_charge_usd", "What keys are billed for settled exchanges, in USD.", _MODEL, registry=r
        )
        self.unpriced = Counter(
            "tokenweir_unpriced",
            "Settled exchanges for which no price is known: served, billed nothing, to be looked at.",
            _MODEL,
            registry=r,
        )

    def _make_keys(self, r: CollectorRegistry) -> None:
        """What entries count, by key: only where it is asked for."""
        self.key_tokens = Counter(
            "tokenweir_key_tokens",
            'Tokens by key (its id; the first keys seen since the start, "other" after them) and type.',
            ("key", "type"), registry=r,
        )  # fmt: skip
        self.key_charge = Counter(
            "tokenweir_key_charge_usd",
            'What keys are billed, in USD, by key (its id; "other" after the first of them).',
            ("key",), registry=r,
        )  # fmt: skip

    def _make_settling(self, r: CollectorRegistry) -> None:
        """What becomes of exchanges that ended."""
        self.entries = Counter(
            "tokenweir_ledger_entries",
            "Ledger entries by result: inserted, repeated (known already), adjusted (what a sweep had settled, put "
            "right), conflict (same id, other content: an alarm), dead_letter.",
            ("result",),
            registry=r,
        )
        self.write = Histogram(
            "tokenweir_ledger_write_seconds",
            "Time of one ledger transaction.",
            buckets=WRITE_BOUNDS_S,
            registry=r,
        ).labels()
        self.write_failures = Counter(
            "tokenweir_ledger_write_failures",
            "Ledger transactions that failed and are tried again.",
            registry=r,
        )
        self.journal_damage = Counter(
            "tokenweir_journal_damage",
            "Damaged places found in the journal at start; copies are in its quarantine folder.",
            registry=r,
        )

    def _make_queue(self, r: CollectorRegistry) -> None:
        """What goes between machines; all of it stays 0 where there is no queue."""
        self.records_sent = Counter(
            "tokenweir_queue_records",
            "Records sent to the queue, by delivery: first, or repeated (the first one was not confirmed, or the queue "
            "lost it).",
            ("delivery",), registry=r,
        )  # fmt: skip
        self.outages = Counter(
            "tokenweir_queue_outages", "Times that the queue or the ledger behind it stopped answering.", registry=r
        )
        self.nodes = Gauge("tokenweir_nodes", "Proxies on the board of leases, as this worker sees it.", registry=r)
        self.swept = Counter(
            "tokenweir_swept_exchanges", "Exchanges of dead proxies that were settled from their leases.", registry=r
        )
        self.leases_damaged = Counter(
            "tokenweir_leases_damaged", "Leases of dead proxies that cannot be read: an alarm.", registry=r
        )

    def _make_audit(self, r: CollectorRegistry) -> None:
        """What checks find."""
        self.differences = Gauge(
            "tokenweir_reconcile_differences",
            "What differed in the last audit of the ledger, by check: an alarm if it is not 0.", ("check",), registry=r,
        )  # fmt: skip
        self.audited_at = Gauge(
            "tokenweir_reconcile_timestamp_seconds", "When the ledger was last audited, in Unix time.", registry=r
        )
        self.dead_letters = Gauge(
            "tokenweir_dead_letters",
            "Records that the ledger could not take and nobody has dealt with: an alarm if not 0. Looked up every "
            "minute; the same wherever it is asked.",
            registry=r,
        )

    def committed(self, results: Mapping[str, int], entries: Sequence[LedgerEntry], duration_s: float) -> None:
        """One transaction. `results`: how many by result; `entries`: those that are new, if that is known."""
        self.write.observe(duration_s)
        for result, count in results.items():
            if count:
                self.entries.labels(result).inc(count)
        tokens: Counts[tuple[str, ...]] = Counts()
        money: Counts[tuple[Counter, str, str]] = Counts()
        for entry in entries:
            self._add(entry, tokens, money)
        for labels, count in tokens.items():
            self.tokens.labels(*labels).inc(count)
        for (series, *names), amount in money.items():
            series.labels(*names).inc(amount if series is self.unpriced else amount / NUSD_PER_USD)

    def sent(self, records: int, *, again: int) -> None:
        """So many records are in the queue; `again` of them were sent before."""
        self.records_sent.labels("first").inc(records - again)
        if again:
            self.records_sent.labels("repeated").inc(again)

    def _add(
        self, entry: LedgerEntry, tokens: Counts[tuple[str, ...]], money: Counts[tuple[Counter, str, str]]
    ) -> None:
        """Add one entry to the sums of its batch."""
        where = entry.provider, self._label(entry.model)
        counts = dict(_tokens(entry))
        for kind, count in counts.items():
            tokens[(*where, kind, entry.usage_source)] += count
        # Corrections can be negative; a counter cannot. They are in the ledger.
        if entry.cost_usd is not None and entry.cost_usd > 0:
            money[self.cost, *where] += entry.cost_usd
        if entry.charge_usd is None:
            money[self.unpriced, *where] += 1
        elif entry.charge_usd > 0:
            money[self.charge, *where] += entry.charge_usd
        if self._keys_max:
            self._add_key(entry, counts)
        if self.projects is not None:
            self.projects.add(entry.key_id, counts, max(0, entry.charge_usd or 0))

    def _add_key(self, entry: LedgerEntry, counts: Mapping[str, int]) -> None:
        if len(self._keys) < self._keys_max:
            self._keys.add(entry.key_id)
        key = entry.key_id if entry.key_id in self._keys else OTHER
        for kind, count in counts.items():
            self.key_tokens.labels(key, kind).inc(count)
        self.key_charge.labels(key).inc(max(0, entry.charge_usd or 0) / NUSD_PER_USD)


def _tokens(entry: LedgerEntry) -> list[tuple[str, int]]:
    """What an entry counts, by type, where it is more than nothing."""
    units = entry.details.get("units")
    written = units.get("cache_write_tokens") if isinstance(units, dict) else None
    counts = (
        ("input", entry.prompt_tokens), ("cached_input", entry.cached_tokens), ("cache_write_input", written),
        ("output", entry.completion_tokens), ("reasoning_output", entry.reasoning_tokens),
    )  # fmt: skip
    return [(kind, count) for kind, count in counts if count and count > 0]
