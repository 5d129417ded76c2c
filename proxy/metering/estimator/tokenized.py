"""Estimates completion tokens from a tokenizer's count: learns what a model bills beside it, and the expected error.

Invariant: the count is taken as it is until reports of the model differ, for instance with the wrong tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.metering.estimator.completion import shown_error
from proxy.metering.estimator.regression import Errors, RecursiveLeastSquares, Weight
from proxy.metering.usage import Evidence

# From the same recorded streams as those of `completion`; rounded.
BELIEFS = (
    Weight(0.4, 1.0, least=0.0, most=100.0),  # the answer: its end token, which some providers count
    Weight(1.0, 0.05, least=0.2, most=5.0),  # tokens counted
    Weight(0.0, 0.01, least=-0.2, most=1.0),  # text events: overhead of the provider per event
    Weight(8.0, 10.0, least=-3.0, most=300.0),  # tool calls: the template around each
    Weight(13.0, 15.0, least=-3.0, most=300.0),  # tool calls after the first: the template around all of them
    Weight(0.0, 0.25, least=-1.0, most=2.0),  # the part of the text that was reasoning: some do not bill it
)

# Most answers are billed exactly as counted; larger differences have other causes, and little influence.
_NOISE = 0.01
# Before any report: it may be the wrong tokenizer.
ERROR_PRIOR = 0.1


def counters(evidence: Evidence, tokens: int) -> list[float]:
    """The counters of BELIEFS, in their order."""
    calls = evidence.tool_calls
    reasoning = tokens * min(evidence.reasoning_chars / evidence.chars, 1.0) if evidence.reasoning_chars else 0.0
    return [1.0, tokens, evidence.text_events, calls, max(calls - 1, 0), reasoning]


class TokenizedEstimate:
    """The regression and mean error of one model."""

    __slots__ = ("errors", "regression")

    def __init__(self) -> None:
        self.regression = RecursiveLeastSquares(BELIEFS, _NOISE)
        self.errors = Errors()

    def visible(self, evidence: Evidence, tokens: int) -> float:
        """Estimated streamed tokens, at least one. `tokens`: the tokenizer's count."""
        return max(self.regression.tokens(counters(evidence, tokens)), 1.0)

    def expected_error(self, hidden_share: float | None) -> float:
        """As `Completions.expected_error`."""
        return shown_error(self.errors.expected(ERROR_PRIOR), hidden_share)

    def learn(self, evidence: Evidence, tokens: int, *, visible: float, billed: int, error: float) -> None:
        """Learn from an answer. `billed` includes hidden tokens; `error`: of its estimate."""
        self.regression.learn(counters(evidence, tokens), visible)
        self.errors.learn(error, billed)

    def row(self) -> list[float]:
        """The learned state, for `restored`."""
        return [*self.errors.row(), *self.regression.row()]

    @classmethod
    def restored(cls, row: Sequence[float]) -> TokenizedEstimate | None:
        """The inverse of `row`, whose numbers are finite; None if it is invalid."""
        regression, errors = RecursiveLeastSquares.restored(BELIEFS, row[2:], _NOISE), Errors.restored(row[:2])
        if regression is None or errors is None:
            return None
        model = cls()
        model.regression, model.errors = regression, errors
        return model
