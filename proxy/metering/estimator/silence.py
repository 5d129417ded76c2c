"""Time as evidence: the hidden tokens of a model by the seconds before its first word.

Invariants: a rate is learned from answers that reported their hidden tokens. It is pinned to an exchange when the
exchange begins, so that every end of the exchange gives one number. Silence is billed only if the operator sets so; the
entry always states it.
"""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta, structs

from proxy.metering.estimator.regression import ROUNDING, Statistics
from proxy.metering.metered import Metered
from proxy.metering.usage import Reading, Silence, UsageSource

SILENCE = "silence-1"
"""the estimator's version of completions that consist of silence"""

# Number of remembered answers.
_MEMORY = 50.0
# Number of answers from which a rate is used.
_ANSWERS_MIN = 3.0
# The fastest models generate some 3,000 tokens a second; shorter silences are caused by the network.
_PER_S_MAX, _SECONDS_MIN = 5_000.0, 0.2
# A silence is at most as many of the usual hidden tokens: longer ones are the provider's.
_USUAL_MOST = 20.0
# How much a model hides varies less by time than by answer, but varies.
_ERROR = 0.5


class Pace(Statistics):
    """Sums over the answers of one model: hidden tokens, and the seconds before the first word."""

    STORED = 3
    answers: Annotated[float, Meta(ge=0, le=_MEMORY + 1)] = 0.0
    hidden: Annotated[float, Meta(ge=0)] = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        fits = self.hidden <= self.seconds * _PER_S_MAX * ROUNDING
        if not fits or self.seconds * ROUNDING < self.answers * _SECONDS_MIN:
            raise ValueError("impossible sums")

    def learn(self, hidden: float, seconds: float) -> None:
        """Learn from an answer that reported its hidden tokens."""
        if hidden <= 0 or seconds < _SECONDS_MIN:
            return
        kept = 1.0 if self.answers < _MEMORY else 1 - 1 / _MEMORY
        self.answers = self.answers * kept + 1
        self.hidden = self.hidden * kept + min(hidden, seconds * _PER_S_MAX)
        self.seconds = self.seconds * kept + seconds

    def silence(self, limit: int | None, *, billed: bool) -> Silence | None:
        """The silence of an exchange that begins. `limit`: its completion limit. None: too few answers were learned."""
        if self.answers < _ANSWERS_MIN:
            return None
        most = math.ceil(self.hidden / self.answers * _USUAL_MOST)
        return Silence(round(self.hidden / self.seconds, 3), most if limit is None else min(most, limit), billed)


def with_silence(reading: Reading, metered: Metered, silence: Silence | None, seconds: float) -> Reading:
    """The reading of an exchange that ended before its first word, `seconds` after the request was sent."""
    if silence is None or reading.source is not UsageSource.ESTIMATED or reading.usage.completion_tokens != 0:
        return reading
    if metered.complete or not metered.evidence.empty:
        return reading
    tokens = min(round(silence.tokens_per_s * max(seconds, 0.0)), silence.tokens_max)
    if tokens <= 0:
        return reading
    if not silence.billed:
        return structs.replace(reading, hidden_by_time=tokens)
    usage = structs.replace(
        reading.usage, completion_tokens=tokens, total_tokens=(reading.usage.prompt_tokens or 0) + tokens
    )
    return structs.replace(
        reading, usage=usage, estimator=SILENCE, expected_error=max(reading.expected_error or 0.0, _ERROR),
        hidden_tokens=tokens, hidden_by_time=tokens,
    )  # fmt: skip
