"""The billed units: one row each. Charges and their addends, quotes, settings, explanations and statements follow.

Invariants: the rows of what contains others come before them, and of two parts of one whole, the earlier row takes what
both could be. A token has one kind, and the kinds never add up to more than the whole, even if more is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from proxy.billing.money import PARTS_PER_NUSD, PER_HOUR_OF_MS, PER_MILLION, PER_THOUSAND
from proxy.billing.record import Rates
from proxy.metering.usage import IN_PLACE, Usage


class Side(Enum):
    """The part of an exchange in which a unit is counted."""

    PROMPT = "prompt"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Unit:
    """One billed unit."""

    price: str
    """the unit's price in `Rates` and in the configuration"""
    count: str
    """the unit's count in `Usage`; empty: one for each request"""
    side: Side
    help: str
    """description, for the reference of settings"""
    scale: int = PER_MILLION
    """value of one unit at a rate of 1, in PARTS_PER_NUSD"""
    of: str = ""
    """price of the unit that contains it, which applies where the list lacks its own; empty: in no other unit"""
    dear: bool = False
    """providers charge more for it than for what contains it: an entry names it where the list lacks its price"""
    less: str = ""
    """price of the unit whose number its count contains too"""
    unbilled: str = ""
    """count of the part that the provider added and does not charge"""
    label: str = ""
    """name in statements; empty: there is a column for it"""
    listed: tuple[tuple[str, int], ...] = ()
    """prices in the book, the later one before an earlier one; units of ours per unit of the book"""
    sold_by: str = ""
    """the quantity that its price is for, in the reference of settings; empty: a million tokens"""

    @property
    def is_token(self) -> bool:
        return self.count.endswith("_tokens")

    @property
    def takes_the_place(self) -> bool:
        return self.count in IN_PLACE

    @property
    def per(self) -> str:
        """The quantity that its price is for, as text."""
        return _PER[self.scale] if self.count else ""


_PER = {
    PER_MILLION: " per million", PER_THOUSAND: " per thousand", PER_HOUR_OF_MS: " per hour", PARTS_PER_NUSD: " each",
}  # fmt: skip
_P, _O = Side.PROMPT, Side.OUTPUT

