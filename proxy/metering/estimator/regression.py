"""A small regression per model: tokens as a weighted sum of a few counters, learned one answer at a time.

Recursive least squares (a Kalman filter with a constant state) that forgets towards its prior. Invariants: pure
arithmetic in a fixed order, so that the same answers in the same order give the same weights everywhere. It starts as
its prior. Every weight stays within its bounds. Outliers have little influence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Annotated, ClassVar, Self

import msgspec
from msgspec import Meta, structs

# Noise of a reported count in tokens: rounding.
_NOISE_TOKENS = 0.7
# The variance of an answer is raised until its error is at most this many standard deviations.
_OUTLIER = 2.5
# The share forgotten with every answer: some 300 answers are remembered.
_FORGOTTEN = 0.003
# The prior error weighs as much as _SHRINK answers; about _MEMORY answers are remembered.
_SHRINK, _MEMORY = 5.0, 200.0
# After _LEARNED answers, learn only from one of _ONE_IN, and from answers whose error exceeds _SURPRISE and _UNUSUAL
# times the usual error: learning costs ten times as much as estimating.
_LEARNED, _ONE_IN, _SURPRISE, _UNUSUAL = 100, 32, 0.05, 2.0
# A larger error is an outlier, and counts as this.
_ERROR_MAX = 2.0
# Answers with fewer tokens have less weight.
_FULL_WEIGHT_TOKENS = 20
# Tolerance for the last digit of stored values.
ROUNDING = 1 + 1e-9


class Weight(msgspec.Struct, frozen=True):
    """The prior of one counter: tokens per unit."""

    prior: float
    spread: float
    """standard deviation of models around the prior"""
    least: float
    most: float


class Noise(msgspec.Struct, frozen=True):
    """What the counters of an answer do not explain of its tokens, as standard deviations."""

    share: float
    """of the tokens, however many they are"""
    of_token: float = 0.0
    """of each token; for an answer it grows with the square root of their number: short answers vary more"""
    doubt: float = 1.0
    """A surprise is explained by weights up to so many times less certain than learned; the rest of it is noise."""

    def variance(self, tokens: float) -> float:
        """Of an answer of about so many tokens."""
        tokens = max(tokens, 1.0)
        return (_NOISE_TOKENS + self.share * tokens) ** 2 + self.of_token**2 * tokens


NOISE = Noise(0.05)


class RecursiveLeastSquares:
    """The weights of one model, and the upper triangle of their covariance, row by row."""

    def __init__(self, beliefs: Sequence[Weight], noise: Noise = NOISE) -> None:
        self._beliefs = beliefs
        self._noise = noise
        self._faded = [_FORGOTTEN * one.spread**2 for one in beliefs]
        self.weights = [one.prior for one in beliefs]
        self._rows = self._prior_covariance()

    def tokens(self, counters: Sequence[float]) -> float:
        """The `weighted` sum; it may be negative."""
        return math.fsum(map(mul, self.weights, counters))

    def deviation(self, counters: Sequence[float], tokens: float) -> float:
        """The standard deviation of an answer of about `tokens` tokens from its estimate."""
        return math.sqrt(max(weighted(self._gain(counters), counters), 0.0) + self._noise.variance(tokens))

    def learn(self, counters: Sequence[float], tokens: float, keep: frozenset[int] = frozenset()) -> None:
        """Learn from an answer with known tokens. `keep`: weights that stay."""
        estimate = weighted(self.weights, counters)
        reach = self._gain(counters)
        noise = self._noise.variance(max(estimate, tokens / 2))
        miss = tokens - estimate
        of_weights = max(weighted(reach, counters), 0.0)
        surprise = miss * miss / (_OUTLIER * _OUTLIER)
        wider = min(max((surprise - noise) / of_weights, 1.0), self._noise.doubt**2) if of_weights else 1.0
        variance = max(wider * of_weights + noise, surprise)
        for index, far in enumerate(reach):
            if far and index not in keep:
                self._move(index, wider * far * miss / variance)
        certain = wider * wider / variance - (wider - 1) / of_weights if wider > 1 else 1 / variance
        self._update_covariance(reach, 1 / certain if certain > 0 else math.inf, keep)

    def row(self) -> list[float]:
        """The learned state, for `restored`."""
        return self._numbers_of(range(len(self._rows)))

    @classmethod
    def restored(
        cls, beliefs: Sequence[Weight], row: Sequence[float], noise: Noise = NOISE
    ) -> RecursiveLeastSquares | None:
        """The inverse of `row`, whose numbers are finite; None if it is invalid."""
        return cls._of(range(len(beliefs)), row, beliefs, noise)

    def touched(self) -> list[float]:
        """The learned state, for `from_touched`: of the weights that were learned, if they are few."""
        prior = RecursiveLeastSquares(self._beliefs, self._noise)
        size = len(self._rows)
        known = {index for index in range(size) if self.weights[index] != prior.weights[index]}
        for index, (row, fresh) in enumerate(zip(self._rows, prior._rows, strict=True)):
            if row != fresh:
                known.add(index)
                known.update(index + step for step, value in enumerate(row) if value and step)
        apart = sorted(known)
        return [*map(float, apart), *self._numbers_of(apart)]

    @classmethod
    def from_touched(
        cls, beliefs: Sequence[Weight], row: Sequence[float], noise: Noise = NOISE
    ) -> RecursiveLeastSquares | None:
        """The inverse of `touched`, whose numbers are finite; None if it is invalid."""
        size = (math.isqrt(25 + 8 * len(row)) - 5) // 2
        apart = [int(value) for value in row[:size]]
        if apart != sorted(set(row[:size])) or (apart and not 0 <= apart[0] <= apart[-1] < len(beliefs)):
            return None
        return cls._of(apart, row[size:], beliefs, noise)

    def _numbers_of(self, indices: Sequence[int]) -> list[float]:
        """These weights, and the upper triangle of their covariance."""
        covariance = [self._rows[index][other - index] for at, index in enumerate(indices) for other in indices[at:]]
        return [*(self.weights[index] for index in indices), *covariance]

    @classmethod
    def _of(
        cls, indices: Sequence[int], numbers: Sequence[float], beliefs: Sequence[Weight], noise: Noise
    ) -> RecursiveLeastSquares | None:
        """The prior with the `_numbers_of` these weights; None if they are invalid."""
        size = len(indices)
        if len(numbers) != size + size * (size + 1) // 2:
            return None
        regression, covariance = cls(beliefs, noise), iter(numbers[size:])
        for at, index in enumerate(indices):
            regression.weights[index] = numbers[at]
            for other in indices[at:]:
                regression._rows[index][other - index] = next(covariance)
        return regression if regression._possible() else None

    def _prior_covariance(self) -> list[list[float]]:
        size = len(self._beliefs)
        return [[one.spread**2, *[0.0] * (size - index - 1)] for index, one in enumerate(self._beliefs)]

    def _gain(self, counters: Sequence[float]) -> list[float]:
        """Covariance × counters. Most counters of an answer are 0."""
        rows = self._rows
        reach = [0.0] * len(rows)
        for at, count in enumerate(counters):
            if count:
                for index in range(at):
                    reach[index] += rows[index][at - index] * count
                for index, value in enumerate(rows[at], at):
                    reach[index] += value * count
        return reach

    def _move(self, index: int, step: float) -> None:
        one, weight = self._beliefs[index], self.weights[index] + step
        self.weights[index] = one.least if weight < one.least else one.most if weight > one.most else weight

    def _update_covariance(self, reach: list[float], variance: float, keep: frozenset[int]) -> None:
        kept = 1 - _FORGOTTEN
        between = {(at, to): self._rows[at][to - at] for at in keep for to in keep if to >= at}
        for index, row in enumerate(self._rows):
            gain = reach[index] / variance
            if gain:  # weights that the answer does not involve are not forgotten
                row[:] = [(value - gain * far) * kept for value, far in zip(row, reach[index:], strict=True)]
                row[0] += self._faded[index]
        for (at, to), value in between.items():
            self._rows[at][to - at] = value
        if min([row[0] for row in self._rows]) <= 0:  # rounding errors: reset to the prior covariance
            self._rows = self._prior_covariance()

    def _possible(self) -> bool:
        for weight, row, one in zip(self.weights, self._rows, self._beliefs, strict=True):
            if not (one.least <= weight <= one.most and 0 < row[0] <= one.spread**2 * ROUNDING):
                return False
        widths = [math.sqrt(row[0]) for row in self._rows]
        return all(
            abs(value) <= widths[index] * widths[index + step] * ROUNDING
            for index, row in enumerate(self._rows)
            for step, value in enumerate(row)
        )


class Statistics(msgspec.Struct, array_like=True):
    """Sums and means over the answers of one model, stored as an array of numbers."""

    STORED: ClassVar[int]
    """number of stored fields, from the first one; the others count since this process started"""

    def row(self) -> list[float]:
        return list(structs.astuple(self)[: self.STORED])

    @classmethod
    def restored(cls, row: Sequence[float]) -> Self | None:
        """The inverse of `row`, whose numbers are finite; None if it is invalid."""
        if len(row) != cls.STORED:
            return None
        try:
            return msgspec.convert(row, cls)
        except msgspec.ValidationError:
            return None


class Errors(Statistics):
    """The mean relative error of a model's estimates, measured when the usage is reported."""

    STORED = 2
    weight: Annotated[float, Meta(ge=0, le=_MEMORY)] = 0.0
    mean: Annotated[float, Meta(ge=0, le=_ERROR_MAX)] = 0.0
    answers: int = 0

    def expected(self, prior: float) -> float:
        """Expected relative error of the next estimate: 0.1 = 10 %."""
        return prior + (self.mean - prior) * self.weight / (self.weight + _SHRINK)

    def learn(self, error: float, tokens: float) -> bool:
        """Learn from an answer: its tokens, and the signed relative error of its estimate. Returns whether the
        regression should learn from it, too."""
        self.answers += 1
        error = abs(error)
        teaches = (
            self.answers <= _LEARNED
            or self.answers % _ONE_IN == 0
            or (error > _SURPRISE and error > _UNUSUAL * self.mean)
        )
        weight = min(1.0, tokens / _FULL_WEIGHT_TOKENS)
        self.weight = min(self.weight + weight, _MEMORY)
        self.mean += weight / self.weight * (min(error, _ERROR_MAX) - self.mean)
        return teaches


