"""Usage in every billed unit, and the evidence for estimates.

Invariants: None is "not reported", 0 is "reported zero". Subsets: `cached_tokens`, `cache_write_tokens`,
`audio_prompt_tokens`, `image_prompt_tokens` and `unbilled_prompt_tokens` are part of `prompt_tokens`,
`cached_audio_tokens` and `cached_image_tokens` of `cached_tokens` and of the audio or image tokens,
`cache_write_1h_tokens` of `cache_write_tokens`, `reasoning_tokens`, `audio_completion_tokens`,
`image_completion_tokens` and `unbilled_completion_tokens` of `completion_tokens`, `annotated_pages` of `pages`,
`timed_audio_tokens` of `audio_prompt_tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import astuple

from proxy.metering.held_text import NO_PROMPT_TEXT, PromptText

# No model known in 2026 has a context above 10 million tokens; a higher count is an error of the provider.
TOKENS_MAX = 100_000_000
# Limit of generated images and searches of one request; each costs more than ten thousand tokens.
UNITS_MAX = 10_000
# A count with this limit.
Units: TypeAlias = "int | None"

_WORD = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)
OTHER_WORD = "other"
"""replaces a reported fact that is no short word"""


class UsageSource(StrEnum):
    """The source of a reading's counts."""

    REPORTED = "reported"
    """The provider's own usage object."""
    ESTIMATED = "estimated"
    """Our estimator, because the provider did not report."""
    PROVIDER_LATER = "provider_later"
    """The provider's own usage, asked for after the exchange had ended with an estimate."""
    NONE = "none"
    """Nothing was generated, or it is unknown: counts are None."""


FROM_PROVIDER = frozenset((UsageSource.REPORTED, UsageSource.PROVIDER_LATER))
"""the sources whose counts are the provider's"""


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Counts of one exchange; None: not reported. Append new fields at the end."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    cache_write_tokens: int | None = None
    """prompt tokens written to the provider's cache"""
    cache_write_1h_tokens: int | None = None
    """the part of `cache_write_tokens` that is cached for an hour"""
    audio_prompt_tokens: int | None = None
    audio_completion_tokens: int | None = None
    images: Units = None
    """generated images; images in a prompt are counted as tokens"""
    audio_ms: int | None = None
    """milliseconds of audio, input or output"""
    characters: int | None = None
    """Unicode code points of text, such as speech input, that is billed by them"""
    searches: Units = None
    """web searches and similar calls made by the provider"""
    unbilled_prompt_tokens: int | None = None
    """prompt tokens added by the provider and not billed"""
    unbilled_completion_tokens: int | None = None
    """completion tokens added by the provider and not billed"""
    image_prompt_tokens: int | None = None
    image_completion_tokens: int | None = None
    file_searches: Units = None
    """searches in files, made by the provider"""
    pages: Units = None
    """pages of documents, read as images"""
    annotated_pages: Units = None
    """the part of `pages` from which structured data was made"""
    cached_audio_tokens: int | None = None
    """audio tokens of the prompt that were read from the provider's cache"""
    cached_image_tokens: int | None = None
    """image tokens of the prompt that were read from the provider's cache"""
    timed_audio_tokens: int | None = None
    """audio tokens of the prompt whose time is in `audio_ms`: priced by time where the list has such a price, else by
    token"""

    @property
    def reported_nothing(self) -> bool:
        """True if no billable count is known."""
        return self.prompt_tokens is None and self.completion_tokens is None and not self.in_other_units

    @property
    def in_other_units(self) -> bool:
        """Whether there are counts of images, audio, characters, pages or searches, but none of tokens. No search is no
        count: OpenAI says so of every answer, from its beginning on."""
        if self.prompt_tokens is not None or self.completion_tokens is not None:
            return False
        return any(count is not None for count in _IN_PLACE(self)) or any(_BESIDE(self))

    def lacks_tokens(self, generated: bool) -> bool:
        """Whether a count of tokens is missing. Not where others are billed in place of tokens: images, audio,
        characters, pages; searches if nothing is `generated`, since they are billed beside the tokens of an answer."""
        if self.prompt_tokens is not None and self.completion_tokens is not None:
            return False
        if self.prompt_tokens is not None or self.completion_tokens is not None:
            return True
        return not self.in_other_units or (generated and all(getattr(self, name) is None for name in IN_PLACE))

    def filled_from(self, other: Usage) -> Usage:
        """This usage, with the counts of `other` where it has none."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Usage(*(theirs if count is None else count for count, theirs in pairs))

    def beside_audio(self, estimate: int) -> int:
        """An estimate of the completion's text, plus counted audio if no completion is reported."""
        return estimate if self.completion_tokens is not None else estimate + (self.audio_completion_tokens or 0)


