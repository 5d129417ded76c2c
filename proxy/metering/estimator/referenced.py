"""Estimates completion tokens from a reference vocabulary's count: learns the ratio of a model's tokens to the
reference's.

Invariants: a model starts with beliefs about vocabularies in general. Events of one token each are counted as such; in
longer events the reference's tokens count, corrected by script and by kind of text, and the usual tokens of an event
are evidence, too. A surprising answer of a well-known model teaches nothing, unless most of its recent answers are
surprising.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Annotated, Self

from msgspec import Meta

from proxy.metering.estimator.completion import joined
from proxy.metering.estimator.event_size import EventSize
from proxy.metering.estimator.regression import Learned, Noise, Statistics, Weight, weighted
from proxy.metering.estimator.spread import MOSTLY, NINE_OF_TEN, ODD, Spread
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
    Weight(0.0, 1.2, least=-2.0, most=6.0),  # Vietnamese
    Weight(0.0, 1.0, least=-2.0, most=6.0),  # Greek
    Weight(0.0, 1.0, least=-2.0, most=6.0),  # Cyrillic
    Weight(0.0, 0.5, least=-2.0, most=6.0),  # Hebrew
    Weight(0.0, 1.0, least=-2.0, most=6.0),  # Arabic
    Weight(0.0, 1.2, least=-2.0, most=6.0),  # Devanagari
    Weight(0.0, 1.6, least=-2.0, most=6.0),  # Bengali, …
    Weight(0.0, 1.6, least=-2.0, most=6.0),  # Tamil, …
    Weight(0.0, 1.2, least=-2.0, most=6.0),  # Thai, Lao
    Weight(0.0, 0.35, least=-2.0, most=6.0),  # Han
    Weight(0.0, 0.25, least=-2.0, most=6.0),  # kana
    Weight(0.0, 1.0, least=-2.0, most=6.0),  # hangul
)
ANSWER_BELIEFS = (
    Weight(0.7, 1.0, least=-2.0, most=100.0),  # the answer: its end token, which some providers count
    Weight(4.0, 10.0, least=-3.0, most=300.0),  # tool calls: the template around each
    Weight(30.0, 15.0, least=-3.0, most=300.0),  # tool calls after the first: the template around all of them
    Weight(0.0, 0.1, least=-1.0, most=2.0),  # the part of the text that was reasoning: some do not bill it
)
# Of answers of one kind, their tokens: what the features above do not tell apart.
KIND_BELIEFS = (
    Weight(0.0, 0.06, least=-0.9, most=4.0),  # letters of western Europe
    Weight(0.0, 0.06, least=-0.9, most=4.0),  # further Latin letters
    Weight(0.0, 0.04, least=-0.9, most=4.0),  # plain
    Weight(0.0, 0.25, least=-0.9, most=4.0),  # emoji and rare characters
    Weight(0.0, 0.1, least=-0.9, most=4.0),  # code
    Weight(0.0, 0.1, least=-0.9, most=4.0),  # data: punctuation and digits
    Weight(0.0, 0.1, least=-0.9, most=4.0),  # random letters and digits
)
BELIEFS = (*TEXT_BELIEFS, *SINGLE_BELIEFS, *ANSWER_BELIEFS, *KIND_BELIEFS)
_TEXT = len(TEXT_BELIEFS)
# Of some features of a text, the places.
_ACCENTED, _EXTENDED, _VIETNAMESE, _HEBREW, _HAN, _KANA, _HANGUL, _EMOJI, _RARE = 1, 2, 3, 6, 12, 13, 14, 15, 16
_DIGITS, _NUMBERS, _GAPS, _SHORT = 19, 20, 22, 23
# Kinds of text: first one for each script from Vietnamese to hangul, then those of KIND_BELIEFS. See `kind_of`.
_SCRIPTS = _HANGUL + 1 - _VIETNAMESE
_WESTERN, _CENTRAL, _PLAIN, _SYMBOLS, _CODE, _DATA, _RANDOM = range(_SCRIPTS, _SCRIPTS + len(KIND_BELIEFS))
# Of the reference's tokens, the shares that make a text one of a kind; of Chinese with so much kana, Japanese.
_OF_SCRIPTS, _OF_KANA, _OF_SYMBOLS, _OF_SHORT, _OF_MARKS, _OF_DIGITS = 0.3, 0.2, 0.12, 0.2, 0.3, 0.15
_OF_EXTENDED, _OF_ACCENTED = 0.04, 0.02
# Scripts in single events, counted where the events are in excess: their letters are in several tokens nowhere else.
_ONLY_IN_EXCESS = frozenset(range(_VIETNAMESE, _HAN)) - {_HEBREW}
# The features of odd texts: emoji, rare, digits, whitespace, short tokens; emoji in single events; and the kinds of
# such texts. Answers that mostly have these teach nothing about others.
_ODD_FEATURES, _ODD_SHARE = (_EMOJI, _RARE, _DIGITS, _NUMBERS, _GAPS, _SHORT), 0.5
_OF_OTHERS = frozenset(range(len(BELIEFS))) - {
    *_ODD_FEATURES, _TEXT + 1, *range(len(BELIEFS) - len(KIND_BELIEFS) + _SYMBOLS - _SCRIPTS, len(BELIEFS)),
}  # fmt: skip
_NONE: frozenset[int] = frozenset()

# Tokens per event. Up to the first value events are counted, from the second one the reference's tokens: for a model of
# unknown shape; for one that is known to send single tokens (a character of it may be several tokens of the reference);
# by a reported count of mostly ASCII; and by one of any script, whose single events may have two tokens.
_UNKNOWN_SHAPE, _KNOWN_SINGLE, _REPORTED, _LEARNED = (1.5, 1.9), (2.5, 3.5), (1.3, 1.7), (2.0, 2.5)
# A shape is known after this many answers, if at most this share of them differs. This many answers are remembered; an
# answer teaches the shape if it has at least this many events.
_SHAPE_KNOWN, _SHAPE_DOUBT, _SHAPE_MEMORY, _SHAPE_EVENTS_MIN = 2, 0.1, 8, 8
# Tokens above a usual count are mostly those of code, base64 and the like, not of long words. The usual count allows
# this factor for reference tokens of other scripts, and this many tokens for a rare character.
_USUAL_MOST, _RARE_MOST = 1.3, 4.0
# With more events than this factor times the reference's tokens, letters are torn into several tokens.
_EXCESS = 1.2
# What the features do not explain. A kind of text may surprise: vocabularies differ more than the beliefs say.
NOISE = Noise(0.005, of_token=0.62, doubt=2.0)
# Bounds of any vocabulary's tokens, as factors of the reference's, plus tokens for templates of calls. They hold for
# answers in a script that the model never used before, too.
_LEAST, _MOST, _BESIDE = 0.5, 8.0, 100.0


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


def kind_of(profile: Profile) -> int:
    """The kind of a text: its script, or what a Latin one consists of. Below KINDS."""
    features = text_features(profile)
    tokens, scripts = max(features[0], 1.0), features[_VIETNAMESE : _HANGUL + 1]
    if sum(scripts) > _OF_SCRIPTS * tokens:
        if features[_KANA] > _OF_KANA * features[_HAN] and features[_HAN] == max(scripts):
            return _KANA - _VIETNAMESE
        return scripts.index(max(scripts))
    if features[_EMOJI] + features[_RARE] > _OF_SYMBOLS * tokens:
        return _SYMBOLS
    if features[_SHORT] > _OF_SHORT * tokens:
        return _RANDOM
    if profile.marks > _OF_MARKS * tokens:
        return _DATA if profile.digits > _OF_DIGITS * tokens else _CODE
    if features[_EXTENDED] > _OF_EXTENDED * tokens:
        return _CENTRAL
    return _WESTERN if features[_ACCENTED] > _OF_ACCENTED * tokens else _PLAIN


def _is_odd(counted: Counted) -> bool:
    """Whether the text is mostly emoji, rare characters, whitespace, or tokens far shorter than words."""
    features = text_features(counted.text + counted.calls)
    rare = (_RARE_MOST - _PER_CHAR[-1]) * (counted.text.rare + counted.calls.rare)
    return sum([features[index] for index in _ODD_FEATURES]) + rare > _ODD_SHARE * features[0]


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

    def of(self, estimate: float, reference: float, events: int, reported: float | None) -> float:
        """The weight of the reference's tokens against these events, 0 to 1. `reported`: the weight by a reported
        count, if there is one; counts until the shape is known."""
        if self.is_known:
            return 1.0 if self.joined > MOSTLY else joined(reference, events, *_KNOWN_SINGLE)
        if reported is not None and self.answers < _SHAPE_KNOWN:
            return reported
        return joined(estimate, events, *_UNKNOWN_SHAPE)

    def learn(self, evidence: Evidence, counted: Counted, tokens: float) -> None:
        """Learn from an answer that reported its streamed tokens."""
        both, events = counted.text + counted.calls, evidence.text_events + evidence.tool_events
        if events >= _SHAPE_EVENTS_MIN and 2 * (both.letters + both.digits + both.marks) >= both.chars:
            self.answers = min(self.answers + 1, _SHAPE_MEMORY)
            self.joined += (joined(tokens, events, *_REPORTED) - self.joined) / self.answers


class ReferencedEstimate(Learned):
    """The regression, the spread, the shape and the size of events of one model."""

    beliefs = BELIEFS
    noise = NOISE
    is_sparse = True
    statistics = (("spread", Spread), ("shape", Shape), ("event_size", EventSize))
    spread: Spread
    shape: Shape
    event_size: EventSize

    def estimate(self, evidence: Evidence, counted: Counted) -> tuple[float, float]:
        """Streamed tokens, at least one, and the relative error in nine of ten answers at most."""
        kind = kind_of(counted.text + counted.calls)
        features = self._features_of(evidence, counted, kind)
        tokens = max(self.regression.tokens(features), 1.0)
        most = self.spread.most_deviations(kind) * self.regression.deviation(features, tokens)
        if self.shape.is_known and self.shape.joined > MOSTLY:
            events = evidence.text_events + evidence.tool_events
            tokens, deviation = self.event_size.together(tokens, most / NINE_OF_TEN, events)
            most = NINE_OF_TEN * deviation
        return max(tokens, 1.0), most / tokens

    def learn(self, evidence: Evidence, counted: Counted, tokens: float) -> None:
        """Learn from an answer that reported its streamed tokens."""
        kind = kind_of(counted.text + counted.calls)
        features = self._features_of(evidence, counted, kind, tokens)
        estimate = max(self.regression.tokens(features), 1.0)
        deviation = self.regression.deviation(features, max(estimate, tokens / 2))
        likely = _LEAST * counted.tokens <= tokens <= _MOST * counted.tokens + _BESIDE
        deviations = abs(tokens - estimate) / deviation if likely else math.inf
        odd = _is_odd(counted)
        if self.spread.learn(kind, counted.tokens, deviations):
            self.regression.learn(features, tokens, _OF_OTHERS if odd else _NONE)
        if deviations <= ODD:
            self.shape.learn(evidence, counted, tokens)
            if not odd:
                self.event_size.learn(tokens, evidence.text_events + evidence.tool_events)

    @classmethod
    def of_version_2(cls, row: Sequence[float]) -> Self | None:
        """What `reference-2` had learned: a row that began with one spread of all kinds, and without the size of
        events; None if it is invalid."""
        after = Spread.STORED_2 + Shape.STORED
        if len(row) < after:
            return None
        shape = row[Spread.STORED_2 : after]
        return cls.restored([*Spread.of_version_2(row).row(), *shape, *EventSize().row(), *row[after:]])

    def _features_of(self, evidence: Evidence, counted: Counted, kind: int, reported: float = 0.0) -> list[float]:
        """The features of BELIEFS, in their order. `reported`: the streamed tokens, if known."""
        weights = self.regression.weights
        text, calls = text_features(counted.text), text_features(counted.calls)
        chars = evidence.chars - evidence.tool_chars
        text_events, call_events = min(evidence.text_events, chars), min(evidence.tool_events, evidence.tool_chars)
        shape = joined(reported, text_events + call_events, *_LEARNED) if reported else None
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
        kinds = [0.0] * len(KIND_BELIEFS)
        if kind >= _SCRIPTS:
            kinds[kind - _SCRIPTS] = single + whole[0]
        return [
            *whole, single, torn[_EMOJI] + torn[_RARE], excess, *scripts,
            1.0, evidence.tool_calls, max(evidence.tool_calls - 1, 0),
            output_tokens * min(evidence.reasoning_chars / chars, 1.0) if evidence.reasoning_chars and chars else 0.0,
            *kinds,
        ]  # fmt: skip
