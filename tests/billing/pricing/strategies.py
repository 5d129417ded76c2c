"""Strategies for prices and usages in every unit, and what a charge is, computed slowly and exactly."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.billing.pricing.prices import OPTIONAL, configured
from proxy.billing.record import BillableParts, Price, Rates
from proxy.metering.usage import NOT_SAID, ServedAs, Usage, service_of

COUNTS = st.none() | st.integers(0, 10**8) | st.integers(0, 20)
RATE = st.integers(0, 10**13) | st.integers(0, 20)
OPTIONS = {name: st.none() | RATE for name in OPTIONAL}
RATES = st.builds(Rates, input=RATE, cached_input=RATE, output=RATE, **OPTIONS)
USAGES = st.builds(Usage, **dict.fromkeys(Usage.__struct_fields__, COUNTS))
WORDS = st.sampled_from(["priority", "flex", "batch"])
SERVICES = st.builds(
    service_of,
    st.none() | WORDS,
    st.sampled_from([None, "fast"]),
    st.sampled_from([None, "us"]),
    st.none() | st.integers(0, 60),
)
MULTIPLIERS = st.dictionaries(
    st.sampled_from(["speed:fast", "geography:us", "tier:flex", "host:eu.example", "rule:acme"]),
    st.sampled_from(["0", "1", "1.1", "0.5", "6", "5/3", "20/11"]),
)


@st.composite
def tiers(draw: st.DrawFn) -> tuple[Rates, ...]:
    """One to three, in rising order."""
    above = [0, *sorted(draw(st.sets(st.integers(1, 50), max_size=2)))]
    return tuple(replace(draw(RATES), above_prompt_tokens=start) for start in above)


@st.composite
def prices(draw: st.DrawFn) -> Price:
    """A configured list, with variants and tiers or without."""
    variants = draw(st.dictionaries(WORDS, tiers(), max_size=2))
    return configured(*draw(tiers()), service_tiers=variants, multipliers=draw(st.just({}) | MULTIPLIERS))


def exact_nusd(price: Price, usage: Usage, bills: BillableParts, served_as: ServedAs = NOT_SAID) -> Fraction:
    """Not rounded. Takes the prompt apart token by token kind, from the kind that is believed first."""
    tiers = price.service_tiers.get(served_as.service_tier or "", price.tiers)
    longest = served_as.longest_prompt_tokens
    length = (usage.prompt_tokens or 0) if longest is None else longest
    rates = [tier for tier in tiers if tier is tiers[0] or length > tier.above_prompt_tokens][-1]
    said = {
        f"tier:{served_as.service_tier}",
        f"speed:{served_as.speed}",
        f"geography:{served_as.geography}",
        "host:eu.example",
        "rule:acme",
    }
    by = math.prod([Fraction(factor) for reason, factor in price.multipliers.items() if reason in said])
    of_all = Fraction(price.multipliers.get("rule:acme", 1))
    names = [name for name in Rates.__struct_fields__ if name != "above_prompt_tokens"]
    rates = replace(rates, **{name: _times(getattr(rates, name), by if name in _TOKENS else of_all) for name in names})
    total = Fraction(0)
    if bills in (BillableParts.EVERYTHING, BillableParts.PROMPT):
        total += _prompt(rates, usage)
    if bills in (BillableParts.EVERYTHING, BillableParts.OUTPUT):
        total += _output(rates, usage)
    return total


_TOKENS = [
    name
    for name in Rates.__struct_fields__
    if not set(name.split("_")) & {"above", "hour", "characters", "searches", "pages", "request"} and name != "image"
]


def _times(rate: int | None, by: Fraction | int) -> int | None:
    return None if rate is None else half_up(rate * Fraction(by))


def half_up(exact: Fraction) -> int:
    return math.floor(exact + Fraction(1, 2))


def _prompt(rates: Rates, usage: Usage) -> Fraction:
    write = rates.input if rates.cache_write is None else rates.cache_write
    write_1h = write if rates.cache_write_1h is None else rates.cache_write_1h
    audio = rates.input if rates.audio_input is None else rates.audio_input
    left, million = usage.prompt_tokens or 0, Fraction(1, 10**6)
    left -= min(left, usage.unbilled_prompt_tokens or 0)
    cached = min(left, usage.cached_tokens or 0)
    left -= cached
    written = min(left, usage.cache_write_tokens or 0)
    left -= written
    kept_audio = min(cached, usage.cached_audio_tokens or 0)
    kept_image = min(cached - kept_audio, usage.cached_image_tokens or 0)
    heard = min(left, max(0, (usage.audio_prompt_tokens or 0) - kept_audio))
    left -= heard
    if rates.audio_hour is not None:
        heard -= min(heard, usage.timed_audio_tokens or 0)
    image = rates.input if rates.image_input is None else rates.image_input
    seen = min(left, max(0, (usage.image_prompt_tokens or 0) - kept_image))
    left -= seen
    hour = min(written, usage.cache_write_1h_tokens or 0)
    cached_audio = rates.cached_input if rates.cached_audio_input is None else rates.cached_audio_input
    cached_image = rates.cached_input if rates.cached_image_input is None else rates.cached_image_input
    tokens = left * rates.input + (cached - kept_audio - kept_image) * rates.cached_input
    tokens += kept_audio * cached_audio + kept_image * cached_image
    tokens += (written - hour) * write + hour * write_1h + heard * audio + seen * image
    spoken = Fraction(usage.audio_ms or 0, 3_600_000) * (rates.audio_hour or 0)
    pages, page = usage.pages or 0, rates.pages or 0
    annotated = min(pages, usage.annotated_pages or 0)
    scanned = (pages - annotated) * page
    scanned += annotated * (page if rates.annotated_pages is None else rates.annotated_pages)
    units = spoken + Fraction(scanned, 1000) + (rates.request or 0)
    return (tokens + (usage.characters or 0) * (rates.characters or 0)) * million + units


def _output(rates: Rates, usage: Usage) -> Fraction:
    left, made = usage.completion_tokens or 0, Fraction((usage.images or 0) * (rates.image or 0))
    left -= min(left, usage.unbilled_completion_tokens or 0)
    thought = min(left, usage.reasoning_tokens or 0)
    left -= thought
    spoken = min(left, usage.audio_completion_tokens or 0)
    left -= spoken
    drawn = min(left, usage.image_completion_tokens or 0)
    tokens = (left - drawn) * rates.output
    tokens += drawn * (rates.output if rates.image_output is None else rates.image_output)
    tokens += thought * (rates.output if rates.reasoning is None else rates.reasoning)
    tokens += spoken * (rates.output if rates.audio_output is None else rates.audio_output)
    searched = (usage.searches or 0) * (rates.searches or 0) + (usage.file_searches or 0) * (rates.file_searches or 0)
    return Fraction(tokens, 10**6) + made + Fraction(searched, 1000)
