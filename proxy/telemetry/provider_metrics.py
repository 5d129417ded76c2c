"""The Prometheus series of failing providers. Invariant: labels are configured names and closed sets of values."""

from __future__ import annotations

from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Counter, Gauge

from proxy.billing.record import Attempt

_REFUSED = 429


class ProviderMetrics:
    """The series of failed attempts and circuit breakers."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.attempts = Counter(
            "tokenweir_failed_attempts",
            "Attempts that failed before a response, so that another provider was tried, by reason: unreachable, "
            "refused (429) or failed (5xx).",
            ("provider", "reason"), registry=r,
        )  # fmt: skip
        self.breaker = Gauge(
            "tokenweir_provider_breaker",
            "1 for the current state of a provider's circuit breaker; summed over processes: how many have that state.",
            ("provider", "state"), registry=r,
        )  # fmt: skip

    def attempted(self, attempt: Attempt) -> None:
        """Count a provider that failed before its response; another provider is tried."""
        reason = "unreachable" if attempt.status is None else "refused" if attempt.status == _REFUSED else "failed"
        self.attempts.labels(attempt.provider, reason).inc()

    def watch(self, provider: str, states: Collection[str], state: Callable[[], str]) -> None:
        """Export this provider's breaker: `state` returns one of `states` and is called at each scrape."""
        for one in states:
            self.breaker.labels(provider, one).set_function(_is(one, state))


def _is(one: str, state: Callable[[], str]) -> Callable[[], float]:
    return lambda: float(state() == one)
