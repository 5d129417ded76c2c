"""What one model's answers say of prompts: tokens for each counter of a request, and how far off that is.

Law: before a model taught, its prior; then what its template adds for messages, tools, calls and results is learned,
as the worth of characters is. Of a model that many answers taught, what surprises is learned, and some of the rest. A
prompt is at least one token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from proxy.metering.estimator.regression import Errors, RecursiveLeastSquares, Weight
from proxy.metering.usage import PromptEvidence

# One for each counter, from 690 recorded requests. Images and attachments are a guess: providers differ 40 ×.
BELIEFS = (
    Weight(3.0, 8.0, least=-10.0, most=200.0),  # the request: what the template begins and ends with
    Weight(4.0, 3.0, least=0.0, most=40.0),  # messages
    Weight(1 / 4.4, 0.15, least=0.02, most=1.0),  # Latin characters
    Weight(0.8, 0.3, least=0.2, most=3.0),  # ideographs, kana, hangul
    Weight(1 / 2.2, 0.2, least=0.1, most=3.0),  # other characters
    Weight(1 / 5.5, 0.08, least=0.0, most=1.0),  # bytes of tools, schemas and earlier calls
    Weight(500.0, 500.0, least=0.0, most=5000.0),  # images and attachments
    # What is counted above already, and may be worth more or less than it was counted as:
    Weight(0.0, 80.0, least=-50.0, most=1500.0),  # there are tools: some templates explain them at length
    Weight(0.0, 10.0, least=-50.0, most=300.0),  # tools
    Weight(0.0, 8.0, least=-20.0, most=60.0),  # earlier calls
    Weight(0.0, 8.0, least=-20.0, most=60.0),  # their results
    Weight(0.0, 0.15, least=-0.3, most=1.0),  # bytes of earlier calls
    Weight(0.0, 0.15, least=-0.3, most=1.0),  # bytes of the answer's schema
    Weight(0.0, 0.6, least=-1.0, most=2.0),  # blanks: about one for each word
    Weight(0.0, 0.4, least=-1.0, most=2.0),  # digits and punctuation
)
# What the priors miss by, typically, on recorded traffic.
ERROR_PRIOR = 0.3
# After so many answers one in so many is learned from, and all that miss by more than this share: learning costs ten
# times what estimating does.
_TAUGHT, _ONE_IN, _SURPRISE = 100, 32, 0.05


def counters(prompt: PromptEvidence) -> list[float]:
    """What BELIEFS are about, in their order."""
    return [
        1.0, prompt.messages, prompt.chars_latin, prompt.chars_wide, prompt.chars_other, prompt.tool_chars,
        prompt.images + prompt.attachments, 1.0 if prompt.tools else 0.0, prompt.tools, prompt.calls, prompt.results,
        prompt.call_chars, prompt.schema_chars, prompt.blanks, prompt.marks,
    ]  # fmt: skip


class Prompts:
    """One model: its regression, its mean error."""

    __slots__ = ("_answers", "errors", "ridge")

    def __init__(self) -> None:
        self._answers = 0  # since this process knows the model
        self.ridge = RecursiveLeastSquares(BELIEFS)
        self.errors = Errors()

    def tokens(self, prompt: PromptEvidence) -> int:
        """At least one."""
        return self._tokens(counters(prompt))

    def _tokens(self, counts: list[float]) -> int:
        said = round(self.ridge.tokens(counts))
        return said if said > 0 else 1

    def expected_error(self) -> float:
        """Typical relative error."""
        return round(self.errors.expected(ERROR_PRIOR), 4)

    def learn(self, prompt: PromptEvidence, tokens: int) -> None:
        """From an answer that told the tokens of its prompt, at least one."""
        counts = counters(prompt)
        error = self._tokens(counts) / tokens - 1
        self.errors.learn(error, tokens)
        self._answers += 1
        if self._answers <= _TAUGHT or self._answers % _ONE_IN == 0 or abs(error) > _SURPRISE:
            self.ridge.learn(counts, tokens)

    def row(self) -> list[float]:
        """Everything learned, for `restored`."""
        return [*self.errors.row(), *self.ridge.row()]

    @classmethod
    def restored(cls, row: Sequence[float]) -> Prompts | None:
        """From `row`; None if that cannot be one."""
        if len(row) < 2 or not all(math.isfinite(value) for value in row):
            return None
        ridge, errors = RecursiveLeastSquares.restored(BELIEFS, row[2:]), Errors.restored(row[:2])
        if ridge is None or errors is None:
            return None
        found = cls()
        found.ridge, found.errors = ridge, errors
        return found
