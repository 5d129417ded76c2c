"""The price lists of an exchange by the configuration: at admission, and for a past exchange.

Invariants: a past exchange has the lists that this configuration gives for its admission: the model's own list, or else
the built-in book's list for the time when the exchange began; then the rules apply. Another model in the same answer
has the lists of a request for that model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from proxy.billing.details import EntryDetails
from proxy.billing.entries import LedgerEntry
from proxy.billing.pricing.book import MINUTE_S, PriceBook
from proxy.billing.pricing.rules import NOBODY, Payer, PricedRequest, PriceSide, RuledLists
from proxy.billing.record import Price
from proxy.settings import ModelSettings, Settings, TargetSettings, route


class PriceLists(NamedTuple):
    """The price lists of one exchange; None: unknown."""

    price: Price | None
    """the list of charges to the key's owner"""
    cost: Price | None
    """the list of the provider's costs"""


def _changes(settings: Settings) -> list[float]:
    """The times at which a configured list or rule begins or ends, in Unix seconds and order."""
    models = settings.models.values()
    lists = (model.price for model in models), (target.cost for model in models for target in model.providers)
    times = {start for one in chain(*lists) if one is not None for start, _ in one.steps}
    rules = settings.price_rules.values()
    times.update(time for rule in rules for time in (rule.begins, rule.ends) if time is not None)
    return sorted(times)


class PriceLookup:
    """Looks up price lists by one configuration."""

    def __init__(
        self, settings: Settings, book: PriceBook, payer_of: Callable[[str], Payer] = lambda _key_id: NOBODY
    ) -> None:
        """`payer_of`: key id → the payer, for past exchanges; needed only if the settings have rules."""
        self._settings = settings
        self._book = book
        self._payer_of = payer_of
        self._ruled = RuledLists(tuple(settings.price_rules.values()))
        self._changes = _changes(settings)

    def unchanged_until(self, at: float) -> float:
        """The first time after `at`, in Unix seconds, at which a list may change."""
        next_minute = (at // MINUTE_S + 1) * MINUTE_S  # of the book, and of rules with hours
        later = bisect_right(self._changes, at)
        return min([next_minute, *self._changes[later : later + 1]])

    def admitted(
        self, model: ModelSettings, passed: str, target: TargetSettings, at: float, payer: Payer, requested: str
    ) -> PriceLists:
        """The lists of a request for a model, at one of its providers. `passed`: the name that a pattern passes
        upstream."""
        # The price is the same whichever provider answers: the model's own, or the book's for the first one.
        first = model.providers[0]
        price = model.price.at(at) if model.price else self._listed(first.provider, first.upstream_model or passed, at)
        upstream_model = target.upstream_model or passed
        cost = target.cost.at(at) if target.cost else self._listed(target.provider, upstream_model, at)
        if not self._ruled.rules:
            return PriceLists(price, cost)
        return self._after_rules(PriceLists(price, cost), PricedRequest(payer, requested, target.provider, at))

    def named(self, requested: str, provider: str, upstream_model: str, at: float, payer: Payer) -> PriceLists:
        """The lists of a request by the name `requested` that this provider served as `upstream_model`, even if the
        provider no longer serves it."""
        found = route(self._settings.models, requested)
        if found is None:
            listed = self._listed(provider, upstream_model, at)
            return self._after_rules(PriceLists(listed, listed), PricedRequest(payer, requested, provider, at))
        model, passed = found
        # Only the provider that served the exchange: the cost of another is unrelated.
        same = [target for target in model.providers if target.provider == provider]
        for target in same:
            if (target.upstream_model or passed) == upstream_model:
                return self.admitted(model, passed, target, at, payer, requested)
        own = (model.price, same[0].cost if same else None)
        lists = PriceLists(*(list_.at(at) if list_ else self._listed(provider, upstream_model, at) for list_ in own))
        return self._after_rules(lists, PricedRequest(payer, requested, provider, at))

    def other(self, model: str, provider: str, at: float, payer: Payer) -> PriceLists:
        """The lists of another model that an answer used."""
        return self.named(model, provider, model, at, payer)

    def __call__(self, entry: LedgerEntry, model: str | None = None) -> PriceLists:
        """The lists of a past exchange, by its terminal entry; or of another `model` that the exchange used."""
        payer = self._payer_of(entry.key_id) if self._ruled.rules else NOBODY
        if model is None and EntryDetails.of(entry.details).served_instead_of is not None:
            model = entry.upstream_model
        if model is not None:
            return self.other(model, entry.provider, entry.started_at, payer)
        return self.named(entry.model, entry.provider, entry.upstream_model, entry.started_at, payer)

    def _after_rules(self, lists: PriceLists, request: PricedRequest) -> PriceLists:
        if not self._ruled.rules:
            return lists
        return PriceLists(
            self._ruled.after(lists.price, request, PriceSide.CHARGE),
            self._ruled.after(lists.cost, request, PriceSide.COST),
        )

    def _listed(self, provider: str, upstream_model: str, at: float) -> Price | None:
        settings = self._settings.providers.get(provider)
        base_url = "" if settings is None else settings.base_url
        return self._book.price(provider=provider, base_url=base_url, model=upstream_model, at=at)
