"""Estimates the prompt tokens of a model: tokens per counter of a request, and the expected error.

Invariants: a model starts with a prior, and learns the overhead of messages, tools, calls and results and the tokens
per character. After many answers it learns only from unusual ones and a sample. A prompt has at least one token.
"""

from __future__ import annotations

from proxy.metering.estimator.regression import Errors, Learned, Weight
from proxy.metering.usage import PromptEvidence

# One per counter, from 690 recorded requests. Images and attachments are a guess: providers differ 40 ×.
BELIEFS = (
    Weight(3.0, 8.0, least=-10.0, most=200.0),  # the request: the start and end of the template
    Weight(4.0, 3.0, least=0.0, most=40.0),  # messages
    Weight(1 / 4.4, 0.15, least=0.02, most=1.0),  # Latin characters
    Weight(0.8, 0.3, least=0.2, most=3.0),  # ideographs, kana, hangul
    Weight(1 / 2.2, 0.2, least=0.1, most=3.0),  # other characters
    Weight(1 / 5.5, 0.08, least=0.0, most=1.0),  # bytes of tools, schemas and earlier calls
    Weight(500.0, 500.0, least=0.0, most=5000.0),  # images and attachments
    # Corrections to the counters above:
    Weight(0.0, 80.0, least=-50.0, most=1500.0),  # any tools: some templates explain them at length
    Weight(0.0, 10.0, least=-50.0, most=300.0),  # tools
    Weight(0.0, 8.0, least=-20.0, most=60.0),  # earlier calls
    Weight(0.0, 8.0, least=-20.0, most=60.0),  # their results
    Weight(0.0, 0.15, least=-0.3, most=1.0),  # bytes of earlier calls
    Weight(0.0, 0.15, least=-0.3, most=1.0),  # bytes of the response schema
    Weight(0.0, 0.6, least=-1.0, most=2.0),  # blanks: about one per word
    Weight(0.0, 0.4, least=-1.0, most=2.0),  # digits and punctuation
)
# The typical error of the priors on recorded traffic.
ERROR_PRIOR = 0.3


def counters(prompt: PromptEvidence) -> list[float]:
    """The counters of BELIEFS, in their order."""
    return [
        1.0, prompt.messages, prompt.chars_latin, prompt.chars_wide, prompt.chars_other, prompt.tool_chars,
        prompt.images + prompt.attachments, 1.0 if prompt.tools else 0.0, prompt.tools, prompt.calls, prompt.results,
        prompt.call_chars, prompt.schema_chars, prompt.blanks, prompt.marks,
    ]  # fmt: skip


class Prompts(Learned):
    """The regression and mean error of one model."""

    beliefs = BELIEFS
    statistics = (("errors", Errors),)
    errors: Errors

    def tokens(self, prompt: PromptEvidence) -> int:
        """Estimated tokens, at least one."""
        estimate = round(self.regression.tokens(counters(prompt)))
        return estimate if estimate > 0 else 1

    def expected_error(self) -> float:
        return round(self.errors.expected(ERROR_PRIOR), 4)

    def learn(self, prompt: PromptEvidence, tokens: int) -> None:
        """Learn from an answer that reported its prompt tokens, at least one."""
        if self.errors.learn(self.tokens(prompt) / tokens - 1, tokens):
            self.regression.learn(counters(prompt), tokens)