UNIT_COUNTS = frozenset(name for name, kind in Usage.__annotations__.items() if kind == "Units")
"""the counts whose limit is UNITS_MAX"""
IN_PLACE = ("images", "audio_ms", "characters", "pages")
"""counts that are billed in place of tokens"""
_IN_PLACE = attrgetter(*IN_PLACE)
_BESIDE = attrgetter(
    *(name for name in Usage.__struct_fields__ if not name.endswith("_tokens") and name not in IN_PLACE)
)

NO_USAGE = Usage()
"""nothing reported"""


class Running(NamedTuple):
    """The relation of a usage to a running answer."""

    completion_tokens: int | None = None
    """the provider's own count so far, where it is not final"""
    behind: int = 0
    """events with output after the last usage"""


NOT_RUNNING = Running()


class ModelUsage(msgspec.Struct, frozen=True):
    """Usage of another model for the same answer, at its own prices: a tool's, an advisor, one that declined."""

    model: str
    """the model's name at the provider"""
    usage: Usage


class Silence(msgspec.Struct, frozen=True):
    """The hidden tokens that the time before an answer's first word indicates, as learned when the exchange began."""

    tokens_per_s: float
    """most hidden tokens"""
    tokens_max: int
    billed: bool
    """the operator has silence billed; False: the entry only states it"""


