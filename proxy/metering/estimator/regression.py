"""A small regression, one for each model: tokens as a weighted sum of a few counters, learned one answer at a time.

Law: pure arithmetic in a fixed order, so that the same answers in the same order give the same weights everywhere.
Before it has seen anything it is its prior; every weight stays within its bounds; what is far off moves it little.
It is recursive least squares (a Kalman filter whose state does not move) that forgets towards its prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

import msgspec

# What an answer says is off by so many tokens: rounding. And by so much of its tokens: what no counter shows.
_NOISE_TOKENS, NOISE_SHARE = 0.7, 0.05
# An answer further off than so many standard deviations counts as one that is only this far off, but less sure.
_OUTLIER = 2.5
# So much of what was learned is forgotten with every answer: some 300 answers are remembered.
_FORGOTTEN = 0.003
# What was expected before counts as much as this many answers; older ones than about so many are forgotten.
_SHRINK, _MEMORY = 5.0, 200.0
# An error beyond this is an outlier, and counts as this much.
_ERROR_MAX = 2.0
# Fewer tokens than this say less about a model.
_TELLING_TOKENS = 20
# Room for the last digit of what was written down.
_ROUNDING = 1 + 1e-9


class Weight(msgspec.Struct, frozen=True):
    """What is believed of one counter before anything was seen: tokens for each of it."""

    prior: float
    spread: float
    """standard deviation: how far a model may be from the prior"""
    least: float
    most: float


class RecursiveLeastSquares:
    """The weights of one model, and how sure they are: the upper triangle of their covariance, row by row."""

    __slots__ = ("_beliefs", "_faded", "_noise", "_rows", "weights")

    def __init__(self, beliefs: Sequence[Weight], noise: float = NOISE_SHARE) -> None:
        """`noise`: the part of an answer's tokens that its counters do not show."""
        self._beliefs = beliefs
        self._noise = noise
        self._faded = [_FORGOTTEN * one.spread**2 for one in beliefs]
        self.weights = [one.prior for one in beliefs]
        self._rows = self._unsure()

    def tokens(self, counters: Sequence[float]) -> float:
        """The weighted sum; it may be negative."""
        return _weighted(self.weights, counters)

    def learn(self, counters: Sequence[float], tokens: float) -> None:
        """From an answer whose tokens are known."""
        said = _weighted(self.weights, counters)
        reach = self._gain(counters)
        noise = _NOISE_TOKENS + self._noise * max(said, tokens / 2, 1.0)
        miss = tokens - said
        variance = max(_weighted(reach, counters), 0.0) + noise * noise
        variance = max(variance, miss * miss / (_OUTLIER * _OUTLIER))
        for index, far in enumerate(reach):
            if far:
                self._move(index, far * miss / variance)
        self._update_covariance(reach, variance)

    def row(self) -> list[float]:
        """Everything learned, for `restored`."""
        return [*self.weights, *(value for row in self._rows for value in row)]

    @classmethod
    def restored(
        cls, beliefs: Sequence[Weight], row: Sequence[float], noise: float = NOISE_SHARE
    ) -> RecursiveLeastSquares | None:
        """From `row`; None if that cannot be one. The numbers are finite."""
        size = len(beliefs)
        if len(row) != size + size * (size + 1) // 2:
            return None
        ridge = cls(beliefs, noise)
        ridge.weights = list(row[:size])
        at = size
        for index in range(size):
            ridge._rows[index] = list(row[at : at + size - index])
            at += size - index
        return ridge if ridge._possible() else None

    def _unsure(self) -> list[list[float]]:
        size = len(self._beliefs)
        return [[one.spread**2, *[0.0] * (size - index - 1)] for index, one in enumerate(self._beliefs)]

    def _gain(self, counters: Sequence[float]) -> list[float]:
        """Covariance × counters: how far each weight may move. Most counters of an answer are 0."""
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

    def _update_covariance(self, reach: list[float], variance: float) -> None:
        kept = 1 - _FORGOTTEN
        for index, row in enumerate(self._rows):
            gain = reach[index] / variance
            if gain:  # what an answer says nothing of is not forgotten with it
                row[:] = [(value - gain * far) * kept for value, far in zip(row, reach[index:], strict=True)]
                row[0] += self._faded[index]
        if not all(row[0] > 0 for row in self._rows):  # rounding: begin to be unsure again
            self._rows = self._unsure()

    def _possible(self) -> bool:
        for weight, row, one in zip(self.weights, self._rows, self._beliefs, strict=True):
            if not (one.least <= weight <= one.most and 0 < row[0] <= one.spread**2 * _ROUNDING):
                return False
        widths = [math.sqrt(row[0]) for row in self._rows]
        return all(
            abs(value) <= widths[index] * widths[index + step] * _ROUNDING
            for index, row in enumerate(self._rows)
            for step, value in enumerate(row)
        )


class Errors:
    """The mean relative error of what a model was said to have used, by what was said before it told."""

    __slots__ = ("mean", "weight")

    def __init__(self, weight: float = 0.0, mean: float = 0.0) -> None:
        self.weight, self.mean = weight, mean

    def expected(self, prior: float) -> float:
        """Of the next: 0.1 = 10 %."""
        return prior + (self.mean - prior) * self.weight / (self.weight + _SHRINK)

    def learn(self, error: float, tokens: float) -> None:
        """From an answer of so many tokens, and the signed relative error of its estimate."""
        weight = min(1.0, tokens / _TELLING_TOKENS)
        self.weight = min(self.weight + weight, _MEMORY)
        self.mean += weight / self.weight * (min(abs(error), _ERROR_MAX) - self.mean)

    def row(self) -> list[float]:
        """Everything learned, for `restored`."""
        return [self.weight, self.mean]

    @classmethod
    def restored(cls, row: Sequence[float]) -> Errors | None:
        """From `row`; None if that cannot be one. The numbers are finite."""
        if len(row) != 2 or not 0 <= row[0] <= _MEMORY or not 0 <= row[1] <= _ERROR_MAX:
            return None
        return cls(*row)


def _weighted(weights: Sequence[float], counters: Sequence[float]) -> float:
    return math.fsum(map(mul, weights, counters))  # what `sum` rounds differs between versions of Python
