"""How far answers are from their estimates, by kind of text, and which of them teach nothing.

Invariants: a kind with few answers has mostly the spread of the model's other kinds, and kinds that were not seen count
as the regression assumes. Answers that repeat a text say nothing about other texts. The state is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

import msgspec
from msgspec import Meta

from proxy.metering.estimator.regression import Statistics

KINDS = 19
"""number of kinds of text: see `referenced.kind_of`"""
# An answer further off than ODD expected deviations is odd. After _KNOWN usual answers, odd ones teach nothing, unless
# MOSTLY of the recent answers are odd: then the model has changed. 200 odd ones in a row are not enough for that.
ODD, _KNOWN, MOSTLY, _MEMORY = 4.0, 10.0, 0.5, 400.0
# So many answers of each kind are remembered.
_KIND_MEMORY = 50.0
# The spread of the model weighs as much as so many answers of a kind; that which the regression assumes, as much as so
# many kinds.
_OF_MODEL, _ASSUMED = 6.0, 3.0
# Nine of ten errors are within so many standard deviations. Of a learned one they are within more, the fewer answers it
# is learned from (the first terms of Student's t).
NINE_OF_TEN, _IF_FEW = 1.645, 1.524

_Answers = list[Annotated[float, Meta(ge=0, le=_KIND_MEMORY)]]
_Squares = list[Annotated[float, Meta(ge=0, le=ODD * ODD)]]


def _each_kind() -> list[float]:
    return [0.0] * KINDS


class Spread(Statistics):
    """The distance of answers from their estimates, in expected deviations, and the decision to learn from one."""

    STORED = 2 + 2 * KINDS
    STORED_2: ClassVar[int] = 3
    """of `reference-2`"""
    odd: Annotated[float, Meta(ge=0, le=1)] = 0.0
    usual: Annotated[float, Meta(ge=0, le=_MEMORY)] = 0.0
    answers: _Answers = msgspec.field(default_factory=_each_kind)
    """of each kind"""
    squares: _Squares = msgspec.field(default_factory=_each_kind)
    """mean squares of the distance, of each kind"""
    last: list[float] = msgspec.field(default_factory=_each_kind)
    """the reference's tokens of the last answer of each kind; not stored"""

    def row(self) -> list[float]:
        return [self.odd, self.usual, *self.answers, *self.squares]

    @classmethod
    def restored(cls, row: Sequence[float]) -> Self | None:
        if len(row) != cls.STORED:
            return None
        odd, usual, *kinds = row
        try:
            return msgspec.convert((odd, usual, kinds[:KINDS], kinds[KINDS:]), cls)
        except msgspec.ValidationError:
            return None

    @classmethod
    def of_version_2(cls, row: Sequence[float]) -> Self:
        """From the first STORED_2 numbers of a row of `reference-2`: the spread of all kinds together is dropped."""
        _, usual, odd = row[: cls.STORED_2]
        return cls(odd, usual)

    def most_deviations(self, kind: int) -> float:
        """The largest error in nine of ten answers of this kind, in expected deviations."""
        seen = [square for square, answers in zip(self.squares, self.answers, strict=True) if answers]
        of_model = (_ASSUMED + sum(seen)) / (_ASSUMED + len(seen))
        answers = self.answers[kind] + _OF_MODEL
        square = (self.answers[kind] * self.squares[kind] + _OF_MODEL * of_model) / answers
        return (NINE_OF_TEN + (_IF_FEW / answers if seen else 0.0)) * math.sqrt(square)

    def learn(self, kind: int, tokens: float, deviations: float) -> bool:
        """Learn from an answer with so many of the reference's tokens that is `deviations` off. Returns whether the
        regression should learn from it, too."""
        odd = deviations > ODD
        learns = not odd or self.usual < _KNOWN
        if learns and tokens != self.last[kind]:
            self.answers[kind] = min(self.answers[kind] + 1, _KIND_MEMORY)
            step = (min(deviations, ODD) ** 2 - self.squares[kind]) / self.answers[kind]
            self.squares[kind] = max(self.squares[kind] + step, 0.0)
        self.last[kind] = tokens
        self.odd += ((1.0 if odd else 0.0) - self.odd) / _MEMORY
        if odd:
            return learns or self.odd > MOSTLY
        self.usual = min(self.usual + 1, _MEMORY)
        return True
