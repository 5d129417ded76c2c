"""Price lists, and the price of usage.

Invariants: A price is a whole number of nUSD per unit, or unknown (None, never 0). A charge is rounded once. The price
tier follows from the length of the whole prompt, and applies to every token of the exchange. Service tier, speed and
geography are taken from the response, never from the request: providers charge what they served. A response that
states none of them costs the list prices. A stated one without a price changes no charge, and the entry names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import floor, prod
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from proxy.billing.money import (
    PARTS_PER_NUSD,
    PER_MILLION,
    Nusd,
    nusd_from_usd,
    nusd_rounded_half_up,
    usd_text,
)
from proxy.billing.record import BillableParts, Price, Rates, multiplier
from proxy.billing.units import BILLED_UNITS, BY_PRICE, Side, numbers, prices_of, rate_of
from proxy.metering.usage import NO_USAGE, NOT_SAID, ServedAs, Usage

# The dearest model of the built-in price book costs 600; a higher price is probably per token, or in cents.
USD_PER_MILLION_MAX = 10_000
# Per image or request, and per hour of audio: about a hundred times the dearest known price.
USD_EACH_MAX, USD_PER_HOUR_MAX = 100, 1_000
# Applied price tiers as text.
_TEXTS_KEPT = 4096


def rates_for(price: Price, prompt_tokens: int | None, served_as: ServedAs = NOT_SAID) -> Rates:
    """The price tier for a prompt of this length (unknown: the first), in the list of this service tier if there is
    one, times the multipliers of how it was served. Of a usage in several steps, the longest prompt decides."""
    tiers = price.tiers
    if served_as.service_tier is not None:
        tiers = price.service_tiers.get(served_as.service_tier, tiers)
    rates = tiers[0]
    longest = prompt_tokens or 0 if served_as.longest_prompt_tokens is None else served_as.longest_prompt_tokens
    if len(tiers) > 1 and (above := [tier for tier in tiers if longest > tier.above_prompt_tokens]):
        rates = above[-1]
    return multiplied(rates, *applied(price, served_as).items()) if price.multipliers else rates


def applied(price: Price, served_as: ServedAs) -> dict[str, str]:
    """The multipliers of the list that apply, by their reasons."""
    said = _words(served_as)
    return {reason: by for reason, by in price.multipliers.items() if _fact(reason) in said or not of_answer(reason)}


def _fact(reason: str) -> str:
    """The fact that an answer must state: `tier:priority`, also if a rule adds its name, `tier:priority#acme`."""
    return reason.partition("#")[0]


@lru_cache(maxsize=1_024)
def of_answer(reason: str) -> bool:
    """True if a reason depends on the answer; other reasons apply to the whole list."""
    return reason.partition(":")[0] in _OF_ANSWERS


@lru_cache(maxsize=1_024)
def multiplied(rates: Rates, *by: tuple[str, str]) -> Rates:
    """The prices times `by`, in whole nUSD, rounded half up. Rules multiply all prices, others those of tokens."""
    if not by:
        return rates
    of_all = prod(multiplier(factor) for reason, factor in by if reason.startswith(_RULE))
    of_tokens = prod(multiplier(factor) for _, factor in by)
    prices = ((name, getattr(rates, name), of_tokens if name in OF_TOKENS else of_all) for name in _PRICES)
    return replace(rates, **{name: floor(rate * product + _HALF) for name, rate, product in prices if rate is not None})


def before_rules(rate: int, name: str, by: Mapping[str, str]) -> int:
    """The price `name` of a list, in nUSD, before price rules multiplied it; to the nearest nUSD, since each was
    rounded. After a rule that multiplies by 0, it cannot be calculated: 0. `by`: the multipliers behind `rate`."""
    rules = [reason for reason in by if by_rule(reason) and (name in OF_TOKENS or reason.startswith(_RULE))]
    product = prod(multiplier(by[reason]) for reason in rules)
    return floor(rate / product + _HALF) if product else rate


def by_rule(reason: str) -> bool:
    """True if a price rule gave this reason of a multiplier, and not the list itself."""
    return reason.startswith(_RULE) or _fact(reason) != reason


def as_stated(price: Price | None, stated_nusd: Nusd | None) -> bool:
    """Whether an answer is priced at the cost that it states (None: it states none)."""
    return price is not None and price.stated != () and stated_nusd is not None


def stated_charge(price: Price, nusd: Nusd) -> Nusd:
    """The charge of an answer whose provider states this cost, rounded half up."""
    return Nusd(floor(nusd * prod(map(multiplier, _of_stated(price))) + _HALF))


def _of_stated(price: Price) -> list[str]:
    return [*price.stated, *(factor for reason, factor in price.multipliers.items() if reason.startswith(_RULE))]


_HALF = Fraction(1, 2)
_RULE = "rule:"
_PRICES = tuple(BY_PRICE)
OF_TOKENS = tuple(unit.price for unit in BILLED_UNITS if unit.is_token)
"""the prices of tokens in `Rates`"""


def charge(
    price: Price,
    usage: Usage,
    bills: BillableParts,
    served_as: ServedAs = NOT_SAID,
    others: Iterable[tuple[Price | None, Usage]] = (),
) -> Nusd:
    """The nUSD of the billed parts of `usage`, and of other models. An unreported or unpriced count adds nothing."""
    parts = _charged(rates_for(price, usage.prompt_tokens, served_as), usage, bills)
    for list_, used in others:
        if list_ is not None and list_.tiers:
            parts += _charged(rates_for(list_, used.prompt_tokens), used, bills)
    return nusd_rounded_half_up(parts)


def _charged(rates: Rates, usage: Usage, bills: BillableParts) -> int:
    """The price of the billed sides of `usage`, in PARTS_PER_NUSD, as everything below."""
    sides = SIDES[bills]
    parts = rates.request * PARTS_PER_NUSD if rates.request and Side.PROMPT in sides else 0
    for price, number in numbers(usage, rates).items():
        side, scale, prices = _PRICED[price]
        if number and side in sides:
            for name in prices:
                rate = getattr(rates, name)
                if rate is not None:
                    parts += number * rate * scale
                    break
    return parts


SIDES: Mapping[BillableParts, Sequence[Side]] = {
    BillableParts.EVERYTHING: (Side.PROMPT, Side.OUTPUT),
    BillableParts.PROMPT: (Side.PROMPT,),
    BillableParts.OUTPUT: (Side.OUTPUT,),
    BillableParts.NOTHING: (),
}
"""the sides that are billed"""
# Unit → its side, its scale, and the prices of which the first one that the list has applies.
_PRICED = {unit.price: (unit.side, unit.scale, tuple(prices_of(unit))) for unit in BILLED_UNITS}


class Addend(NamedTuple):
    """One product in the sum of a charge."""

    name: str
    """the price's name in `Rates` and in the configuration"""
    units: int
    rate: int
    scale: int
    """value of one unit at a rate of 1, in PARTS_PER_NUSD"""
    model: str = ""
    """the other model that used it; empty: the exchange's own"""

    @property
    def parts(self) -> int:
        """In PARTS_PER_NUSD."""
        return self.units * self.rate * self.scale


