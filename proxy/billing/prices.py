"""Price lists, and what usage costs at them.

Law: a price is a whole number of nUSD per million tokens, or it is not known (None, never 0). One charge is
rounded once. The tier is chosen by the whole prompt, and holds for every token of the exchange.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from proxy.billing.money import (
    nusd_from_usd,
    nusd_from_usd_rounded_half_up,
    nusd_rounded_half_up,
    usd_text,
)
from proxy.billing.record import Bills, Price, Rates
from proxy.metering.usage import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, Provider, TieredPrices

# The dearest model of the built-in book costs 600; above this somebody wrote a price per token, or in cents.
USD_PER_MILLION_MAX = 10_000
# Looked-up prices that are kept, misses too: any client may ask for any name where "*" is configured.
PRICES_KEPT = 4096
# No model is named longer; a miss reads through every pattern of the book, so longer names are not looked up.
MODEL_CHARS_MAX = 200
_MINUTE_S = 60


def rates_for(price: Price, prompt_tokens: int | None) -> Rates:
    """The tier that holds for a prompt of this length; the first where the length is not known."""
    tiers = price.tiers
    if len(tiers) == 1:
        return tiers[0]
    reached = [tier for tier in tiers if (prompt_tokens or 0) > tier.above_prompt_tokens]
    return reached[-1] if reached else tiers[0]


def charge(price: Price, usage: Usage, bills: Bills) -> int:
    """What `usage` costs, in nUSD, of the tokens that `bills` names. A count nobody reported adds nothing."""
    rates = rates_for(price, usage.prompt_tokens)
    match bills:
        case Bills.EVERYTHING:
            token_prices = _prompt(rates, usage) + _output(rates, usage)
        case Bills.PROMPT:
            token_prices = _prompt(rates, usage)
        case Bills.OUTPUT:
            token_prices = _output(rates, usage)
        case Bills.NOTHING:
            token_prices = 0
    # Audio, images, cache writes, searches: new dimensions of `Usage` and `Rates` become new addends here.
    return nusd_rounded_half_up(token_prices)


def _prompt(rates: Rates, usage: Usage) -> int:
    prompt = usage.prompt_tokens or 0
    # Cached tokens are a part of the prompt: a provider that reports more of them than that is not believed.
    cached = min(usage.cached_tokens or 0, prompt)
    return (prompt - cached) * rates.input + cached * rates.cached_input


def _output(rates: Rates, usage: Usage) -> int:
    return (usage.completion_tokens or 0) * rates.output


def rate_from_usd(usd: object) -> int:
    """A price as a person wrote it, in USD per million tokens → nUSD per million tokens, exact.

    A float counts as the shortest decimal that means it: 0.1 is a tenth. Raises ValueError; names no field.
    """
    if isinstance(usd, bool) or not isinstance(usd, int | float | str | Decimal):
        raise ValueError("must be a number of USD per million tokens")  # noqa: TRY004 - one error for all of it
    rate = nusd_from_usd(str(usd))
    if not 0 <= rate <= nusd_from_usd(USD_PER_MILLION_MAX):
        raise ValueError(f"must be from 0 to {USD_PER_MILLION_MAX} USD per million tokens")
    return rate


def configured(rates: Rates) -> Price:
    """A price list from the configuration. The same numbers have the same version on every machine."""
    numbers = f"{rates.input}/{rates.cached_input}/{rates.output}/{rates.above_prompt_tokens}"
    return Price(f"config-{hashlib.sha256(numbers.encode()).hexdigest()[:8]}", (rates,))


def price_text(price: Price, prompt_tokens: int | None) -> dict[str, str | int]:
    """The tier that held, to be kept with what it made: USD per million tokens, as decimal strings."""
    return dict(_shown(price.version, rates_for(price, prompt_tokens)))


@lru_cache(maxsize=PRICES_KEPT)
def _shown(version: str, rates: Rates) -> Mapping[str, str | int]:
    shown: dict[str, str | int] = {
        "version": version,
        "input": usd_text(rates.input),
        "cached_input": usd_text(rates.cached_input),
        "output": usd_text(rates.output),
    }
    return shown | ({"above_prompt_tokens": rates.above_prompt_tokens} if rates.above_prompt_tokens else {})


class PriceBook:
    """The built-in list prices of known providers, from the `genai-prices` package as it is installed."""

    def __init__(self) -> None:
        """Load the book: a good part of a second, so it is made once, and only where prices are needed."""
        from genai_prices.data import providers

        self.version = f"genai-prices-{version('genai-prices')}"
        self._providers: Sequence[Provider] = providers
        self._known = lru_cache(maxsize=PRICES_KEPT)(self._look_up)

    def price(self, *, provider: str, base_url: str, model: str, at: float) -> Price | None:
        """List price of `model` at a time (Unix seconds), or None if the book does not price its tokens.

        The provider is the one the book knows by `base_url`, else by the name `provider`, else the one that the
        model's name points to. A known provider that does not list the model is not searched further.
        """
        if len(model) > MODEL_CHARS_MAX:
            return None
        return self._known(provider, base_url, model.lower(), int(at // _MINUTE_S))

    def _look_up(self, provider: str, base_url: str, model: str, minute: int) -> Price | None:
        listed_by = self._provider(provider, base_url, model)
        found = listed_by.find_model(model, all_providers=list(self._providers)) if listed_by else None
        if found is None:
            return None
        tiers = _tiers(found.get_prices(datetime.fromtimestamp(minute * _MINUTE_S, UTC)))
        return Price(self.version, tiers) if tiers else None

    def _provider(self, name: str, base_url: str, model: str) -> Provider | None:
        from genai_prices.data_snapshot import find_provider_by_id

        for provider in self._providers:
            if re.match(provider.api_pattern, base_url):
                return provider
        by_model = (p for p in self._providers if p.model_match is not None and p.model_match.is_match(model))
        return find_provider_by_id(list(self._providers), name) or next(by_model, None)


def _tiers(listed: ModelPrice) -> tuple[Rates, ...]:
    """The book's tiers in ours; none where it prices no input or no output tokens (speech, embeddings)."""
    if listed.input_mtok is None or listed.output_mtok is None:
        return ()
    # Where the book has no price for cached tokens, they cost what others do; a price of 0 is a price.
    cached = listed.input_mtok if listed.cache_read_mtok is None else listed.cache_read_mtok
    columns = (listed.input_mtok, cached, listed.output_mtok)
    starts = {0, *(tier.start for column in columns for tier in getattr(column, "tiers", ()))}
    return tuple(
        Rates(
            input=_at(listed.input_mtok, start),
            cached_input=_at(cached, start),
            output=_at(listed.output_mtok, start),
            above_prompt_tokens=start,
        )
        for start in sorted(starts)
    )


def _at(column: Decimal | TieredPrices, start: int) -> int:
    """A column's price, in nUSD per million, for prompts longer than `start`."""
    if isinstance(column, Decimal):
        return nusd_from_usd_rounded_half_up(column)
    reached = [tier.price for tier in column.tiers if tier.start <= start]
    return nusd_from_usd_rounded_half_up(reached[-1] if reached else column.base)
