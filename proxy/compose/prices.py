"""What an exchange of the past comes to at the prices that the configuration has now. Law: as admission asks, so here:
the model's own price, or else what the built-in book said when the exchange began."""

from __future__ import annotations

from proxy.billing.entries import LedgerEntry
from proxy.billing.prices import PriceBook
from proxy.billing.record import Price
from proxy.settings import Settings, route


class PricesNow:
    """Callable: a terminal entry → (price, cost), each None where none is known."""

    def __init__(self, settings: Settings, book: PriceBook) -> None:
        self._settings = settings
        self._book = book

    def __call__(self, entry: LedgerEntry) -> tuple[Price | None, Price | None]:
        listed = self._listed(entry)
        found = route(self._settings.models, entry.model)
        if found is None:
            return listed, listed
        model, _ = found
        # What another provider charges now says nothing of what this one did.
        cost = model.cost if model.provider == entry.provider else None
        return model.price or listed, cost or listed

    def _listed(self, entry: LedgerEntry) -> Price | None:
        provider = self._settings.providers.get(entry.provider)
        base_url = "" if provider is None else provider.base_url
        return self._book.price(
            provider=entry.provider, base_url=base_url, model=entry.upstream_model, at=entry.started_at
        )
