"""The Prometheus series of the price list that is refreshed. The help texts are the documentation."""

from __future__ import annotations

from proxy.telemetry.histogram import Series


class PriceMetrics:
    """The series of `prices.refresh`; 0 without it."""

    def __init__(self, series: Series) -> None:
        self.checked_at = series.gauge(
            "tokenweir_price_list_check_timestamp_seconds",
            "Unix time of the last successful check for a newer price list, by any process.",
        )
        self.failed = series.gauge(
            "tokenweir_price_list_check_failed",
            "1 if the last check for a newer price list failed, or the whole list was refused: the previous one "
            "applies.",
        )
        self.refused = series.gauge(
            "tokenweir_price_list_refused_models",
            "Models whose prices in the newest list were refused, so that their earlier prices apply.",
        )
        self.rated = series.counter(
            "tokenweir_rated_exchanges", "Exchanges without a price that were rated when their price was known."
        )
