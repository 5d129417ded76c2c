"""What was used, in every unit that has a price, and where the counts come from.

Law: None is "not reported", 0 is "reported zero"; the two are never mixed. Subsets are subsets: `cached_tokens`,
`cache_write_tokens`, `audio_prompt_tokens` and `unbilled_prompt_tokens` are part of `prompt_tokens`,
`cache_write_1h_tokens` of `cache_write_tokens`, `reasoning_tokens`, `audio_completion_tokens` and
`unbilled_completion_tokens` of `completion_tokens`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

import msgspec

# No model known in 2026 has a context above 10 million tokens; a count beyond this is a broken provider.
TOKENS_MAX = 100_000_000
# So it is with images made for one request, and with searches: each is dearer than ten thousand tokens.
UNITS_MAX = 10_000

_SERVICE_TIER = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)


class UsageSource(StrEnum):
    """Who says the numbers of a reading."""

    REPORTED = "reported"
    """The provider's own usage object."""
    ESTIMATED = "estimated"
    """Our estimator, from counters, because the provider never said."""
    NONE = "none"
    """Nothing was generated, or nothing is known: counts are None."""


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Counts of one exchange; None where nobody said so. Fields are only added, at the end."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    cache_write_tokens: int | None = None
    """prompt tokens that the provider put into its cache"""
    cache_write_1h_tokens: int | None = None
    """the part of them that stays there for an hour"""
    audio_prompt_tokens: int | None = None
    audio_completion_tokens: int | None = None
    images: int | None = None
    """images made; images in a prompt are tokens"""
    audio_ms: int | None = None
    """milliseconds of audio, heard or spoken"""
    characters: int | None = None
    """Unicode code points of text to be spoken, or whatever else is charged by them"""
    searches: int | None = None
    """web searches and the like that the provider made"""
    unbilled_prompt_tokens: int | None = None
    """prompt tokens that the provider put there itself, and does not bill"""
    unbilled_completion_tokens: int | None = None
    """completion tokens, likewise"""

    @property
    def reported_nothing(self) -> bool:
        """True if nothing is known that a price alone could be for."""
        return self.prompt_tokens is None and self.completion_tokens is None and not self.in_other_units

    @property
    def in_other_units(self) -> bool:
        """True if it is counted in images, audio, characters or searches, and not in tokens."""
        if self.prompt_tokens is not None or self.completion_tokens is not None:
            return False
        return any(count is not None for count in (self.images, self.audio_ms, self.characters, self.searches))


NO_USAGE = Usage()
"""of which nobody has said anything"""


def service_tier_of(value: object) -> str | None:
    """The tier by which an answer says it was served, in small letters; None where it says none.

    What is not one short word is none, and neither is "auto": that is what was asked, not what was done.
    """
    word = value.strip().lower() if isinstance(value, str) else ""
    return word if _SERVICE_TIER.fullmatch(word) and word != "auto" else None


@dataclass(slots=True)
class Evidence:
    """Counters of what was streamed: all that an estimate may be made from. Every field only ever grows.

    Characters are Unicode code points of generated text (content, reasoning, refusal, tool names and arguments);
    a cumulative stream counts its longest text once, not the sum.
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
    """the part of `chars_latin` that is spaces: about one for each word"""
    marks: int = 0
    """the part of `chars_latin` that is ASCII digits and punctuation"""
    chars_accented: int = 0
    """the part of `chars_latin` that is not ASCII"""
    chars_greek: int = 0
    """the part of `chars_other` that is Greek, Cyrillic or Armenian"""
    chars_arabic: int = 0
    """the part of `chars_other` that is Hebrew, Arabic or a neighbour of them"""
    chars_indic: int = 0
    """the part of `chars_other` that is Devanagari, Bengali, Tamil, Thai or a neighbour of them"""
    chars_kana: int = 0
    """the part of `chars_wide` that is kana or CJK punctuation"""
    chars_hangul: int = 0
    """the part of `chars_wide` that is hangul syllables"""

    def count(self, chars: tuple[int, ...], *, reasoning: bool) -> None:
        """Adds text, as `text.chars_of` counts it."""
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
    def empty(self) -> bool:
        """True if nothing generated was seen."""
        return self.chars == 0 and self.tool_calls == 0


class PromptEvidence(msgspec.Struct, frozen=True, gc=False):
    """Counters of what was asked: all that an estimate of prompt tokens may be made from.

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
    """audio, files and whatever else is neither text nor an image"""
    blanks: int = 0
    marks: int = 0
    tools: int = 0
    """tool definitions"""
    calls: int = 0
    """earlier tool calls"""
    results: int = 0
    """messages that answer such calls"""
    call_chars: int = 0
    """the part of `tool_chars` that is earlier calls"""
    schema_chars: int = 0
    """the part of `tool_chars` that is the response's schema"""


class Reading(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Usage, and where it comes from."""

    usage: Usage
    source: UsageSource
    estimator: str | None = None
    """version of the estimator, when it made any of the numbers"""
    expected_error: float | None = None
    """typical relative error of such an estimate, 0.1 = 10 %"""
    service_tier: str | None = None
    """the provider's word for how it was served (`service_tier_of`); None: it did not say"""
    capped: bool = False
    """the estimate was higher than what was possible"""
    hidden_tokens: int | None = None
    """the part of the completion tokens that is taken to be hidden reasoning, when they are estimated for a model that
    is known to hide it (0: how much is not known yet); else None"""


NOTHING = Reading(NO_USAGE, UsageSource.NONE)
