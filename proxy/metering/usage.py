"""Token counts and where they come from.

Law: None is "not reported", 0 is "reported zero"; the two are never mixed. Subsets are subsets:
`cached_tokens` are part of `prompt_tokens`, `reasoning_tokens` are part of `completion_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

# No model known in 2026 has a context above 10 million tokens; a count beyond this is a broken provider.
TOKENS_MAX = 100_000_000


class UsageSource(StrEnum):
    """Who says the numbers of a reading."""

    REPORTED = "reported"
    """The provider's own usage object."""
    ESTIMATED = "estimated"
    """Our estimator, from counters, because the provider never said."""
    NONE = "none"
    """Nothing was generated, or nothing is known: counts are None."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one exchange, in tokens; None where nobody said so."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None

    @property
    def reported_nothing(self) -> bool:
        """True if neither prompt nor completion tokens are known."""
        return self.prompt_tokens is None and self.completion_tokens is None


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


class Reading(msgspec.Struct, frozen=True, gc=False):
    """Usage, and where it comes from."""

    usage: Usage
    source: UsageSource
    estimator: str | None = None
    """version of the estimator, when it made any of the numbers"""
    expected_error: float | None = None
    """typical relative error of such an estimate, 0.1 = 10 %"""


NOTHING = Reading(Usage(), UsageSource.NONE)