class Learned:
    """One regression of a model and statistics of its answers. Stored as one row, statistics first."""

    beliefs: ClassVar[Sequence[Weight]]
    noise: ClassVar[Noise] = NOISE
    is_sparse: ClassVar[bool] = False
    """True: only the weights that were learned are stored"""
    statistics: ClassVar[tuple[tuple[str, type[Statistics]], ...]]
    """attributes and their classes, in the order in which they are stored"""

    def __init__(self) -> None:
        self.regression = RecursiveLeastSquares(self.beliefs, self.noise)
        for name, kind in self.statistics:
            setattr(self, name, kind())

    def row(self) -> list[float]:
        """The learned state, for `restored`."""
        numbers = [number for name, _ in self.statistics for number in getattr(self, name).row()]
        return numbers + (self.regression.touched() if self.is_sparse else self.regression.row())

    @classmethod
    def restored(cls, row: Sequence[float]) -> Self | None:
        """The inverse of `row`, whose numbers are finite; None if it is invalid."""
        model, at = cls(), 0
        for name, kind in cls.statistics:
            numbers = kind.restored(row[at : at + kind.STORED])
            if numbers is None:
                return None
            setattr(model, name, numbers)
            at += kind.STORED
        restore = RecursiveLeastSquares.from_touched if cls.is_sparse else RecursiveLeastSquares.restored
        regression = restore(cls.beliefs, row[at:], cls.noise)
        if regression is None:
            return None
        model.regression = regression
        return model


def weighted(weights: Sequence[float], counters: Sequence[float]) -> float:
    """The sum of the products."""
    return math.fsum(map(mul, weights, counters))  # `sum` rounds differently between Python versions
