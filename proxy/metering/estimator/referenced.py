"""Estimates completion tokens from a reference vocabulary's count: learns the ratio of a model's tokens to the
reference's.

Invariants: a model starts with beliefs about vocabularies in general. Events of one token each are counted as such; in
longer events the reference's tokens count, corrected by script. A surprising answer of a well-known model teaches
nothing, unless most of its recent answers are surprising.
"""

from __future__ import annotations

import math
from operator import mul
from typing import Annotated

from msgspec import Meta

from proxy.metering.estimator.completion import joined
from proxy.metering.estimator.regression import Learned, Statistics, Weight, weighted
from proxy.metering.profile import Counted, Profile
from proxy.metering.usage import Evidence

# Reference tokens for a character of each script, rounded: a weight of 1 is one more token for each of the reference's.
_PER_CHAR = (1.0, 1.0, 0.9, 0.45, 0.34, 0.47, 0.38, 0.4, 0.43, 0.4, 0.48, 0.83, 0.71, 0.8, 1.6, 1.2)

# Additional tokens of older vocabularies (cl100k, Llama 2's, GPT-2's) for each of the reference's, by script. One
# weight scales them: a model that is dear in one of these scripts is usually dear in all.
_OLDER = (3.0, 0.5, 1.7, 1.6, 1.2, 1.6, 1.7, 2.4, 2.7, 3.6, 1.9, 0.8, 0.35, 1.3, 0.0, 0.0)

