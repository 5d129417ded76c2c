"""Settings → the table that routes a model's name to providers and prices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from proxy.billing.pricing.book import PriceBook
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import Price
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models, Route
from proxy.runtime.machine.price_lookup import PriceLists, PriceLookup
from proxy.runtime.proxy.tokenizers import Tokenizers
from proxy.settings import ModelSettings, ProviderSettings, Settings, TargetSettings
from proxy.settings import route as find_model

# Payers whose price lists at one provider of a model are kept.
PAYERS_KEPT = 1_024
_UNKNOWN: tuple[float, float, PriceLists | None] = (0.0, 0.0, None)


def needs_price_book(settings: Settings) -> bool:
    """True if a price or a cost of any model is looked up in the built-in book."""
    return any(
        model.price is None or any(target.cost is None for target in model.providers)
        for model in settings.models.values()
    )


def price_lookup(book: PriceBook) -> Callable[[ProviderSettings, str], Price | None]:
    """The built-in book at the present time, for `settings.require_prices`."""

    def lookup(provider: ProviderSettings, model: str) -> Price | None:
        return book.price(provider=provider.name, base_url=provider.base_url, model=model, at=time.time())

    return lookup


def model_table(
    settings: Settings, book: PriceBook, providers: Mapping[str, Provider], tokenizers: Tokenizers
) -> Models:
    """`providers`: by their names in the settings."""
    lookup = PriceLookup(settings, book)

    def route_of(requested: str, model: ModelSettings, passed: str) -> Route:
        """The route of a model: its first provider, then the others. `passed`: the name that a pattern passes
        upstream."""
        first, counter = model.providers[0], tokenizers.of(model)

        def route_to(target: TargetSettings, others: tuple[Route, ...]) -> Route:
            provider, name = providers[target.provider], target.upstream_model or passed

            known: dict[Payer, tuple[float, float, PriceLists]] = {}  # from when and until when they apply

            def prices(at: float, payer: Payer, other: str | None = None) -> PriceLists:
                if other is not None:
                    return lookup.other(other, target.provider, at, payer)
                since, until, lists = known.get(payer, _UNKNOWN)
                if lists is None or not since <= at < until:
                    lists = lookup.admitted(model, passed, target, at, payer, requested)
                    if len(known) >= PAYERS_KEPT:
                        known.clear()
                    known[payer] = at, lookup.unchanged_until(at), lists
                return lists

            by_time = provider.settings.hidden_by_time if model.hidden_by_time is None else model.hidden_by_time
            return Route(provider, name, prices, model.completion_tokens_max, target.weight, others, counter, by_time)

        return route_to(first, tuple(route_to(target, ()) for target in model.providers[1:]))

    def by_pattern(name: str) -> Route | None:
        found = find_model(settings.models, name)
        return None if found is None else route_of(name, *found)

    named = {name: route_of(name, model, "") for name, model in settings.models.items() if not model.is_pattern}
    return Models(named, by_pattern)
