"""Estimates the completion tokens of a model: tokens per counter, the expected error, and hidden reasoning.

Invariants: answers with one token per event are estimated by events, answers with longer events by characters; the
characters per event of each answer decide. The weights are learned per model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil, floor
from typing import Annotated

from msgspec import Meta

from proxy.metering.estimator.regression import Errors, Learned, Statistics, Weight
from proxy.metering.usage import Evidence, Usage

# Characters per token, as of most tokenizers in English; and in tool calls, which are JSON.
_LATIN_PER_TOKEN, _OTHER_PER_TOKEN, _TOOL_PER_TOKEN, _WIDE_TOKENS = 4.4, 2.2, 3.4, 0.8
# Tokens per event by its characters: up to the first value events are counted, from the second one characters.
_TEXT_SINGLE, _TEXT_JOINED = 1.35, 1.85
_TOOL_SINGLE, _TOOL_JOINED = 1.0, 2.5

# One per counter, from 508 recorded streams of 62 models without hidden reasoning; rounded.
BELIEFS = (
    Weight(1.0, 2.6, least=0.0, most=100.0),  # the answer: role, stop and template tokens
    Weight(1.0, 0.13, least=0.5, most=4.0),  # text events of one token
    Weight(1.25, 0.4, least=0.3, most=5.0),  # tokens of text by its characters, if events have several tokens
    Weight(1.0, 0.15, least=0.5, most=4.0),  # tool events of one token
    Weight(1.0, 0.4, least=0.3, most=4.0),  # tokens of tool calls by their characters
    Weight(9.0, 10.0, least=-3.0, most=300.0),  # tool calls: the template around each, and its name in one event
    Weight(13.0, 15.0, least=-3.0, most=300.0),  # tool calls after the first: the template around all of them
    Weight(0.0, 0.25, least=-1.0, most=2.0),  # the part of the text that was reasoning: some do not bill it
    # Corrections to the counters above:
    Weight(0.0, 0.3, least=-2.0, most=2.0),  # blanks: about one per word
    Weight(0.0, 0.3, least=-2.0, most=2.0),  # digits and punctuation
    Weight(0.0, 0.8, least=-2.0, most=4.0),  # Latin letters with marks
    Weight(0.0, 0.5, least=-2.0, most=4.0),  # Greek, Cyrillic
    Weight(0.0, 0.5, least=-2.0, most=4.0),  # Hebrew, Arabic
    Weight(0.0, 0.8, least=-2.0, most=4.0),  # Devanagari, Tamil, Thai, …
    Weight(0.0, 0.8, least=-2.0, most=4.0),  # kana
    Weight(0.0, 0.8, least=-2.0, most=4.0),  # hangul
)

# A reported count is plausible within this factor of its estimate, and within so many deviations. Of 188 recorded
# answers of at least 200 characters without reasoning and calls, none is outside, before and after learning.
_PLAUSIBLE_FACTOR, _PLAUSIBLE_DEVIATIONS = 4.0, 14.0
# The mean error of the priors on recorded traffic.
ERROR_PRIOR = 0.2
# Number of remembered answers.
_MEMORY = 200.0
# Reported reasoning counts as hidden if it exceeds the streamed reasoning by this factor and number.
_HIDDEN_FACTOR, _HIDDEN_MIN = 1.5, 8.0
# A short answer has at least this share of the usual hidden reasoning, which comes first; a longer one has more in
# proportion, up to the second factor.
_HIDDEN_LEAST, _HIDDEN_MOST = 0.8, 20.0
# Upper bound of the hidden tokens learned from one answer: this many times the usual ones plus this many.
_HIDDEN_STEP, _HIDDEN_FIRST = 10.0, 1000.0
# Answers of the same model name at other providers weigh as much as this many of the model itself.
_NAMESAKES = 2.0
# Model names known to hide reasoning by default, at any provider; used until so many answers of the name have reported
# it.
_HIDES = re.compile(r"o[1-9](-|$)|gpt-5(?!.*-chat)|gemini-(2\.5-(pro|flash(?!-lite))|[3-9])|grok-4(?!.*non-reasoning)")
_ENOUGH_REPORTS = 5
# Relative error of hidden tokens, which vary several times over within one model.
_HIDDEN_ERROR = 0.5
# Error for such a model before any report: nearly all of its tokens may be hidden.
_HIDES_ERROR = 0.9


def counters(evidence: Evidence) -> list[float]:
    """The counters of BELIEFS, in their order."""
    latin, wide, other = evidence.chars_latin, evidence.chars_wide, evidence.chars_other
    chars, tool_chars, calls = latin + wide + other, evidence.tool_chars, evidence.tool_calls
    # A repeated event is no token: there are no more one-token events than characters.
    events = chars if evidence.text_events > chars else evidence.text_events
    tool_events = tool_chars if evidence.tool_events > tool_chars else evidence.tool_events
    by_chars = latin / _LATIN_PER_TOKEN + wide * _WIDE_TOKENS + other / _OTHER_PER_TOKEN
    text_joined = joined(by_chars, events, _TEXT_SINGLE, _TEXT_JOINED)
    single_text, joined_text = events * (1 - text_joined), by_chars * text_joined
    tool_by_chars = tool_chars / _TOOL_PER_TOKEN
    tool_joined = joined(tool_by_chars, tool_events, _TOOL_SINGLE, _TOOL_JOINED)
    reasoning = 0.0
    if evidence.reasoning_chars:
        reasoning = (single_text + joined_text) * min(evidence.reasoning_chars / max(chars, 1), 1.0)
    return [
        1.0, single_text, joined_text, tool_events * (1 - tool_joined), tool_by_chars * tool_joined,
        float(calls), calls - 1.0 if calls > 1 else 0.0, reasoning,
        evidence.blanks, evidence.marks, evidence.chars_accented, evidence.chars_greek, evidence.chars_arabic,
        evidence.chars_indic, evidence.chars_kana, evidence.chars_hangul,
    ]  # fmt: skip


def joined(tokens: float, events: int, single: float, several: float) -> float:
    """The weight of counted `tokens` against the events: 0 up to `single` tokens an event, 1 from `several` on."""
    if not events:
        return 1.0
    share = (tokens / events - single) / (several - single)
    return 0.0 if share < 0 else 1.0 if share > 1 else share


class Hidden(Statistics):
    """Sums over answers: tokens billed but not streamed, and streamed tokens."""

    STORED = 3
    answers: Annotated[float, Meta(ge=0, le=_MEMORY + 1)] = 0.0
    hidden: Annotated[float, Meta(ge=0)] = 0.0
    visible: float = 0.0

    def __post_init__(self) -> None:
        if self.visible < self.answers or (self.hidden and not self.answers):
            raise ValueError("impossible sums")

    def learn(self, hidden: float, visible: float) -> None:
        """Learn from an answer that reported its reasoning."""
        usual = self.hidden / self.answers if self.answers else 0.0
        kept = 1.0 if self.answers < _MEMORY else 1 - 1 / _MEMORY
        self.answers = self.answers * kept + 1
        self.hidden = self.hidden * kept + min(hidden, usual * _HIDDEN_STEP + _HIDDEN_FIRST)
        self.visible = self.visible * kept + visible

    def tokens(self, visible: float) -> float:
        """Expected hidden tokens of an answer with `visible` streamed ones."""
        if not self.hidden:
            return 0.0
        longer = visible * self.answers / self.visible
        return self.hidden / self.answers * min(max(longer, _HIDDEN_LEAST), _HIDDEN_MOST)


def may_hide(name: str, reports: float) -> bool:
    """True if this model name is known to hide reasoning and too few answers have reported how much."""
    return reports < _ENOUGH_REPORTS and _HIDES.match(name) is not None


def hidden_tokens(own: Hidden, named: Hidden, visible: float) -> float:
    """Expected hidden tokens, from the model itself and its name at other providers."""
    both = own.answers + _NAMESAKES
    return (own.answers * own.tokens(visible) + _NAMESAKES * named.tokens(visible)) / both


def hidden_of(evidence: Evidence, usage: Usage) -> float:
    """Tokens in the completion of `usage` that cannot have been streamed; at least one token remains visible."""
    reasoning, completion = usage.reasoning_tokens or 0, usage.completion_tokens or 0
    streamed = evidence.reasoning_chars / _LATIN_PER_TOKEN
    if reasoning <= _HIDDEN_FACTOR * streamed + _HIDDEN_MIN or reasoning > completion:
        return 0.0
    if (usage.total_tokens or 0) >= (usage.prompt_tokens or 0) + completion + reasoning:
        return 0.0  # reasoning is not included in the completion
    return min(reasoning - streamed, completion - 1.0)


def shown_error(learned: float, hidden_share: float | None) -> float:
    """Typical relative error of an estimate with this hidden share; None: the model hides nothing."""
    if hidden_share is not None:
        learned = max(learned, hidden_share * _HIDDEN_ERROR or _HIDES_ERROR)
    return round(learned, 4)


class Completions(Learned):
    """The regression, mean error and hidden reasoning of one model."""

    beliefs = BELIEFS
    statistics = (("errors", Errors), ("hidden", Hidden))
    errors: Errors
    hidden: Hidden

    def visible(self, counted: Sequence[float]) -> float:
        """Estimated streamed tokens, at least one."""
        tokens = self.regression.tokens(counted)
        return 1.0 if tokens < 1.0 else tokens

    def broken_bound(self, evidence: Evidence, tokens: int) -> dict[str, int]:
        """The bound that honest reports of an answer keep and `tokens` break: `at_least` or `at_most`; {}: neither."""
        counted, tokens = counters(evidence), max(tokens, 1)
        estimate = self.visible(counted)
        ratio = max(estimate / tokens, tokens / estimate)
        if ratio <= _PLAUSIBLE_FACTOR:
            return {}
        deviation = self.regression.deviation(counted, estimate)
        factor = max(_PLAUSIBLE_FACTOR, 1 + _PLAUSIBLE_DEVIATIONS * deviation / estimate)
        if ratio <= factor:
            return {}
        return {"at_least": ceil(estimate / factor)} if tokens < estimate else {"at_most": floor(estimate * factor)}

    def learn(self, evidence: Evidence, usage: Usage, named: Hidden) -> float:
        """Learn from an answer with completion tokens. Returns the relative error of its estimate: 0.1 = 10 % high."""
        tokens = usage.completion_tokens or 1
        counted = counters(evidence)
        estimate = self.visible(counted)
        error = (estimate + hidden_tokens(self.hidden, named, estimate)) / tokens - 1
        hidden = hidden_of(evidence, usage)
        if self.errors.learn(error, tokens):
            self.regression.learn(counted, tokens - hidden)
        self.hidden.learn(hidden, tokens - hidden)
        named.learn(hidden, tokens - hidden)
        return error