# Features of a text: see `text_features`. The means lie between the reference, where all but the first are 0, and older
# vocabularies (cl100k, Llama 3's), a quarter of the way; the spreads reach these.
TEXT_BELIEFS = (
    Weight(1.02, 0.06, least=0.5, most=3.0),  # tokens of the reference
    Weight(0.35, 1.0, least=-2.0, most=6.0),  # accented
    Weight(0.0, 0.6, least=-2.0, most=6.0),  # extended
    Weight(0.0, 0.3, least=-0.9, most=6.0),  # Vietnamese
    Weight(0.05, 0.5, least=-0.9, most=6.0),  # Greek
    Weight(0.03, 0.25, least=-0.9, most=6.0),  # Cyrillic
    Weight(0.15, 0.45, least=-0.9, most=6.0),  # Hebrew
    Weight(0.03, 0.4, least=-0.9, most=6.0),  # Arabic
    Weight(0.0, 0.5, least=-2.0, most=6.0),  # Devanagari
    Weight(0.0, 0.5, least=-2.0, most=6.0),  # Bengali, …
    Weight(0.0, 0.6, least=-2.0, most=6.0),  # Tamil, …
    Weight(-0.05, 0.45, least=-0.9, most=6.0),  # Thai, Lao
    Weight(-0.22, 0.3, least=-0.9, most=3.0),  # Han: vocabularies from China have more of it
    Weight(-0.12, 0.25, least=-0.9, most=3.0),  # kana
    Weight(-0.03, 0.3, least=-0.9, most=3.0),  # hangul
    Weight(0.26, 0.5, least=-0.9, most=3.0),  # emoji
    Weight(-0.05, 0.5, least=-0.9, most=3.0),  # rare
    Weight(0.3, 0.5, least=-2.0, most=6.0),  # the three Indic ones together
    Weight(0.01, 0.4, least=-0.5, most=4.0),  # scripts that older vocabularies lack, by _OLDER
    Weight(0.3, 0.45, least=-0.5, most=1.5),  # digits that the reference joins: some vocabularies join none
    Weight(0.0, 0.2, least=-0.5, most=1.0),  # numbers
    Weight(0.0, 0.1, least=-0.5, most=1.0),  # punctuation
    Weight(-0.06, 0.5, least=-1.0, most=4.0),  # whitespace after whitespace, by sixteen
    Weight(0.0, 0.3, least=-0.9, most=2.0),  # tokens far shorter than words have: of code, base64 and the like
)
# Of events of one token each. A character of some scripts may be several tokens, which come in one event: mostly where
# there are more events than the reference has tokens. The scripts are by their reference tokens.
SINGLE_BELIEFS = (
    Weight(1.0, 0.05, least=0.5, most=4.0),  # events
    Weight(0.75, 0.4, least=-0.5, most=3.0),  # emoji and rare
    Weight(0.45, 0.8, least=-0.5, most=4.0),  # events in excess of the reference's tokens
    Weight(0.0, 1.2, least=-0.5, most=6.0),  # Vietnamese
    Weight(0.0, 1.0, least=-0.5, most=6.0),  # Greek
    Weight(0.0, 1.0, least=-0.5, most=6.0),  # Cyrillic
    Weight(0.0, 0.5, least=-0.5, most=6.0),  # Hebrew
    Weight(0.0, 1.0, least=-0.5, most=6.0),  # Arabic
    Weight(0.0, 1.2, least=-0.5, most=6.0),  # Devanagari
    Weight(0.0, 1.6, least=-0.5, most=6.0),  # Bengali, …
    Weight(0.0, 1.6, least=-0.5, most=6.0),  # Tamil, …
    Weight(0.0, 1.2, least=-0.5, most=6.0),  # Thai, Lao
    Weight(0.0, 0.35, least=-0.5, most=6.0),  # Han
    Weight(0.0, 0.25, least=-0.5, most=6.0),  # kana
    Weight(0.0, 0.5, least=-0.5, most=6.0),  # hangul
)
ANSWER_BELIEFS = (
    Weight(0.7, 1.0, least=-2.0, most=100.0),  # the answer: its end token, which some providers count
    Weight(4.0, 10.0, least=-3.0, most=300.0),  # tool calls: the template around each
    Weight(30.0, 15.0, least=-3.0, most=300.0),  # tool calls after the first: the template around all of them
    Weight(0.0, 0.1, least=-1.0, most=2.0),  # the part of the text that was reasoning: some do not bill it
)
BELIEFS = (*TEXT_BELIEFS, *SINGLE_BELIEFS, *ANSWER_BELIEFS)
_TEXT = len(TEXT_BELIEFS)
# Of some features of a text, the places.
_VIETNAMESE, _HEBREW, _HAN, _HANGUL, _EMOJI, _RARE = 3, 6, 12, 14, 15, 16
_DIGITS, _NUMBERS, _GAPS, _SHORT = 19, 20, 22, 23
# Scripts in single events, counted where the events are in excess: their letters are in several tokens nowhere else.
_ONLY_IN_EXCESS = frozenset(range(_VIETNAMESE, _HAN)) - {_HEBREW}
# The features of odd texts: emoji, rare, digits, whitespace, short tokens; and emoji in single events. Answers that
# mostly have these teach nothing about others.
_ODD_FEATURES, _ODD_SHARE = (_EMOJI, _RARE, _DIGITS, _NUMBERS, _GAPS, _SHORT), 0.5
_OF_OTHERS = frozenset(range(len(BELIEFS))) - {*_ODD_FEATURES, _TEXT + 1}
_NONE: frozenset[int] = frozenset()

# Tokens per event. Up to the first value events are counted, from the second one the reference's tokens: for a model of
# unknown shape; for one that is known to send single tokens (a character of it may be several tokens of the reference);
# and by a reported count.
_UNKNOWN_SHAPE, _KNOWN_SINGLE, _REPORTED = (1.5, 1.9), (2.5, 3.5), (1.3, 1.7)
# A shape is known after this many answers, if at most this share of them differs. This many answers are remembered; an
# answer teaches the shape if it has at least this many events.
_SHAPE_KNOWN, _SHAPE_DOUBT, _SHAPE_MEMORY, _SHAPE_EVENTS_MIN = 2, 0.1, 8, 8
# Tokens above a usual count are mostly those of code, base64 and the like, not of long words. The usual count allows
# this factor for reference tokens of other scripts, and this many tokens for a rare character.
_USUAL_MOST, _RARE_MOST = 1.3, 4.0
# With more events than this factor times the reference's tokens, letters are torn into several tokens.
_EXCESS = 1.2
# Share of a count that the features do not explain.
NOISE = 0.03
# An answer further off than _ODD expected deviations is odd. After _KNOWN usual answers, odd ones teach nothing, unless
# most of the recent answers are odd: then the model has changed. 200 odd ones in a row are not enough for that.
_ODD, _KNOWN, _MOSTLY, _MEMORY = 4.0, 10.0, 0.5, 400.0
# Bounds of any vocabulary's tokens, as factors of the reference's, plus tokens for templates of calls. They hold for
# answers in a script that the model never used before, too.
_LEAST, _MOST, _BESIDE = 0.5, 8.0, 100.0
# In nine of ten answers the error is at most this many deviations at first; learned within bounds, in small steps.
MOST_DEVIATIONS, _SHARE, _QUANTILE_STEP, _DEVIATIONS_MIN, _DEVIATIONS_MAX = 1.65, 0.9, 0.1, 0.8, 6.0