class ServedAs(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The terms of service that the price of an answer depends on. Words in lower case; None: not reported."""

    service_tier: str | None = None
    speed: str | None = None
    geography: str | None = None
    """where the answer was processed"""
    longest_prompt_tokens: int | None = None
    """prompt tokens of the longest step, if the usage is a sum of several: a step is priced by its own length"""


NOT_SAID = ServedAs()


class Seen(NamedTuple):
    """The facts of an answer so far, other than its usage."""

    served_as: ServedAs = NOT_SAID
    images: int = 0
    """finished images of a tool"""
    unknown_items: int = 0
    """items of the output that may be billed and are unknown to the dialect, such as a container"""
    flags: Iterable[str] = ()


NOTHING_SEEN = Seen()


def service_of(
    service_tier: object, speed: object = None, geography: object = None, longest_prompt_tokens: int | None = None
) -> ServedAs:
    """The terms of service from the reported words."""
    if service_tier is speed is geography is None and longest_prompt_tokens is None:
        return NOT_SAID
    return ServedAs(_word(service_tier), _word(speed), _word(geography), longest_prompt_tokens)


@lru_cache(maxsize=64)
def service_in_tier(service_tier: str | None, before: ServedAs = NOT_SAID) -> ServedAs:
    """`served_later` of an answer that reports only its tier: many report it in each event."""
    return served_later(before, service_of(service_tier))


def served_later(before: ServedAs, after: ServedAs) -> ServedAs:
    """The terms of service that two events report: each word is the later one."""
    if before is NOT_SAID or after is NOT_SAID:
        return before if after is NOT_SAID else after
    words = zip(astuple(before), astuple(after), strict=True)
    return ServedAs(*(old if new is None else new for old, new in words))


def _word(value: object) -> str | None:
    """A reported word in lower case; None: not reported, or "auto", which is requested and not applied."""
    word = value.strip().lower() if isinstance(value, str) else "" if value is None else OTHER_WORD
    if word in _SAYS_NOTHING:
        return None
    return word if _WORD.fullmatch(word) else OTHER_WORD


_SAYS_NOTHING = frozenset({"", "auto"})


@dataclass(slots=True)
class Evidence:
    """Counters of the streamed output, the only input of an estimate.

    At any moment they are those of a stream that ends there: they decrease only when texts turn out to repeat all
    earlier text. Characters are Unicode code points of generated text (content, reasoning, refusal, tool names and
    arguments); a cumulative stream counts its longest text once, not the sum.
    """

    text_events: int = 0
    """events that carried generated text other than tool arguments"""
    tool_events: int = 0
    """events that carried tool-call name or argument fragments"""
    tool_calls: int = 0
    """distinct tool calls begun"""
    chars_latin: int = 0
    """ASCII letters, digits, spaces, punctuation, and Latin letters with marks (below U+0250)"""
    chars_wide: int = 0
    """CJK, kana, hangul, emoji: code points that cost about a token each"""
    chars_other: int = 0
    """every other script: Cyrillic, Arabic, Greek, Indic, …"""
    tool_chars: int = 0
    """characters of tool-call names and arguments (not counted again above)"""
    reasoning_chars: int = 0
    """the part of the text characters above that was reasoning"""
    blanks: int = 0
    """the part of `chars_latin` that is spaces: about one per word"""
    marks: int = 0
    """the part of `chars_latin` that is ASCII digits and punctuation"""
    chars_accented: int = 0
    """the part of `chars_latin` that is not ASCII"""
    chars_greek: int = 0
    """the part of `chars_other` that is Greek, Cyrillic or Armenian"""
    chars_arabic: int = 0
    """the part of `chars_other` that is Hebrew, Arabic or a neighbouring script"""
    chars_indic: int = 0
    """the part of `chars_other` that is Devanagari, Bengali, Tamil, Thai or a neighbouring script"""
    chars_kana: int = 0
    """the part of `chars_wide` that is kana or CJK punctuation"""
    chars_hangul: int = 0
    """the part of `chars_wide` that is hangul syllables"""

    def count(self, chars: tuple[int, ...], *, reasoning: bool) -> None:
        """Add text, as counted by `text.chars_of`."""
        self.chars_latin += chars[0]
        self.blanks += chars[3]
        self.marks += chars[4]
        if chars[1] or chars[2] or chars[5]:
            self._count_more(*chars)
        if reasoning:
            self.reasoning_chars += chars[0] + chars[1] + chars[2]

    def _count_more(
        self, _latin: int, wide: int, other: int, _blanks: int, _marks: int,
        accented: int, greek: int, arabic: int, indic: int, kana: int, hangul: int,
    ) -> None:  # fmt: skip
        self.chars_wide += wide
        self.chars_other += other
        self.chars_accented += accented
        self.chars_greek += greek
        self.chars_arabic += arabic
        self.chars_indic += indic
        self.chars_kana += kana
        self.chars_hangul += hangul

    @property
    def chars(self) -> int:
        """All generated characters."""
        return self.chars_latin + self.chars_wide + self.chars_other + self.tool_chars

    @property
    def tokens_seen(self) -> float:
        """Approximate tokens of the output without reasoning."""
        text = self.chars_latin + self.chars_wide + self.chars_other
        tokens = (text - self.chars_wide) / 4 + self.chars_wide
        return tokens * (1 - min(self.reasoning_chars / text, 1.0) if text else 0.0) + self.tool_chars / 4

    @property
    def empty(self) -> bool:
        """True if no generated output was observed."""
        return not (self.chars_latin or self.chars_wide or self.chars_other or self.tool_chars or self.tool_calls)


class PromptEvidence(msgspec.Struct, frozen=True, gc=False):
    """Counters of a prompt, and its text: the input of an estimate of its tokens.

    Characters are Unicode code points of message text, in the classes of `Evidence`.
    """

    messages: int = 0
    chars_latin: int = 0
    chars_wide: int = 0
    chars_other: int = 0
    tool_chars: int = 0
    """bytes of compact JSON: tool definitions, response schemas, earlier tool calls"""
    images: int = 0
    attachments: int = 0
    """audio, files and everything else that is neither text nor an image"""
    blanks: int = 0
    marks: int = 0
    tools: int = 0
    """tool definitions"""
    calls: int = 0
    """earlier tool calls"""
    results: int = 0
    """messages with results of tool calls"""
    call_chars: int = 0
    """the part of `tool_chars` that is earlier calls"""
    schema_chars: int = 0
    """the part of `tool_chars` that is the response schema"""
    text: PromptText = NO_PROMPT_TEXT
    """the text whose characters are counted above, where a model generates from it"""


class Reading(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Usage and its source; terms of service as in `ServedAs`."""

    usage: Usage
    source: UsageSource
    estimator: str | None = None
    """version of the estimator, if any count is estimated"""
    expected_error: float | None = None
    """typical relative error of such an estimate, 0.1 = 10 %"""
    service_tier: str | None = None
    capped: bool = False
    """the estimate exceeded its upper bound"""
    hidden_tokens: int | None = None
    """estimated hidden reasoning within the estimated completion tokens (0: amount unknown yet); None: the model is not
    known to hide reasoning, or the count is reported"""
    speed: str | None = None
    geography: str | None = None
    longest_prompt_tokens: int | None = None
    limit_exceeded: bool = False
    """the output exceeds the request's limit, which then caps nothing"""
    hidden_by_time: int | None = None
    """hidden tokens that the silence before the first word indicates, within the completion tokens only if silence is
    billed; None: output was seen, or no rate is learned"""

    @property
    def served_as(self) -> ServedAs:
        """The terms of service that the price depends on."""
        if self.service_tier is self.speed is self.geography is None and self.longest_prompt_tokens is None:
            return NOT_SAID
        return ServedAs(self.service_tier, self.speed, self.geography, self.longest_prompt_tokens)


NOTHING = Reading(NO_USAGE, UsageSource.NONE)
