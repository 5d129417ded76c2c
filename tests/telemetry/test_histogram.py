"""Our histograms are scraped like prometheus-client's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client import Histogram as Theirs

from proxy.telemetry.histogram import Histogram

BOUNDS = (0.0005, 0.25, 1, 2.5, 81.92)
amounts = st.floats(0, 200) | st.sampled_from(BOUNDS)


@given(st.dictionaries(st.sampled_from(["tera", "electron", "other"]), st.lists(amounts), max_size=3))
def test_the_same_observations_give_the_same_exposition(observed: dict[str, list[float]]) -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Histogram("t_seconds", "Times.", ("provider",), buckets=BOUNDS, registry=ours)
    other = Theirs("t_seconds", "Times.", ("provider",), buckets=BOUNDS, registry=theirs)
    for provider, times in observed.items():
        for time in times:
            mine.labels(provider).observe(time)
            other.labels(provider).observe(time)
        mine.labels(provider)
        other.labels(provider)
    assert generate_latest(ours) == generate_latest(theirs)


def test_without_labels_it_is_there_from_the_first_scrape() -> None:
    registry = CollectorRegistry()
    Histogram("t_seconds", "Times.", buckets=BOUNDS, registry=registry)
    assert registry.get_sample_value("t_seconds_count") == 0
