"""What one model's answers say where a tokenizer counts their text: what it bills beside that, and how far off that is.

Law: the tokenizer's count stands unless the model's own reports say otherwise: another tokenizer is found out, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.metering.estimator.completion import shown_error
from proxy.metering.estimator.regression import Errors, RecursiveLeastSquares, Weight
from proxy.metering.usage import Evidence

# From the same recorded streams as the counters' beliefs; rounded.
BELIEFS = (
    Weight(0.4, 1.0, least=0.0, most=100.0),  # the answer: a token that ends it, which some count
    Weight(1.0, 0.05, least=0.2, most=5.0),  # tokens counted
    Weight(0.0, 0.01, least=-0.2, most=1.0),  # text events: what a provider adds to each
    Weight(8.0, 10.0, least=-3.0, most=300.0),  # tool calls: the frame around each
    Weight(13.0, 15.0, least=-3.0, most=300.0),  # tool calls after the first: the frame around all of them
    Weight(0.0, 0.25, least=-1.0, most=2.0),  # the part of the text that was reasoning: some do not bill it
)

# Most answers are billed what was counted, to the token; what is further off is another matter, and moves little.
_NOISE = 0.01
# Before any answer told: it may be another model's tokenizer.
ERROR_PRIOR = 0.1


def counters(evidence: Evidence, tokens: int) -> list[float]:
    """What BELIEFS are about, in their order."""
    calls = evidence.tool_calls
    reasoning = tokens * min(evidence.reasoning_chars / evidence.chars, 1.0) if evidence.reasoning_chars else 0.0
    return [1.0, tokens, evidence.text_events, calls, max(calls - 1, 0), reasoning]


class TokenizedEstimate:
    """One model: its regression, its mean error."""

    __slots__ = ("errors", "ridge")

    def __init__(self) -> None:
        self.ridge = RecursiveLeastSquares(BELIEFS, _NOISE)
        self.errors = Errors()

    def visible(self, evidence: Evidence, tokens: int) -> float:
        """Tokens of what was streamed, at least one, if so many were counted."""
        return max(self.ridge.tokens(counters(evidence, tokens)), 1.0)

    def expected_error(self, hidden_share: float | None) -> float:
        """As of an estimate by counters alone."""
        return shown_error(self.errors.expected(ERROR_PRIOR), hidden_share)

    def learn(self, evidence: Evidence, tokens: int, *, visible: float, billed: int, error: float) -> None:
        """From an answer that was billed with so many, the hidden ones included; and the error of its estimate."""
        self.ridge.learn(counters(evidence, tokens), visible)
        self.errors.learn(error, billed)

    def row(self) -> list[float]:
        """Everything learned, for `restored`."""
        return [*self.errors.row(), *self.ridge.row()]

    @classmethod
    def restored(cls, row: Sequence[float]) -> TokenizedEstimate | None:
        """From `row`; None if that cannot be one. The numbers are finite."""
        ridge, errors = RecursiveLeastSquares.restored(BELIEFS, row[2:], _NOISE), Errors.restored(row[:2])
        if ridge is None or errors is None:
            return None
        found = cls()
        found.ridge, found.errors = ridge, errors
        return found
