"""Estimates completion tokens from a tokenizer's count: learns the additional tokens that a model bills, and the error.

Invariant: the count is used unchanged until reports of the model differ, for instance with the wrong tokenizer.
"""

from __future__ import annotations

from proxy.metering.estimator.regression import Errors, Learned, Noise, Weight
from proxy.metering.usage import Evidence

# From the recorded streams of `completion.BELIEFS`; rounded.
BELIEFS = (
    Weight(0.4, 1.0, least=0.0, most=100.0),  # the answer: its end token, which some providers count
    Weight(1.0, 0.05, least=0.2, most=5.0),  # tokens counted
    Weight(0.0, 0.01, least=-0.2, most=1.0),  # text events: overhead of the provider per event
    Weight(8.0, 10.0, least=-3.0, most=300.0),  # tool calls: the template around each
    Weight(13.0, 15.0, least=-3.0, most=300.0),  # tool calls after the first: the template around all of them
    Weight(0.0, 0.25, least=-1.0, most=2.0),  # the part of the text that was reasoning: some do not bill it
)

# Most answers are billed exactly as counted; larger differences have other causes, and little influence.
_NOISE = Noise(0.01)
# Before any report: it may be the wrong tokenizer.
ERROR_PRIOR = 0.1


def counters(evidence: Evidence, tokens: int) -> list[float]:
    """The counters of BELIEFS, in their order."""
    calls = evidence.tool_calls
    reasoning = tokens * min(evidence.reasoning_chars / evidence.chars, 1.0) if evidence.reasoning_chars else 0.0
    return [1.0, tokens, evidence.text_events, calls, max(calls - 1, 0), reasoning]


class TokenizedEstimate(Learned):
    """The regression and mean error of one model."""

    beliefs = BELIEFS
    noise = _NOISE
    statistics = (("errors", Errors),)
    errors: Errors

    def visible(self, evidence: Evidence, tokens: int) -> float:
        """Estimated streamed tokens, at least one. `tokens`: the tokenizer's count."""
        return max(self.regression.tokens(counters(evidence, tokens)), 1.0)

    def learn(self, evidence: Evidence, tokens: int, *, visible: float, billed: int, error: float) -> None:
        """Learn from an answer. `billed` includes hidden tokens; `error`: of its estimate."""
        self.regression.learn(counters(evidence, tokens), visible)
        self.errors.learn(error, billed)
