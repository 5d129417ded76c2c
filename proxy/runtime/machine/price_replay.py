"""The price and the cost of a past exchange by the present configuration.

Invariant: the rule is that of admission: the model's own price, or else the built-in book's for the model's first
provider at the time when the exchange began.
"""

from __future__ import annotations

from proxy.billing.entries import LedgerEntry
from proxy.billing.price_book import PriceBook
from proxy.billing.record import Price
from proxy.settings import Settings, route


class CurrentPrices:
    """Callable: a terminal entry → (price, cost), each None if unknown."""

    def __init__(self, settings: Settings, book: PriceBook) -> None:
        self._settings = settings
        self._book = book

    def __call__(self, entry: LedgerEntry) -> tuple[Price | None, Price | None]:
        listed = self._listed(entry, entry.provider, entry.upstream_model)
        found = route(self._settings.models, entry.model)
        if found is None:
            return listed, listed
        model, passed = found
        # Only the provider that served the exchange: the cost of another is unrelated.
        same = [target for target in model.providers if target.provider == entry.provider]
        exact = [target for target in same if (target.upstream_model or passed) == entry.upstream_model]
        cost = (exact or same)[0].cost if same else None
        first = model.providers[0]
        if model.price is not None:
            price: Price | None = model.price.at(entry.started_at)
        else:
            price = self._listed(entry, first.provider, first.upstream_model or passed) if exact else listed
        return price, listed if cost is None else cost.at(entry.started_at)

    def _listed(self, entry: LedgerEntry, provider: str, upstream_model: str) -> Price | None:
        settings = self._settings.providers.get(provider)
        base_url = "" if settings is None else settings.base_url
        return self._book.price(provider=provider, base_url=base_url, model=upstream_model, at=entry.started_at)
