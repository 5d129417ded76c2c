"""The settings of price lists.

Invariant: equal price lists have the same version on every machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass, replace
from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from proxy.billing.money import PARTS_PER_NUSD, PER_HOUR_OF_MS
from proxy.billing.pricing.prices import OPTIONAL, USD_EACH_MAX, USD_PER_HOUR_MAX, USD_PER_MILLION_MAX, configured
from proxy.billing.record import MULTIPLIER_MAX, Price, Rates, multiplier
from proxy.billing.units import BILLED_UNITS, Unit
from proxy.metering.usage import TOKENS_MAX
from proxy.settings.fields import (
    FieldPath,
    FieldType,
    names,
    read_section,
    sections,
    setting,
    settings_section,
    several,
)
from proxy.settings.kinds import rate, whole

# Service tiers that an answer can report (`service_of`); "auto" is only requested, never reported.
_SERVICE_TIER = re.compile(r"(?!auto$)[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)


def _rising(kind: FieldType) -> FieldType:
    """A list of tiers with rising thresholds."""

    def read(raw: object, at: FieldPath) -> tuple[TierSettings, ...]:
        tiers: tuple[TierSettings, ...] = kind.read(raw, at)
        for number in range(1, len(tiers)):
            if tiers[number].above_prompt_tokens <= tiers[number - 1].above_prompt_tokens:
                place = at.numbered(number).under("above_prompt_tokens")
                raise place.wrong("must be greater than in the tier before")
        return tiers

    return replace(kind, read=read)


REASON = re.compile(r"(?:tier|speed|geography):(?!auto$)[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)


def _multipliers() -> FieldType:
    """Reason → factor, exact, in the shortest text: `1.1`, `5/3`."""
    shape = f"`tier:`, `speed:` or `geography:` and the provider's word → a number from 0 to {MULTIPLIER_MAX}, or `5/3`"

    def read(raw: object, at: FieldPath) -> dict[str, str]:
        named = names(raw, at, REASON, "`tier:`, `speed:` or `geography:` and the provider's word")
        return {reason: _factor(value, at.under(reason)) for reason, value in named.items()}

    return FieldType(shape, read)


def factor() -> FieldType:
    """A multiplier, as text."""
    return FieldType(f"a number from 0 to {MULTIPLIER_MAX}, or `5/3`", _factor)


def _factor(value: object, at: FieldPath) -> str:
    text = at.filled(value) if isinstance(value, str) else str(value)
    try:
        if multiplier(text) <= MULTIPLIER_MAX:
            return text
    except ValueError:
        pass
    raise at.wrong(f"must be a number from 0 to {MULTIPLIER_MAX}, or a fraction such as 5/3")


def moment(value: object, at: FieldPath) -> float:
    """A date or a time → Unix seconds."""
    try:
        read = datetime.fromisoformat(str(value))  # YAML reads a plain date as one
    except ValueError:
        raise at.wrong("must be a date or a time, 2026-12-01 or 2026-12-01T00:00:00Z") from None
    return read.replace(tzinfo=read.tzinfo or UTC).timestamp()


# The highest price by the scale of a unit, if it is not that of tokens.
_USD_MAX = {PARTS_PER_NUSD: USD_EACH_MAX, PER_HOUR_OF_MS: USD_PER_HOUR_MAX}


def usd_max(unit: Unit) -> int:
    """The highest price of a unit, in USD."""
    return _USD_MAX.get(unit.scale, USD_PER_MILLION_MAX)


def _field_of(unit: Unit) -> tuple[str, object, Any]:
    """The field of the unit's price."""
    kind = rate(unit.sold_by, usd_max(unit)) if unit.sold_by else rate()
    if unit.price in ("input", "output"):
        return unit.price, int, setting(kind, unit.help)
    default = f"`{unit.of}`" if unit.of else "not priced" if unit.count else "no fee"
    return unit.price, int | None, setting(kind, unit.help, default=None, shown=default)


_UnitPrices: Any = make_dataclass("_UnitPrices", map(_field_of, BILLED_UNITS), frozen=True, slots=True, kw_only=True)


@settings_section
class RateSettings(_UnitPrices):  # type: ignore[misc]  # a field for each row of the table of units
    """Prices in nUSD per unit. None: the default in `Rates`."""

    def rates(self, above_prompt_tokens: int = 0) -> Rates:
        """The prices as one tier."""
        more = {name: getattr(self, name) for name in OPTIONAL}
        cached = self.input if self.cached_input is None else self.cached_input
        return Rates(self.input, cached, self.output, above_prompt_tokens, **more)


