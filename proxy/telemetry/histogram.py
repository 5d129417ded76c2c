"""Histograms that cost a request a tenth of a microsecond: no lock, no look-up of labels; summed up when scraped.

Law: observed on one thread only. A scrape may be one observation behind itself (a sum without its count).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Buckets:
    """One series: `counts` has one more element than there are (rising, inclusive upper) bounds."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, amount: float) -> None:
        """One more. On the hot path of every request and stream."""
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
            self.labels()  # it is there, at 0, from the first scrape
        registry.register(self)

    def labels(self, *values: str) -> Buckets:
        """The series of these values: to be kept, where it is fed often."""
        return self._series.setdefault(values, Buckets(self._bounds))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As Prometheus wants it: cumulative."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, series in list(self._series.items()):
            family.add_metric(values, list(self._cumulative(series.counts)), series.sum)
        yield family

    def _cumulative(self, counts: Sequence[int]) -> Iterator[tuple[str, float]]:
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
            total += count
            yield "+Inf" if bound == float("inf") else str(float(bound)), total
