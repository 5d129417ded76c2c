"""The Prometheus series of the proxy. The help texts are the documentation.

Invariants: names end in base units; labels are bounded (configured providers and models, any other model is "other")
and never an address or a client's text. Bill from the ledger, never from metrics.
The help texts give OpenTelemetry's GenAI names in brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from proxy import __version__
from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import LedgerEntry
from proxy.billing.record import Attempt, Opened, Outcome, UsageRecord
from proxy.metering.usage import UsageSource
from proxy.telemetry.budget_metrics import BudgetMetrics
from proxy.telemetry.histogram import Buckets, Series
from proxy.telemetry.later_metrics import ERROR_BOUNDS, LaterMetrics
from proxy.telemetry.ledger_metrics import LedgerMetrics
from proxy.telemetry.log_lines import ExchangeLog
from proxy.telemetry.price_metrics import PriceMetrics
from proxy.telemetry.project_metrics import OTHER
from proxy.telemetry.sink_metrics import SinkMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

TTFT_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 120)
DURATION_BOUNDS_S = tuple(0.01 * 2**n for n in range(14))
OVERHEAD_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1)
LATE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
INTER_EVENT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24)

_MODEL = ("provider", "model")
_REFUSED = 429
_TIMINGS = detail_name(EntryDetails.provider_timings)


Gaps = Buckets  # times between two pieces of a stream


@dataclass(frozen=True, slots=True)
class _Bound:
    """The series of one provider and model."""

    duration: Buckets
    ttft: Buckets
    estimate_error: Buckets


class ProviderMetrics:
    """The series of failed attempts and circuit breakers."""

    def __init__(self, series: Series) -> None:
        self.attempts = series.counter(
            "tokenweir_failed_attempts",
            "Attempts that failed before a response, so that another provider was tried, by reason: unreachable, "
            "refused (429) or failed (5xx).",
            ("provider", "reason"),
        )
        self.breaker = series.gauge(
            "tokenweir_provider_breaker",
            "1 for the current state of a provider's circuit breaker; summed over processes: how many have that state.",
            ("provider", "state"),
        )

    def attempted(self, attempt: Attempt) -> None:
        """Count a provider that failed before its response; another provider is tried."""
        reason = "unreachable" if attempt.status is None else "refused" if attempt.status == _REFUSED else "failed"
        self.attempts.labels(attempt.provider, reason).inc()

    def watch(self, provider: str, states: Collection[str], state: Callable[[], str]) -> None:
        """Export this provider's breaker: `state` returns one of `states` and is called at each scrape."""
        for one in states:
            self.breaker.labels(provider, one).set_function(_is(one, state))

    def forget(self, provider: str, states: Collection[str]) -> None:
        """Export this provider's breaker no longer."""
        for one in states:
            self.breaker.remove(provider, one)


def _is(one: str, state: Callable[[], str]) -> Callable[[], float]:
    return lambda: float(state() == one)


