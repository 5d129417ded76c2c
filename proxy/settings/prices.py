"""Price lists as an operator writes them. Law: each line says what it is the price of, and what holds where it is left
out; the same lists have the same version on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from proxy.billing.prices import OPTIONAL, USD_EACH_MAX, USD_PER_HOUR_MAX, configured
from proxy.billing.record import Price, Rates
from proxy.metering.usage import TOKENS_MAX
from proxy.settings.kinds import FieldPath, FieldType, about, rate, read_section, sections, several, whole

# The words that an answer can say (`service_tier_of`); "auto" is none of them.
_SERVICE_TIER = re.compile(r"(?!auto$)[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)


def _rising(kind: FieldType) -> FieldType:
    """Each above the one before."""

    def read(raw: object, at: FieldPath) -> tuple[TierSettings, ...]:
        tiers: tuple[TierSettings, ...] = kind.read(raw, at)
        for number in range(1, len(tiers)):
            if tiers[number].above_prompt_tokens <= tiers[number - 1].above_prompt_tokens:
                place = at.numbered(number).under("above_prompt_tokens")
                raise place.wrong("must be more than in the one before")
        return tiers

    return replace(kind, read=read)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings:
    """Prices as they are written; nUSD here. None: as `Rates` has it."""

    input: int = field(metadata=about(rate(), "prompt tokens"))
    output: int = field(metadata=about(rate(), "generated tokens, reasoning included"))
    cached_input: int | None = field(
        default=None, metadata=about(rate(), "prompt tokens the provider had cached", default="`input`")
    )
    cache_write: int | None = field(
        default=None, metadata=about(rate(), "prompt tokens the provider put into its cache", default="`input`")
    )
    cache_write_1h: int | None = field(
        default=None, metadata=about(rate(), "those of them that stay there for an hour", default="`cache_write`")
    )
    audio_input: int | None = field(
        default=None, metadata=about(rate(), "prompt tokens that are audio", default="`input`")
    )
    audio_output: int | None = field(
        default=None, metadata=about(rate(), "generated tokens that are audio", default="`output`")
    )
    reasoning: int | None = field(
        default=None, metadata=about(rate(), "generated tokens that are reasoning", default="`output`")
    )
    image: int | None = field(
        default=None, metadata=about(rate("image", USD_EACH_MAX), "images made", default="not priced")
    )
    audio_hour: int | None = field(
        default=None,
        metadata=about(
            rate("hour", USD_PER_HOUR_MAX), "audio that is not counted in tokens; 60 × its price per minute",
            default="not priced",
        ),
    )  # fmt: skip
    characters: int | None = field(
        default=None, metadata=about(rate("million characters"), "text that was spoken", default="not priced")
    )
    searches: int | None = field(
        default=None, metadata=about(rate("1,000 searches"), "web searches and the like", default="not priced")
    )
    request: int | None = field(
        default=None,
        metadata=about(rate("request", USD_EACH_MAX), "each request whose prompt is billed", default="no fee"),
    )

    def rates(self, above_prompt_tokens: int = 0) -> Rates:
        """As one tier."""
        more = {name: getattr(self, name) for name in OPTIONAL}
        cached = self.input if self.cached_input is None else self.cached_input
        return Rates(self.input, cached, self.output, above_prompt_tokens, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings(RateSettings):
    """What holds instead for long prompts."""

    above_prompt_tokens: int = field(
        metadata=about(whole(1, TOKENS_MAX), "the prompt is longer than that: these prices hold for all of the request")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredSettings(RateSettings):
    """Prices, and those for long prompts."""

    tiers: tuple[TierSettings, ...] = field(
        default=(),
        metadata=about(
            _rising(several(TierSettings, "a list for longer prompts each, the shortest first")),
            "whole lists for long prompts; a price per unit or request that one leaves out is as above",
            default="none",
        ),
    )

    def all_rates(self) -> tuple[Rates, ...]:
        """For prompts of every length."""
        base = self.rates()
        return base, *(_variant(base, one.rates(one.above_prompt_tokens)) for one in self.tiers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTierSettings(TieredSettings):
    """What holds instead where the provider says that it served so."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSettings(TieredSettings):
    """A price list as it is written."""

    service_tiers: Mapping[str, ServiceTierSettings] = field(
        default_factory=dict,
        metadata=about(
            sections(ServiceTierSettings, _SERVICE_TIER, "the provider's word, `priority`, `flex`, `batch`, …"),
            "whole lists for answers that say they were served so; a price per unit or request that one leaves out is "
            "as above",
            default="none",
        ),
    )

    def price(self) -> Price:
        """With its variants."""
        variants = {
            word: tuple(_variant(self.rates(), rates) for rates in own.all_rates())
            for word, own in self.service_tiers.items()
        }
        return configured(*self.all_rates(), service_tiers=variants)


# Not tokens: they cost no other than usual because an answer was fast or slow, unless a list says so.
_UNIT_RATES = ("image", "audio_hour", "characters", "searches", "request")


def _variant(base: Rates, own: Rates) -> Rates:
    left_out = {name: getattr(base, name) for name in _UNIT_RATES if getattr(own, name) is None}
    return structs.replace(own, **left_out)


def _price(raw: object, at: FieldPath) -> Price:
    read: PriceSettings = read_section(PriceSettings, raw, at)
    return read.price()


PRICE = FieldType("fields", _price, PriceSettings)
