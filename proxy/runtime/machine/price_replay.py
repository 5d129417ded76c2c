"""What an exchange of the past comes to at the prices that the configuration has now. Law: as admission asks, so here:
the model's own price, or else what the built-in book said of its first provider when the exchange began."""

from __future__ import annotations

from proxy.billing.entries import LedgerEntry
from proxy.billing.prices import PriceBook
from proxy.billing.record import Price
from proxy.settings import Settings, route


class CurrentPrices:
    """Callable: a terminal entry → (price, cost), each None where none is known."""

    def __init__(self, settings: Settings, book: PriceBook) -> None:
        self._settings = settings
        self._book = book

    def __call__(self, entry: LedgerEntry) -> tuple[Price | None, Price | None]:
        listed = self._listed(entry, entry.provider, entry.upstream_model)
        found = route(self._settings.models, entry.model)
        if found is None:
            return listed, listed
        model, passed = found
        # What another provider charges now says nothing of what this one did.
        mine = [one for one in model.providers if one.provider == entry.provider]
        exact = [one for one in mine if (one.upstream_model or passed) == entry.upstream_model]
        cost = (exact or mine)[0].cost if mine else None
        first = model.providers[0]
        price = model.price or (
            self._listed(entry, first.provider, first.upstream_model or passed) if exact else listed
        )
        return price, cost or listed

    def _listed(self, entry: LedgerEntry, provider: str, upstream_model: str) -> Price | None:
        settings = self._settings.providers.get(provider)
        base_url = "" if settings is None else settings.base_url
        return self._book.price(provider=provider, base_url=base_url, model=upstream_model, at=entry.started_at)
