"""Tokens of an event, as evidence beside the text: in a script that is new to a model, its events may tell more.

Invariants: the size is learned from answers whose events have several tokens, and has the weight that its variation
allows. An answer whose text says something very different keeps the estimate by its text.
"""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta

from proxy.metering.estimator.regression import Statistics

_MEMORY = 50.0
# The size is used after so many answers, and learned from answers with so many events.
_ANSWERS_MIN, _EVENTS_MIN = 4.0, 4
# Standard deviation of the logarithm before any answer: as much as one answer.
_PRIOR, _PRIOR_ANSWERS = 0.3, 1.0
# Estimates that differ by more of their common deviations contradict each other; an answer that differs by more of the
# deviations of sizes counts as differing by these.
_APART = 3.0
# Logarithms of tokens and events; so many tokens are more than any answer has.
_LOG_MAX = 50.0


class EventSize(Statistics):
    """The logarithm of tokens per event, of the answers of one model."""

    STORED = 4
    answers: Annotated[float, Meta(ge=0, le=_MEMORY)] = 0.0
    mean: Annotated[float, Meta(ge=-_LOG_MAX, le=_LOG_MAX)] = 0.0
    square: Annotated[float, Meta(ge=0, le=_LOG_MAX * _LOG_MAX)] = 0.0
    """mean square of the distance from the mean"""
    events: Annotated[float, Meta(ge=0, le=_LOG_MAX)] = 0.0
    """mean of the logarithm of the number of events"""

    def learn(self, tokens: float, events: int) -> None:
        """Learn from an answer that reported its streamed tokens."""
        if tokens < 1 or events < _EVENTS_MIN:
            return
        off = math.log(tokens / events) - self.mean
        if self.answers >= _ANSWERS_MIN:
            most = _APART * math.sqrt(self._variance())
            off = min(max(off, -most), most)
        self.answers = min(self.answers + 1, _MEMORY)
        self.mean += off / self.answers
        self.square += (off * off * (1 - 1 / self.answers) - self.square) / self.answers
        self.events += (math.log(events) - self.events) / self.answers

    def together(self, tokens: float, deviation: float, events: int) -> tuple[float, float]:
        """The estimate by the text, `tokens` with its standard deviation, together with the one by the events."""
        if self.answers < _ANSWERS_MIN or events < 1:
            return tokens, deviation
        by_text = (deviation / tokens) ** 2
        fewer = max(math.exp(self.events) / events, 1.0)  # which vary more
        by_events = self._variance() * (fewer + 1 / self.answers)
        # The mean of logarithms is less than the logarithm of the mean.
        apart = self.mean + self.square / 2 + math.log(events / tokens)
        if apart * apart > _APART * _APART * (by_text + by_events):
            return tokens, deviation
        share = by_text / (by_text + by_events)
        both = tokens * math.exp(share * apart)
        return both, both * math.sqrt(by_text * (1 - share))

    def _variance(self) -> float:
        """Of the logarithm, for an answer with the usual number of events."""
        return (self.square * self.answers + _PRIOR**2 * _PRIOR_ANSWERS) / (self.answers + _PRIOR_ANSWERS - 1)