def text_features(profile: Profile) -> list[float]:
    """The features of TEXT_BELIEFS, in their order."""
    vietnamese, accented, extended = profile.vietnamese, profile.accented, profile.extended
    if vietnamese:  # which has those, too
        theirs = min(accented, vietnamese), min(extended, vietnamese)
        vietnamese, accented, extended = vietnamese + sum(theirs), accented - theirs[0], extended - theirs[1]
    scripts = (
        accented, extended, vietnamese, profile.greek, profile.cyrillic, profile.hebrew,
        profile.arabic, profile.devanagari, profile.bengali, profile.tamil, profile.thai, profile.han, profile.kana,
        profile.hangul, profile.emoji, profile.rare,
    )  # fmt: skip
    parts = [count * per_char if count else 0.0 for count, per_char in zip(scripts, _PER_CHAR, strict=True)]
    indic = parts[7] + parts[8] + parts[9]
    lacking = math.fsum(map(mul, _OLDER, parts))
    usual = (
        profile.letters / 3
        + profile.numbers
        + profile.marks
        + _USUAL_MOST * sum(parts[:-1])
        + _RARE_MOST * profile.rare
    )
    return [
        profile.tokens, *parts, indic, lacking, profile.digits - profile.numbers, profile.numbers, profile.marks / 2,
        profile.gaps / 16, max(profile.tokens - usual, 0.0),
    ]  # fmt: skip


def _is_odd(counted: Counted) -> bool:
    """Whether the text is mostly emoji, rare characters, whitespace, or tokens far shorter than words."""
    features = text_features(counted.text + counted.calls)
    rare = (_RARE_MOST - _PER_CHAR[-1]) * (counted.text.rare + counted.calls.rare)
    return sum([features[index] for index in _ODD_FEATURES]) + rare > _ODD_SHARE * features[0]


class Spread(Statistics):
    """The distance of answers from their estimates, in expected deviations, and the decision to learn from one."""

    STORED = 3
    most_deviations: Annotated[float, Meta(ge=_DEVIATIONS_MIN, le=_DEVIATIONS_MAX)] = MOST_DEVIATIONS
    """the largest error in nine of ten answers"""
    usual: Annotated[float, Meta(ge=0, le=_MEMORY)] = 0.0
    odd: Annotated[float, Meta(ge=0, le=1)] = 0.0

    def learn(self, deviations: float) -> bool:
        """Learn from an answer that is `deviations` off. Returns whether the regression should learn from it, too."""
        odd = deviations > _ODD
        step = _QUANTILE_STEP * self.most_deviations
        self.most_deviations += step * _SHARE if deviations > self.most_deviations else -step * (1 - _SHARE)
        self.most_deviations = min(max(self.most_deviations, _DEVIATIONS_MIN), _DEVIATIONS_MAX)
        self.odd += ((1.0 if odd else 0.0) - self.odd) / _MEMORY
        if odd:
            return self.usual < _KNOWN or self.odd > _MOSTLY
        self.usual = min(self.usual + 1, _MEMORY)
        return True


