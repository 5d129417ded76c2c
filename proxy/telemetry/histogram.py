"""Histograms and counts for the hot path: 0.1 µs an observation, without a lock or a label look-up; cumulated at the
scrape. `Series` declares them, and counters and gauges, in a registry.

Invariant: observed on one thread only. A scrape may include an observation in the sum but not in its bucket.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class Buckets:
    """One series. `bounds`: rising, inclusive upper bounds; `counts` has one more element, for larger amounts."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, amount: float) -> None:
        """Count one observation. Hot path of every request and stream."""
        self.counts[bisect_left(self._bounds, amount)] += 1
        self.sum += amount


class Histogram(Collector):
    """All series of one name."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._bounds = buckets
        self._series: dict[tuple[str, ...], Buckets] = {}
        if not labels:
            self.labels()  # the first scrape shows it at 0
        registry.register(self)

    def labels(self, *values: str) -> Buckets:
        """The series of these label values. Callers on the hot path keep it."""
        return self._series.setdefault(values, Buckets(self._bounds))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The cumulative buckets that Prometheus expects."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, series in list(self._series.items()):
            family.add_metric(values, list(self._cumulative(series.counts)), series.sum)
        yield family

    def _cumulative(self, counts: Sequence[int]) -> Iterator[tuple[str, float]]:
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
            total += count
            yield "+Inf" if bound == float("inf") else str(float(bound)), total


class Counts(Collector):
    """All counters of one name. They count in `per`-ths of the unit that is shown."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], *, registry: CollectorRegistry, per: int = 1
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._per = per
        self.of: defaultdict[tuple[str, ...], int] = defaultdict(int)
        """label values → count"""
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counts as Prometheus expects them."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, count in list(self.of.items()):
            family.add_metric(values, count / self._per)
        yield family


class Series:
    """Declares series in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counter = partial(Counter, registry=registry)
        self.counts = partial(Counts, registry=registry)
        self.gauge = partial(Gauge, registry=registry)
        self.histogram = partial(Histogram, registry=registry)