class Metrics:
    """The registry and its series. Call from the event-loop thread only, except for `exposition`."""

    def __init__(
        self,
        models: Collection[str] = (),
        *,
        keys_max: int = 0,
        projects_max: int = 0,
        log: ExchangeLog | None = None,
    ) -> None:
        """`models`: the configured names, the only ones used as labels. `keys_max`, `projects_max`: how many keys and
        projects are used as labels. `log`: also receives every counted event."""
        self._models = frozenset(models)
        self._log = log
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each, which no dashboard uses
        self.registry = r = CollectorRegistry()
        self._series = series = Series(r)
        ProcessCollector(registry=r)
        PlatformCollector(registry=r)
        self._bound: dict[tuple[str, str], _Bound] = {}
        self._admitted = 0
        self._terminal = 0
        series.gauge(
            "tokenweir_build_info", "Always 1; the label is the version of this process.", ("version",)
        ).labels(__version__).set(1)
        self.configuration = series.gauge(
            "tokenweir_configuration_info",
            "1 for the configuration that a process applies, by the first digits of the file's SHA-256.",
            ("digest",),
        )
        self.reload_failed = series.gauge(
            "tokenweir_configuration_reload_failed",
            "1 if the last reload of the configuration failed, so that the previous one still applies.",
        )
        self._make_counts(series)
        self._make_times(series)
        self.ledger = LedgerMetrics(series, self.label, keys_max=keys_max, projects_max=projects_max)
        self.budgets = BudgetMetrics(series)
        self.providers = ProviderMetrics(series)
        self.sinks = SinkMetrics(series)
        self.later = LaterMetrics(series, self.label)
        self.prices = PriceMetrics(series)

    def _make_counts(self, series: Series) -> None:
        """Counters of exchanges."""
        self.exchanges = series.counts("tokenweir_exchanges", "Ended exchanges, by outcome.", (*_MODEL, "outcome"))
        self.refusals = series.counter(
            "tokenweir_refusals", "Requests that were not admitted, by HTTP status and error code.", ("status", "code")
        )
        self.leaves = series.counter(
            "tokenweir_client_disconnects",
            "Clients that disconnected before the end, by the policy applied.",
            ("provider", "policy"),
        )
        self.usage_missing = series.counter(
            "tokenweir_usage_missing",
            "Exchanges whose usage was estimated because the provider reported none, by outcome.",
            (*_MODEL, "outcome"),
        )
        self.dimension_overflows = series.counter(
            "tokenweir_dimension_overflow",
            "Dimension values of requests that got no id of their own, by reason: new_values (the key had as many new "
            "ones as it may within an hour), or unavailable (the ledger did not answer).",
            ("reason",),
        )

        self.spans = series.counter(
            "tokenweir_trace_spans",
            "Spans of exchanges for the OTLP collector, by result: sent, or dropped because it is down or slow.",
            ("result",),
        )

    def _make_times(self, series: Series) -> None:
        """Histograms of durations, and of the error of estimates."""
        self.ttft = series.histogram(
            "tokenweir_time_to_first_token_seconds",
            "Time from a request's arrival until its first generated token is sent to the client. "
            "[gen_ai.server.time_to_first_token]",
            _MODEL, buckets=TTFT_BOUNDS_S,
        )  # fmt: skip
        self.duration = series.histogram(
            "tokenweir_exchange_duration_seconds",
            "Time from a request's arrival to the end of its exchange, drains included. "
            "[gen_ai.server.request.duration]",
            _MODEL, buckets=DURATION_BOUNDS_S,
        )  # fmt: skip
        self.drain = series.histogram(
            "tokenweir_provider_drain_seconds",
            "How long a provider's stream was drained after its client disconnected, if the policy is drain.",
            ("provider",), buckets=DURATION_BOUNDS_S,
        )  # fmt: skip
        self.overhead = series.histogram(
            "tokenweir_relay_overhead_seconds",
            "Latency that the proxy adds before it sends a request upstream: from its arrival to its dispatch.",
            buckets=OVERHEAD_BOUNDS_S,
        ).labels()
        self.gaps = series.histogram(
            "tokenweir_inter_event_seconds",
            "Time between two pieces of a stream from the provider. [gen_ai.client.operation.time_per_output_chunk]",
            buckets=INTER_EVENT_BOUNDS_S,
        ).labels()
        self.late = series.histogram(
            "tokenweir_event_loop_late_seconds",
            "Delay of the event loop of a process, by a probe four times a second: all its streams wait for so long. "
            "The log names the function that takes 0.1 s or more.",
            buckets=LATE_BOUNDS_S,
        ).labels()
        self.prefill = series.histogram(
            "tokenweir_provider_prefill_seconds",
            "Time to the first token as reported by the provider (SiliconStorm's prefill_time).",
            _MODEL, buckets=TTFT_BOUNDS_S,
        )  # fmt: skip
        self.decode = series.histogram(
            "tokenweir_provider_decode_seconds",
            "Mean time per token of a response as reported by the provider (SiliconStorm's decode_time_arr). "
            "[gen_ai.server.time_per_output_token]",
            _MODEL, buckets=TTFT_BOUNDS_S,
        )  # fmt: skip
        self.estimate_error = series.histogram(
            "tokenweir_estimate_error_ratio",
            "Relative error of the estimate, measured on exchanges whose usage was reported: of each model, on the "
            "first 200, then on one in eight.",
            _MODEL, buckets=ERROR_BOUNDS,
        )  # fmt: skip

    def gauges(
        self,
        *,
        in_flight: Callable[[], float],
        websockets: Callable[[], float],
        depth: Callable[[], float],
        oldest_age_s: Callable[[], float],
        unwritten: Callable[[], float],
    ) -> None:
        """The gauges that are read at each scrape."""
        series = self._series
        series.gauge("tokenweir_exchanges_in_flight", "Exchanges that have begun and not ended.").set_function(
            in_flight
        )
        series.gauge("tokenweir_websockets", "Open WebSockets of clients, idle ones included.").set_function(websockets)
        series.gauge(
            "tokenweir_journal_pending_records", "Ended exchanges in the journal that the ledger does not have yet."
        ).set_function(depth)
        series.gauge("tokenweir_journal_oldest_pending_age_seconds", "Age of the oldest pending record.").set_function(
            oldest_age_s
        )
        series.gauge(
            "tokenweir_journal_unwritten_records", "Ended exchanges kept in memory because the disk refused them."
        ).set_function(unwritten)
        series.gauge(
            "tokenweir_unsettled_exchanges",
            "Exchanges admitted minus terminal ledger entries, since the start: 0 when idle.",
        ).set_function(lambda: self._admitted - self._terminal)

    def use_models(self, models: Collection[str]) -> None:
        """Use these names as labels from now on."""
        self._models = frozenset(models)
        self._bound.clear()

    def configured(self, digest: str, *, failed: bool) -> None:
        """Export the digest of the configuration that applies; `failed`: the last reload has changed nothing."""
        self.configuration.clear()
        self.configuration.labels(digest).set(1)
        self.reload_failed.set(failed)

    def label(self, model: str) -> str:
        """The configured name, or "other"."""
        return model if model in self._models else OTHER

    # -- from the gateway
    def opened(self, *, overhead_s: float) -> None:
        """Count an admitted exchange. `overhead_s`: from its arrival to its dispatch."""
        self._admitted += 1
        self.overhead.observe(overhead_s)

    def recovered(self, count: int) -> None:
        """Count exchanges that were recovered after a crash."""
        self._admitted += count

    def refused(self, status: int, code: str | None) -> None:
        """Count a refused request."""
        self.refusals.labels(str(status), code or "").inc()
        if self._log is not None:
            self._log.refused(status, code)

    def attempted(self, attempt: Attempt) -> None:
        """Count a provider that failed before its response; another provider is tried."""
        self.providers.attempted(attempt)

    def ended(self, record: UsageRecord, *, estimate_error: float | None) -> None:
        """Count an ended exchange. `estimate_error`: signed, relative."""
        opened = record.opened
        provider, model = opened.provider, self.label(opened.model)
        bound = self._bound.get((provider, model)) or self._bind(provider, model)
        self.exchanges.of[provider, model, record.outcome] += 1
        if self._log is not None:
            self._log.ended(record)
        bound.duration.observe(record.duration_ms / 1000)
        if record.first_token_ms is not None and opened.streamed:
            bound.ttft.observe(record.first_token_ms / 1000)
        details = record.details
        if record.outcome is Outcome.CLIENT_LEFT:
            self._left(provider, EntryDetails.of(details))
        if record.reading.source is UsageSource.ESTIMATED:
            self.usage_missing.labels(provider, model, record.outcome).inc()
        if timings := details.get(_TIMINGS):
            self._observe_timings(provider, model, timings)
        if estimate_error is not None:
            bound.estimate_error.observe(abs(estimate_error))

    def estimated(self, opened: Opened, error: float) -> None:
        """Count the estimate's error of one exchange that becomes known only after its end: signed, relative."""
        self.estimate_error.labels(opened.provider, self.label(opened.model)).observe(abs(error))

    def overflowed(self, reason: str) -> None:
        """Count an overflow of a dimension value."""
        self.dimension_overflows.labels(reason).inc()

    def _left(self, provider: str, details: EntryDetails) -> None:
        """Count a client's disconnect, by the policy in the record's `details`."""
        self.leaves.labels(provider, details.policy or "cancel").inc()
        if details.read_on_ms is not None:
            self.drain.labels(provider).observe(details.read_on_ms / 1000)

    def _observe_timings(self, provider: str, model: str, timings: Mapping[str, float]) -> None:
        """The provider's reported timings, in milliseconds."""
        if "prefill_time" in timings:
            self.prefill.labels(provider, model).observe(timings["prefill_time"] / 1000)
        if "decode_time_mean" in timings:
            self.decode.labels(provider, model).observe(timings["decode_time_mean"] / 1000)

    def _bind(self, provider: str, model: str) -> _Bound:
        """The series of one provider and model, looked up once: a look-up costs more than an observation."""
        for outcome in Outcome:
            self.exchanges.of.setdefault((provider, model, outcome), 0)
        bound = self._bound[provider, model] = _Bound(
            duration=self.duration.labels(provider, model),
            ttft=self.ttft.labels(provider, model),
            estimate_error=self.estimate_error.labels(provider, model),
        )
        return bound

    # -- from the ledger
    def committed(self, results: Mapping[str, int], *, entries: Sequence[LedgerEntry], duration_s: float) -> None:
        """Count one transaction. `results`: number by result; `entries`: the new entries, if known."""
        self._terminal += sum(results.values())
        self.ledger.committed(results, entries, duration_s)

    def confirmed(self, records: int) -> None:
        """Count records of this proxy that workers wrote and the ledger confirmed."""
        self._terminal += records

    def exposition(self) -> bytes:
        """The body of GET /metrics."""
        return generate_latest(self.registry)