BILLED_UNITS = (
    Unit("input", "prompt_tokens", _P, "prompt tokens", unbilled="unbilled_prompt_tokens"),
    Unit(
        "output", "completion_tokens", _O, "generated tokens, reasoning included",
        unbilled="unbilled_completion_tokens",
    ),
    Unit("cached_input", "cached_tokens", _P, "prompt tokens read from the provider's cache", of="input"),
    Unit("cache_write", "cache_write_tokens", _P, "prompt tokens written to the provider's cache", of="input",
         label="cache writes", listed=(("cache_write_mtok", 1),)),
    Unit("cache_write_1h", "cache_write_1h_tokens", _P, "prompt tokens written to the cache for one hour",
         of="cache_write", label="incl. 1-hour cache writes", listed=(("cache_write_1h_mtok", 1),)),
    Unit("audio_input", "audio_prompt_tokens", _P, "audio tokens of the prompt", of="input",
         dear=True, less="cached_audio_input", label="audio input", listed=(("input_audio_mtok", 1),)),
    Unit("cached_audio_input", "cached_audio_tokens", _P, "audio tokens read from the cache", of="cached_input",
         label="incl. cached audio", listed=(("cache_audio_read_mtok", 1),)),
    Unit("reasoning", "reasoning_tokens", _O, "generated reasoning tokens", of="output",
         listed=(("output_reasoning_mtok", 1),)),
    Unit("audio_output", "audio_completion_tokens", _O, "generated audio tokens", of="output",
         dear=True, label="audio output", listed=(("output_audio_mtok", 1),)),
    Unit("image_input", "image_prompt_tokens", _P, "image tokens of the prompt", of="input",
         less="cached_image_input", label="image input", listed=(("input_image_mtok", 1),)),
    Unit("cached_image_input", "cached_image_tokens", _P, "image tokens read from the cache", of="cached_input",
         label="incl. cached images", listed=(("cache_image_read_mtok", 1),)),
    Unit("image_output", "image_completion_tokens", _O, "generated image tokens", of="output",
         dear=True, label="image output", listed=(("output_image_mtok", 1),)),
    Unit("image", "images", _O, "generated images", PARTS_PER_NUSD, label="images", sold_by="image"),
    Unit("audio_hour", "audio_ms", _P, "audio that is not counted in tokens; 60 × the price per minute",
         PER_HOUR_OF_MS, label="ms of audio", listed=(("audio_hours", 1), ("input_audio_hours", 1)),
         sold_by="hour"),
    Unit("characters", "characters", _P, "text converted to speech", label="characters",
         listed=(("input_mchars", 1),), sold_by="million characters"),
    Unit("searches", "searches", _O, "web searches and similar tools", PER_THOUSAND, label="searches",
         listed=(("web_searches_kcount", 1),), sold_by="1,000 searches"),
    Unit("file_searches", "file_searches", _O, "searches in files that the provider keeps", PER_THOUSAND,
         label="file searches", listed=(("storage_searches_kcount", 1),), sold_by="1,000 searches"),
    Unit("pages", "pages", _P, "pages of documents that are read as images (OCR)", PER_THOUSAND, label="pages",
         listed=(("input_document_kpages", 1),), sold_by="1,000 pages"),
    Unit("annotated_pages", "annotated_pages", _P, "pages of which structured data is extracted", PER_THOUSAND,
         of="pages", label="incl. annotated pages", listed=(("input_annotated_document_kpages", 1),),
         sold_by="1,000 pages"),
    Unit("request", "", _P, "each request whose prompt is billed", PARTS_PER_NUSD,
         listed=(("requests_kcount", 1_000),), sold_by="request"),
)  # fmt: skip
BY_PRICE = {unit.price: unit for unit in BILLED_UNITS}


def _with_parts(unit: Unit) -> Iterator[Unit]:
    yield unit
    for part in BILLED_UNITS:
        if part.of == unit.price:
            yield from _with_parts(part)


# Each whole, then its parts, then the next one.
_PRECEDENCE = tuple(unit for whole in BILLED_UNITS if not whole.of for unit in _with_parts(whole) if unit.count)
_ROWS = tuple((unit.price, unit.of, unit.less, unit.unbilled) for unit in _PRECEDENCE)
_COUNTS_OF = attrgetter(*(unit.count for unit in _PRECEDENCE))


def numbers(usage: Usage, rates: Rates) -> dict[str, int]:
    """The used units by their prices, as disjoint kinds; some may be 0.

    How much of the audio and the images is cached is known only if it is reported. Audio with a known time is not
    priced by token where the list has a price by time.
    """
    used: dict[str, int] = {}
    for (price, of, less, unbilled), count in zip(_ROWS, _COUNTS_OF(usage), strict=True):
        if not count:
            continue
        if unbilled and (free := getattr(usage, unbilled)):
            count = max(0, count - free)
        elif of:
            if less:
                count = max(0, count - used.get(less, 0))
            count = min(count, used.get(of, 0))
            used[of] = used.get(of, 0) - count
        used[price] = count
    if usage.timed_audio_tokens and rates.audio_hour is not None and "audio_input" in used:
        used["audio_input"] -= min(usage.timed_audio_tokens, used["audio_input"])
    return used


def prices_of(unit: Unit) -> Iterator[str]:
    """The price of a unit, and those that apply instead where a list lacks it."""
    yield unit.price
    if unit.of:
        yield from prices_of(BY_PRICE[unit.of])


def rate_of(unit: Unit, rates: Rates) -> int | None:
    """The price of a unit in this list, or the one that applies instead. None: it is not priced."""
    return next((rate for price in prices_of(unit) if (rate := getattr(rates, price)) is not None), None)
