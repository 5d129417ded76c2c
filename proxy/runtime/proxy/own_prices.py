"""The prices of one key, as its requests would be charged now.

Invariant: a price is made by the same code as at admission, and shown without names of providers and rules, costs,
multipliers and versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from proxy.billing.byok import byok_lists
from proxy.billing.keys import ApiKey
from proxy.billing.pricing.book import PriceBook
from proxy.billing.pricing.prices import facts_of, price_text, stating
from proxy.billing.pricing.rules import Payer
from proxy.billing.record import Price
from proxy.console.api.own_key import LongPrompt, OwnPrice, Usd
from proxy.metering.usage import NOT_SAID, ServedAs
from proxy.runtime.machine.price_lookup import PriceLookup
from proxy.settings import ModelSettings, Settings, route

_NO_UNITS = frozenset({"version", "multipliers", "stated", "above_prompt_tokens", "service_tier"})


def own_prices(
    settings: Settings, book: PriceBook, key: ApiKey, payer: Payer, names: Iterable[str], now: float
) -> list[OwnPrice]:
    """The prices of these models that the key may use, in their order. `now`: Unix seconds."""
    lookup = PriceLookup(settings, book)
    found = []
    for name in dict.fromkeys(names):
        if key.allows(name) and (matched := route(settings.models, name)) is not None:
            lists = list(_lists(settings, lookup, key, payer, name, *matched, now))
            if lists:
                found.append(_shown(name, lists))
    return found


def _lists(
    settings: Settings,
    lookup: PriceLookup,
    key: ApiKey,
    payer: Payer,
    name: str,
    model: ModelSettings,
    passed: str,
    now: float,
) -> Iterator[Price | None]:
    """The list at each provider that the key's requests can be sent to."""
    for target in model.providers:
        lists = lookup.admitted(model, passed, target, now, payer, name)
        if key.byok is None:
            yield lists.price
        elif settings.providers[target.provider].byok:
            yield byok_lists(key.byok, *lists)[0]


def _shown(name: str, lists: list[Price | None]) -> OwnPrice:
    price, usd = lists[0], _usd(lists[0])
    others = [other for one in lists[1:] if (other := _usd(one)) is not None and other != usd]
    return OwnPrice(
        model=name,
        usd=usd,
        is_stated=price is not None and price.stated != (),
        long_prompts=[] if price is None else list(_long_prompts(price)),
        served_as={} if price is None else dict(_variants(price)),
        other_usd=[one for number, one in enumerate(others) if one not in others[:number]],
    )


def _usd(price: Price | None, prompt_tokens: int = 0, served_as: ServedAs = NOT_SAID) -> Usd | None:
    """None: there is no list."""
    if price is None or not price.tiers:
        return None
    text = price_text(price, prompt_tokens, served_as)
    return {unit: value for unit, value in text.items() if unit not in _NO_UNITS}


def _long_prompts(price: Price) -> Iterator[LongPrompt]:
    for tier in price.tiers[1:]:
        usd = _usd(price, tier.above_prompt_tokens + 1)
        if usd is not None:
            yield LongPrompt(tier.above_prompt_tokens, usd)


def _variants(price: Price) -> Iterator[tuple[str, Usd]]:
    """The prices for each fact of an answer that changes them."""
    usual = _usd(price)
    for fact in facts_of(price):
        usd = _usd(price, served_as=stating(fact))
        if usd is not None and usd != usual:
            yield fact, usd
