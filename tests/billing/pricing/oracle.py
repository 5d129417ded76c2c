"""The charge as version 0.1 computed it, kept for one release: `billing.units` must give the same."""

from __future__ import annotations

from proxy.billing.money import PARTS_PER_NUSD, PER_HOUR_OF_MS, PER_MILLION, PER_THOUSAND
from proxy.billing.record import BillableParts, Rates
from proxy.metering.usage import Usage


def charged_parts(rates: Rates, usage: Usage, bills: BillableParts) -> int:
    match bills:
        case BillableParts.EVERYTHING:
            return _prompt(rates, usage) + _output(rates, usage)
        case BillableParts.PROMPT:
            return _prompt(rates, usage)
        case BillableParts.OUTPUT:
            return _output(rates, usage)
        case BillableParts.NOTHING:
            return 0


def _prompt(rates: Rates, usage: Usage) -> int:
    """The price of the prompt and of other input, in PARTS_PER_NUSD, as everything below."""
    fresh, cached, written, hour, audio, image, cached_audio, cached_image = _prompt_tokens(usage, rates)
    tokens = fresh * rates.input + cached * rates.cached_input
    if cached_audio or cached_image:
        tokens += cached_audio * _or(rates.cached_audio_input, rates.cached_input)
        tokens += cached_image * _or(rates.cached_image_input, rates.cached_input)
    if written or hour:
        write = _or(rates.cache_write, rates.input)
        tokens += written * write + hour * _or(rates.cache_write_1h, write)
    if audio:
        tokens += audio * _or(rates.audio_input, rates.input)
    if image:
        tokens += image * _or(rates.image_input, rates.input)
    parts = tokens * PER_MILLION
    if usage.audio_ms:
        parts += usage.audio_ms * (rates.audio_hour or 0) * PER_HOUR_OF_MS
    if usage.characters:
        parts += usage.characters * (rates.characters or 0) * PER_MILLION
    if usage.pages:
        plain, annotated = _pages(usage)
        parts += (plain * (rates.pages or 0) + annotated * _or(rates.annotated_pages, rates.pages or 0)) * PER_THOUSAND
    return parts + rates.request * PARTS_PER_NUSD if rates.request else parts


def _output(rates: Rates, usage: Usage) -> int:
    """The price of output and of searches."""
    plain, reasoning, audio, image = _output_tokens(usage)
    tokens = plain * rates.output
    if reasoning:
        tokens += reasoning * _or(rates.reasoning, rates.output)
    if audio:
        tokens += audio * _or(rates.audio_output, rates.output)
    if image:
        tokens += image * _or(rates.image_output, rates.output)
    parts = tokens * PER_MILLION
    if usage.images:
        parts += usage.images * (rates.image or 0) * PARTS_PER_NUSD
    if usage.file_searches:
        parts += usage.file_searches * (rates.file_searches or 0) * PER_THOUSAND
    return parts + usage.searches * (rates.searches or 0) * PER_THOUSAND if usage.searches else parts


def _prompt_tokens(usage: Usage, rates: Rates) -> tuple[int, int, int, int, int, int, int, int]:
    """The billed prompt tokens as disjoint kinds: plain, cached, written to the cache, written for an hour, audio,
    image, cached audio, cached images.

    A token has one kind, and the kinds never add up to more than the prompt, even if the provider reports more. The
    precedence is: unbilled, cached, written, audio, image. How much of the audio and the images is cached is known only
    if it is reported. Audio with a known time is not priced by
    token where the list has a price by time.
    """
    prompt = _billed(usage.prompt_tokens, usage.unbilled_prompt_tokens)
    cached = min(usage.cached_tokens or 0, prompt)
    if not (
        usage.cache_write_tokens or usage.audio_prompt_tokens or usage.image_prompt_tokens
        or usage.cached_audio_tokens or usage.cached_image_tokens
    ):  # fmt: skip
        return prompt - cached, cached, 0, 0, 0, 0, 0, 0
    cached_audio = min(usage.cached_audio_tokens or 0, cached)
    cached_image = min(usage.cached_image_tokens or 0, cached - cached_audio)
    left = prompt - cached
    written = min(usage.cache_write_tokens or 0, left)
    hour = min(usage.cache_write_1h_tokens or 0, written)
    audio = min(max(0, (usage.audio_prompt_tokens or 0) - cached_audio), left - written)
    image = min(max(0, (usage.image_prompt_tokens or 0) - cached_image), left - written - audio)
    plain = left - written - audio - image
    if usage.timed_audio_tokens and rates.audio_hour is not None:
        audio -= min(usage.timed_audio_tokens, audio)
    return plain, cached - cached_audio - cached_image, written - hour, hour, audio, image, cached_audio, cached_image


def _pages(usage: Usage) -> tuple[int, int]:
    """The pages as disjoint kinds: plain, annotated."""
    pages = usage.pages or 0
    annotated = min(usage.annotated_pages or 0, pages)
    return pages - annotated, annotated


def _output_tokens(usage: Usage) -> tuple[int, int, int, int]:
    """The billed output tokens as disjoint kinds: plain, reasoning, audio, image."""
    completion = _billed(usage.completion_tokens, usage.unbilled_completion_tokens)
    reasoning = min(usage.reasoning_tokens or 0, completion)
    audio = min(usage.audio_completion_tokens or 0, completion - reasoning)
    image = min(usage.image_completion_tokens or 0, completion - reasoning - audio)
    return completion - reasoning - audio - image, reasoning, audio, image


def _billed(tokens: int | None, unbilled: int | None) -> int:
    return max(0, (tokens or 0) - unbilled) if unbilled else tokens or 0


def _or(rate: int | None, otherwise: int) -> int:
    return otherwise if rate is None else rate