def addends(rates: Rates, usage: Usage, bills: BillableParts) -> list[Addend]:
    """The addends of `charge`, for display: everything that was used and has a price."""
    used = numbers(usage, rates) | {"request": 1}
    return [
        Addend(unit.price, used[unit.price], rate, unit.scale)
        for side in SIDES[bills]
        for unit in BILLED_UNITS
        if unit.side is side and used.get(unit.price) and (rate := rate_of(unit, rates)) is not None
    ]


def parts_at_most(rates: Rates, prompt_tokens: int, completion_tokens: int, units: Usage) -> int:
    """The price of these tokens, each as its dearest kind, and of `units` (no tokens); in PARTS_PER_NUSD."""
    prompt, output, request = _dearest(rates)
    of_tokens = prompt_tokens * prompt + completion_tokens * output
    if units is NO_USAGE:
        return of_tokens + request
    if units.pages and rates.annotated_pages is not None and rates.annotated_pages > (rates.pages or 0):
        units = replace(units, annotated_pages=units.pages)
    return of_tokens + _charged(rates, units, BillableParts.EVERYTHING)


@lru_cache(maxsize=1_024)
def _dearest(rates: Rates) -> tuple[int, int, int]:
    """The highest price of a prompt token and of an output token, and the price of a request without tokens."""
    dearest = [
        max(getattr(rates, unit.price) or 0 for unit in BILLED_UNITS if unit.is_token and unit.side is side)
        for side in Side
    ]
    return dearest[0] * PER_MILLION, dearest[1] * PER_MILLION, _charged(rates, NO_USAGE, BillableParts.EVERYTHING)


# Counts that an exchange may be billed by in place of tokens → their prices in `Rates`.
_INSTEAD_OF_TOKENS = {unit.count: unit.price for unit in BILLED_UNITS if unit.takes_the_place}
INSTEAD_OF_TOKENS = frozenset((*_INSTEAD_OF_TOKENS.values(), "request"))
"""the prices of `Rates` that can take the place of prices of tokens"""
# Units that need a price of their own: those that are billed in addition to tokens, and dear kinds of tokens.
_OWN = [
    (unit.count, unit.price)
    for unit in BILLED_UNITS
    if unit.dear or (unit.count and not (unit.is_token or unit.of or unit.takes_the_place))
]
_OWN_COUNTS = attrgetter(*(count for count, _ in _OWN))
# Prices that a list may lack (`Price.lacking`) → the tokens that they are for, and what bills these.
_TOKENS = {price: (BY_PRICE[price].count, BY_PRICE[price].side) for price in ("input", "output")}