class Shape(Statistics):
    """Whether the events of a model have one token each or several, from its answers of mostly ASCII, whose tokens vary
    little between vocabularies."""

    STORED = 2
    answers: Annotated[float, Meta(ge=0, le=_SHAPE_MEMORY)] = 0.0
    joined: Annotated[float, Meta(ge=0, le=1)] = 0.0

    @property
    def is_known(self) -> bool:
        """Whether answers were learned, and agree."""
        return self.answers >= _SHAPE_KNOWN and not _SHAPE_DOUBT < self.joined < 1 - _SHAPE_DOUBT

    def of(self, estimate: float, reference: float, events: int, reported: float) -> float:
        """The weight of the reference's tokens against these events, 0 to 1. `reported`: the weight by a reported
        count; counts until the shape is known."""
        if self.is_known:
            return 1.0 if self.joined > _MOSTLY else joined(reference, events, *_KNOWN_SINGLE)
        by_estimate = joined(estimate, events, *_UNKNOWN_SHAPE)
        return by_estimate if self.answers >= _SHAPE_KNOWN else max(by_estimate, reported)

    def learn(self, evidence: Evidence, counted: Counted, tokens: float) -> None:
        """Learn from an answer that reported its streamed tokens."""
        both, events = counted.text + counted.calls, evidence.text_events + evidence.tool_events
        if events >= _SHAPE_EVENTS_MIN and 2 * (both.letters + both.digits + both.marks) >= both.chars:
            self.answers = min(self.answers + 1, _SHAPE_MEMORY)
            self.joined += (joined(tokens, events, *_REPORTED) - self.joined) / self.answers


class ReferencedEstimate(Learned):
    """The regression, the spread and the shape of one model."""

    beliefs = BELIEFS
    noise = NOISE
    is_sparse = True
    statistics = (("spread", Spread), ("shape", Shape))
    spread: Spread
    shape: Shape

    def estimate(self, evidence: Evidence, counted: Counted) -> tuple[float, float]:
        """Streamed tokens, at least one, and the relative error in nine of ten answers at most."""
        features = self._features_of(evidence, counted)
        tokens = max(self.regression.tokens(features), 1.0)
        return tokens, self.spread.most_deviations * self.regression.deviation(features, tokens) / tokens

    def learn(self, evidence: Evidence, counted: Counted, tokens: float) -> None:
        """Learn from an answer that reported its streamed tokens."""
        features = self._features_of(evidence, counted, tokens)
        estimate = max(self.regression.tokens(features), 1.0)
        deviation = self.regression.deviation(features, max(estimate, tokens / 2))
        likely = _LEAST * counted.tokens <= tokens <= _MOST * counted.tokens + _BESIDE
        deviations = abs(tokens - estimate) / deviation if likely else math.inf
        if self.spread.learn(deviations):
            self.regression.learn(features, tokens, _OF_OTHERS if _is_odd(counted) else _NONE)
        if deviations <= _ODD:
            self.shape.learn(evidence, counted, tokens)

    def _features_of(self, evidence: Evidence, counted: Counted, reported: float = 0.0) -> list[float]:
        """The features of BELIEFS, in their order. `reported`: the streamed tokens, if known."""
        weights = self.regression.weights
        text, calls = text_features(counted.text), text_features(counted.calls)
        chars = evidence.chars - evidence.tool_chars
        text_events, call_events = min(evidence.text_events, chars), min(evidence.tool_events, evidence.tool_chars)
        shape = joined(reported, text_events + call_events, *_UNKNOWN_SHAPE) if reported else 0.0
        text_joined = self.shape.of(weighted(weights, text), text[0], text_events, shape)
        call_joined = self.shape.of(weighted(weights, calls), calls[0], call_events, shape)
        single = text_events * (1 - text_joined) + call_events * (1 - call_joined)
        torn = [one * (1 - text_joined) + other * (1 - call_joined) for one, other in zip(text, calls, strict=True)]
        whole = [one * text_joined + other * call_joined for one, other in zip(text, calls, strict=True)]
        letters = sum(torn[_VIETNAMESE:_HAN]) + torn[_HANGUL]
        excess = min(max(single - _EXCESS * torn[0], 0.0), letters)
        in_excess = excess / letters if letters else 0.0
        scripts = [
            torn[at] * in_excess if at in _ONLY_IN_EXCESS else torn[at] for at in range(_VIETNAMESE, _HANGUL + 1)
        ]
        output_tokens = text_events * (1 - text_joined) + counted.text.tokens * text_joined
        return [
            *whole, single, torn[_EMOJI] + torn[_RARE], excess, *scripts,
            1.0, evidence.tool_calls, max(evidence.tool_calls - 1, 0),
            output_tokens * min(evidence.reasoning_chars / chars, 1.0) if evidence.reasoning_chars and chars else 0.0,
        ]  # fmt: skip