@settings_section
class TierSettings(RateSettings):
    """The prices of requests with long prompts."""

    above_prompt_tokens: int = setting(
        whole(1, TOKENS_MAX), "if the prompt is longer than this, these prices apply to the whole request"
    )


@settings_section
class TieredSettings(RateSettings):
    """Prices, with tiers for long prompts."""

    tiers: tuple[TierSettings, ...] = setting(
        _rising(several(TierSettings, "list of price lists, shortest prompts first")),
        "price lists for long prompts; a price per unit or request that a tier omits is that of the list above",
        default=(),
        shown="none",
    )

    def all_rates(self) -> tuple[Rates, ...]:
        """The tiers for prompts of every length."""
        base = self.rates()
        return base, *(_variant(base, tier.rates(tier.above_prompt_tokens)) for tier in self.tiers)


@settings_section
class ServiceTierSettings(TieredSettings):
    """The prices of answers that the provider reports in this service tier."""

    name: str


@settings_section
class ListSettings(TieredSettings):
    """A price list as the operator writes it."""

    service_tiers: Mapping[str, ServiceTierSettings] = setting(
        sections(ServiceTierSettings, _SERVICE_TIER, "the provider's name of a tier: `priority`, `flex`, `batch`, …"),
        "price lists for answers that report this service tier; a price per unit or request that one omits is that "
        "of the list above",
        default_factory=dict,
        shown="none",
    )

    multipliers: Mapping[str, str] = setting(
        _multipliers(),
        "factors of all token prices in answers that report a service tier, a speed or a geography: "
        "`tier:flex: 0.5`, `speed:fast: 6`, `geography:us: 1.1`",
        default_factory=dict,
        shown="none",
    )

    def price(self) -> Price:
        """The price list with its service tiers."""
        variants = {
            name: tuple(_variant(self.rates(), rates) for rates in tier.all_rates())
            for name, tier in self.service_tiers.items()
        }
        return configured(*self.all_rates(), service_tiers=variants, multipliers=self.multipliers)


@dataclass(frozen=True, slots=True)
class PriceLists:
    """The price lists of one model, each with its start."""

    steps: tuple[tuple[float, Price], ...]
    """(start in Unix seconds, price list), in rising order; the first list has no start"""

    def at(self, time: float) -> Price:
        """The list in effect at this time (Unix seconds)."""
        return next(price for start, price in reversed(self.steps) if start <= time)


def _changes() -> FieldType:
    """Start → price list, with rising starts."""

    def read(raw: object, at: FieldPath) -> tuple[tuple[float, Price], ...]:
        if not isinstance(raw, dict) or not raw:
            raise at.wrong("must be a mapping of dates to price lists")
        lists: dict[float, Price] = {}
        for key, below in raw.items():
            if (begins := moment(key, at.under(str(key)))) in lists:
                raise at.under(str(key)).wrong("is the same time as another one of them")
            lists[begins] = _list_of(below, at.under(str(key)))
        return tuple(sorted(lists.items()))

    return FieldType("a date or a time (UTC) → a price list", read, ListSettings, suffix=".<date>")


@settings_section
class PriceSettings(ListSettings):
    """A price list, and later price lists that replace it."""

    changes: tuple[tuple[float, Price], ...] = setting(
        _changes(),
        "whole price lists that take effect at the beginning of a day (UTC) or at a time, without a restart; "
        "exchanges that began before keep the earlier prices",
        default=(),
        shown="none",
    )


# Units other than tokens: a tier changes their price only if it names one.
_UNIT_RATES = tuple(unit.price for unit in BILLED_UNITS if not unit.is_token)


def _variant(base: Rates, tier: Rates) -> Rates:
    inherited = {name: getattr(base, name) for name in _UNIT_RATES if getattr(tier, name) is None}
    return structs.replace(tier, **inherited)


def _list_of(raw: object, at: FieldPath) -> Price:
    read: ListSettings = read_section(ListSettings, raw, at)
    return _checked(read, at)


def _checked(read: ListSettings, at: FieldPath) -> Price:
    for name in read.service_tiers:
        if f"tier:{name}" in read.multipliers:
            raise at.under("multipliers").under(f"tier:{name}").wrong(f"service_tiers.{name} has its prices already")
    return read.price()


def _lists(raw: object, at: FieldPath) -> PriceLists:
    read: PriceSettings = read_section(PriceSettings, raw, at)
    return PriceLists(((-math.inf, _checked(read, at)), *read.changes))


PRICE = FieldType("fields", _lists, PriceSettings)
LIST = FieldType("fields", _list_of, ListSettings)