# Field of `ServedAs` → its name before a word.
_KINDS = {"service_tier": "tier", "speed": "speed", "geography": "geography"}
_OF_ANSWERS = frozenset(_KINDS.values())
# What costs the list's own prices, in the words of OpenAI, Anthropic, Groq and Google; a list may say otherwise.
_STANDARD = frozenset({
    "tier:default", "tier:standard", "tier:on_demand", "speed:standard", "geography:global", "geography:not_available",
})  # fmt: skip
_FREE = Rates(0, 0, 0)


@lru_cache(maxsize=1_024)
def _words(served_as: ServedAs) -> tuple[str, ...]:
    """The facts of an answer that may change a price: `tier:priority`, `speed:fast`."""
    said = ((kind, getattr(served_as, name)) for name, kind in _KINDS.items())
    return tuple(f"{kind}:{word}" for kind, word in said if word is not None)


def facts_of(price: Price) -> list[str]:
    """The facts of an answer that may change the prices of this list: `tier:priority`, `speed:fast`."""
    facts = [f"{_KINDS['service_tier']}:{name}" for name in price.service_tiers]
    facts += [_fact(reason) for reason in price.multipliers if of_answer(reason)]
    return list(dict.fromkeys(facts))


def stating(fact: str) -> ServedAs:
    """The terms of an answer that states this fact, and no other."""
    of, _, word = fact.partition(":")
    return replace(NOT_SAID, **{name: word for name, kind in _KINDS.items() if kind == of})


@lru_cache(maxsize=1_024)
def special_terms(served_as: ServedAs) -> tuple[str, ...]:
    """The words of `_words` that can change a price, at some provider."""
    return tuple(word for word in _words(served_as) if word not in _STANDARD)


def unpriced_service(price: Price | None, served_as: ServedAs) -> list[str]:
    """Service terms of the response that have no price in the list (`tier:priority`): list prices apply, and the
    entry names these terms."""
    if price is None or served_as is NOT_SAID or price.tiers in ((), (_FREE,)):
        return []
    priced = {*map(_fact, price.multipliers), *(f"tier:{name}" for name in price.service_tiers)}
    return [word for word in special_terms(served_as) if word not in priced]


def unpriced(
    rates: Rates, usage: Usage, lacking: Iterable[str] = (), bills: BillableParts = BillableParts.EVERYTHING
) -> list[str]:
    """The used counts without a price. Searches always need their own, of each kind; so do audio and generated images,
    which cost what text does without one. Of the other units (tokens, if their price is among `lacking`; images, audio
    and characters, if the usage has no tokens) one that is priced is enough, or a fee per request."""
    missing: list[str] = []
    if any(_OWN_COUNTS(usage)):  # most have none
        missing = [count for count, price in _OWN if getattr(usage, count) and getattr(rates, price) is None]
    if not (lacking or usage.in_other_units) or rates.request is not None:
        return missing
    used = {count: price for count, price in _INSTEAD_OF_TOKENS.items() if getattr(usage, count)}
    if any(getattr(rates, price) is not None for price in used.values()):
        return missing
    if usage.in_other_units:
        return [*used, *missing]
    tokens = (_TOKENS[name] for name in lacking)
    return [*(count for count, side in tokens if side in SIDES[bills] and getattr(usage, count)), *missing]


def can_charge(price: Price, usage: Usage, bills: BillableParts, served_as: ServedAs = NOT_SAID) -> bool:
    """Whether the list has a price for every billed count of `usage`. Searches are not checked if tokens are billed."""
    if not price.tiers:
        return False
    if not (price.lacking or usage.in_other_units):
        return True
    missing = unpriced(rates_for(price, None, served_as), usage, price.lacking, bills)
    return not missing if usage.in_other_units else _TOKEN_COUNTS.isdisjoint(missing)


def by_time_alone(price: Price | None) -> bool:
    """Whether the list has a price of hours of audio, and none of tokens: a session of such a model costs its time."""
    return price is not None and price.tiers != () and len(price.lacking) == 2 and price.tiers[0].audio_hour is not None


def can_quote(price: Price, asked: Usage, *, generates: bool) -> bool:
    """`can_charge` for a request. `asked`: the units that follow from it. `generates`: its answer may have tokens."""
    if not price.lacking:
        return price.tiers != ()
    most = replace(asked, prompt_tokens=1, completion_tokens=1 if generates else None)
    return can_charge(price, most, BillableParts.EVERYTHING)


_TOKEN_COUNTS = frozenset(count for count, _ in _TOKENS.values())


