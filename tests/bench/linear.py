"""The estimator before the regression, `linear-1`: a fixed linear prior times one factor for each model.

Law: kept as it was, only to be measured beside the one in use.
"""

from __future__ import annotations

import math

from proxy.metering.usage import Evidence, Usage

_SHRINK, _MEMORY, _TELLING_TOKENS = 5.0, 200.0, 20
_STEP_MAX, _CORRECTION_MAX = math.log(2), math.log(4)


class Linear:
    """Answers like `proxy.metering.estimator.estimate.Estimator`, of completions only, uncapped."""

    def __init__(self) -> None:
        self._learned: dict[str, tuple[float, float]] = {}  # weight seen, mean log ratio

    def tokens(self, model_key: str, evidence: Evidence) -> int:
        """Tokens generated, at least 1."""
        return max(round(_prior(evidence) * self._factor(model_key)), 1)

    def learn(self, model_key: str, evidence: Evidence, usage: Usage) -> None:
        """From an answer that reported."""
        assert usage.completion_tokens
        seen, ratio = self._learned.get(model_key, (0.0, 0.0))
        weight = min(1.0, usage.completion_tokens / _TELLING_TOKENS)
        seen = min(seen + weight, _MEMORY)
        step = math.log(usage.completion_tokens / _prior(evidence)) - ratio
        moved = ratio + weight / seen * min(max(step, -_STEP_MAX), _STEP_MAX)
        self._learned[model_key] = seen, min(max(moved, -_CORRECTION_MAX), _CORRECTION_MAX)

    def _factor(self, model_key: str) -> float:
        seen, ratio = self._learned.get(model_key, (0.0, 0.0))
        return math.exp(ratio * seen / (seen + _SHRINK))


def _prior(evidence: Evidence) -> float:
    return (
        1.0
        + evidence.chars_latin / 4.2
        + evidence.chars_wide * 0.8
        + evidence.chars_other / 2.2
        + evidence.tool_chars / 3.9
        + evidence.tool_calls * 9.0
    )
