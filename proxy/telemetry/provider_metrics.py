"""The Prometheus series about providers that fail. Labels are configured names and closed sets of words."""

from __future__ import annotations

from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Counter, Gauge

from proxy.billing.record import Attempt

_REFUSED = 429


class ProviderMetrics:
    """What comes of providers that give nothing."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.attempts = Counter(
            "tokenweir_failed_attempts",
            "Providers that gave nothing, so that another one was asked for the same exchange: unreachable, refused "
            "(429) or failed (5xx).",
            ("provider", "reason"), registry=r,
        )  # fmt: skip
        self.breaker = Gauge(
            "tokenweir_provider_breaker",
            "1 for the state that a provider's circuit breaker is in; of several processes, how many see it so.",
            ("provider", "state"), registry=r,
        )  # fmt: skip

    def attempted(self, attempt: Attempt) -> None:
        """A provider gave nothing, and another one is asked."""
        reason = "unreachable" if attempt.status is None else "refused" if attempt.status == _REFUSED else "failed"
        self.attempts.labels(attempt.provider, reason).inc()

    def watch(self, provider: str, states: Collection[str], state: Callable[[], str]) -> None:
        """Show the breaker of this provider, which is in one of these states, whenever somebody looks."""
        for one in states:
            self.breaker.labels(provider, one).set_function(_is(one, state))


def _is(one: str, state: Callable[[], str]) -> Callable[[], float]:
    return lambda: float(state() == one)