def rate_from_usd(usd: object, high: int = USD_PER_MILLION_MAX) -> int:
    """A configured price in USD, from 0 to `high` → nUSD, exact.

    A float stands for its shortest decimal: 0.1 is a tenth. Raises ValueError, without the name of the setting.
    """
    if isinstance(usd, bool) or not isinstance(usd, int | float | str | Decimal):
        raise ValueError("must be a number of USD")  # noqa: TRY004 - one error type for all
    rate = nusd_from_usd(str(usd))
    if not 0 <= rate <= nusd_from_usd(high):
        raise ValueError(f"must be from 0 to {high} USD")
    return rate


# Prices that every list has, and those that it may omit.
_NEEDED, OPTIONAL = Rates.__struct_fields__[:3], Rates.__struct_fields__[4:]


def configured(
    *tiers: Rates,
    service_tiers: Mapping[str, tuple[Rates, ...]] = MappingProxyType({}),
    multipliers: Mapping[str, str] = MappingProxyType({}),
    stated: tuple[str, ...] = (),
) -> Price:
    """A price list from the configuration: at least one tier, in rising order. The version depends only on the numbers,
    so it is the same on every machine, always."""
    numbers = _list(tiers) + "".join(f";{name}:{_list(own)}" for name, own in sorted(service_tiers.items()))
    numbers += "".join(f"*{reason}={by}" for reason, by in sorted(multipliers.items()))
    numbers += "".join(f"~{by}" for by in stated)
    version = f"config-{hashlib.sha256(numbers.encode()).hexdigest()[:8]}"
    return Price(version, tiers, dict(service_tiers), dict(multipliers), stated)


def _list(tiers: Sequence[Rates]) -> str:
    return "+".join(_numbers(rates) for rates in tiers)


def _numbers(rates: Rates) -> str:
    """All prices that are set, as text. Unset ones are left out, so that a new optional price changes no version."""
    more = (f"/{name}={rate}" for name in OPTIONAL if (rate := getattr(rates, name)) is not None)
    return f"{rates.input}/{rates.cached_input}/{rates.output}/{rates.above_prompt_tokens}" + "".join(more)


def price_text(price: Price, prompt_tokens: int | None, served_as: ServedAs = NOT_SAID) -> dict[str, Any]:
    """The applied price tier, for the details of an entry: USD per unit as in `Rates`, as decimal strings, without
    those that the list lacks. They are multiplied already; `multipliers` names the factors."""
    listed = served_as.service_tier if served_as.service_tier in price.service_tiers else None
    text: dict[str, Any] = {"version": price.version}
    if price.tiers:
        text |= _price_text(price.version, rates_for(price, prompt_tokens, served_as), listed)
        for name in price.lacking:
            for lacked in _LACKED[name]:
                text.pop(lacked, None)
    if price.multipliers and (by := applied(price, served_as)):
        text["multipliers"] = by
    if price.stated:
        text["stated"] = _of_stated(price)
    return text


# A price that a list lacks → those that the text leaves out.
_LACKED = {"input": ("input", "cached_input"), "output": ("output",)}


@lru_cache(maxsize=_TEXTS_KEPT)
def _price_text(version: str, rates: Rates, service_tier: str | None) -> Mapping[str, str | int]:
    priced = {name: usd_text(rate) for name in (*_NEEDED, *OPTIONAL) if (rate := getattr(rates, name)) is not None}
    text: dict[str, str | int] = {"version": version, **priced}
    text |= {"above_prompt_tokens": rates.above_prompt_tokens} if rates.above_prompt_tokens else {}
    return text | ({"service_tier": service_tier} if service_tier is not None else {})


def _lacking_in(text: Mapping[str, Any]) -> tuple[str, ...]:
    """The prices that a written list lacks; no list lacks all."""
    if text.keys().isdisjoint({"input", *INSTEAD_OF_TOKENS}):
        return ()
    return tuple(name for name in _LACKED if name not in text)


def pinned(text: Mapping[str, Any]) -> Price:
    """The price that `price_text` wrote into an entry: one tier, multiplied already. Raises ValueError."""
    try:
        stated = tuple(map(str, text.get("stated", ())))
        if stated and text.keys().isdisjoint(_PRICES):
            return Price(str(text["version"]), (), stated=stated)
        lacking = _lacking_in(text)
        told = {**dict.fromkeys(_NEEDED, "0"), **text} if lacking else text
        named = (*_NEEDED, *(name for name in OPTIONAL if name in text))
        prices = {name: nusd_from_usd(told[name]) for name in named}
        rates = Rates(**prices, above_prompt_tokens=int(text.get("above_prompt_tokens", 0)))
        return Price(str(text["version"]), (rates,), stated=stated, lacking=lacking)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"pinned price of the entry is invalid: {type(error).__name__}") from None


def pinned_or_none(text: Mapping[str, Any] | None) -> Price | None:
    """`pinned`; None if nothing is written. Raises ValueError."""
    return None if text is None else pinned(text)
