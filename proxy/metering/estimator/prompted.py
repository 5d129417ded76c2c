"""Estimates the tokens of a prompt from a reference vocabulary's count of its text.

Invariant: parts without text (templates of messages and tools, images) are learned with the beliefs of `prompts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from proxy.metering.estimator import prompts
from proxy.metering.estimator.referenced import NOISE, TEXT_BELIEFS, kind_of, text_features
from proxy.metering.estimator.regression import Learned
from proxy.metering.estimator.spread import Spread
from proxy.metering.profile import Profile
from proxy.metering.usage import PromptEvidence

# The counters of `prompts` that do not count characters of the text.
_BESIDE = (0, 1, 5, 6, 7, 8, 9, 10, 11, 12)
BELIEFS = (*TEXT_BELIEFS, *(prompts.BELIEFS[index] for index in _BESIDE))


def _features(prompt: PromptEvidence, counted: Profile) -> list[float]:
    """The features of BELIEFS, in their order."""
    chars = prompt.chars_latin + prompt.chars_wide + prompt.chars_other
    if counted.chars < chars:  # only the beginning was held
        counted = counted.times(chars / max(counted.chars, 1))
    beside = prompts.counters(prompt)
    return [*text_features(counted), *(beside[index] for index in _BESIDE)]


class ReferencedPrompt(Learned):
    """The regression and the spread of one model."""

    beliefs = BELIEFS
    noise = NOISE
    is_sparse = True
    statistics = (("spread", Spread),)
    spread: Spread

    def estimate(self, prompt: PromptEvidence, counted: Profile) -> tuple[int, float]:
        """Tokens, at least one, and the relative error in nine of ten prompts at most."""
        features = _features(prompt, counted)
        tokens = max(self.regression.tokens(features), 1.0)
        most = self.spread.most_deviations(kind_of(counted)) * self.regression.deviation(features, tokens)
        return round(tokens), round(most / tokens, 4)

    def learn(self, prompt: PromptEvidence, counted: Profile, tokens: int) -> None:
        """Learn from an answer that reported its prompt tokens, at least one."""
        features = _features(prompt, counted)
        estimate = max(self.regression.tokens(features), 1.0)
        deviation = self.regression.deviation(features, max(estimate, tokens / 2))
        if self.spread.learn(kind_of(counted), counted.tokens, abs(tokens - estimate) / deviation):
            self.regression.learn(features, tokens)

    @classmethod
    def of_version_2(cls, row: Sequence[float]) -> Self | None:
        """What `reference-2` had learned: a row that began with one spread of all kinds; None if it is invalid."""
        if len(row) < Spread.STORED_2:
            return None
        return cls.restored([*Spread.of_version_2(row).row(), *row[Spread.STORED_2 :]])
