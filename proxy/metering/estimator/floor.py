"""The lower bound of an estimate, and the proof that an answer exceeds the request's limit.

Invariants: an event with text has at least one token, until reports of its model show fewer; then as many as in the
reported answer with the fewest. A proof counts fewer tokens than the text has in any tokenizer. The state is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from proxy.metering.usage import Evidence

# Answers that are remembered: with a provider that changes its events, the old ones are soon forgotten.
_ANSWERS_MAX = 16
# In shorter answers, one token more or less is a large share.
_EVENTS_MIN = 8
# Characters of a token at most, on average of a text: half of what tokenizers have in English. Blanks and punctuation
# come in long runs that are one token, and prove nothing.
_CHARS_PER_TOKEN = 8
# Least tokens of an ideograph: half of those of tokenizers.
_WIDE_TOKENS = 0.3


class Floor:
    """Tokens per event with text in the last reported answers of one model, at most 1."""

    def __init__(self, ratios: Sequence[float] = ()) -> None:
        self._ratios = deque(ratios, _ANSWERS_MAX)

    def learn(self, evidence: Evidence, tokens: float) -> None:
        """Learn from an answer. `tokens`: its streamed tokens."""
        if evidence.text_events >= _EVENTS_MIN:
            self._ratios.append(min(tokens / evidence.text_events, 1.0))

    @property
    def is_learned(self) -> bool:
        """Whether an answer with usage was learned."""
        return bool(self._ratios)

    def tokens(self, evidence: Evidence) -> float:
        """The fewest tokens that the events with text have."""
        chars = evidence.chars_latin + evidence.chars_wide + evidence.chars_other
        events = evidence.text_events  # a repeated one has no new characters
        return (events if events < chars else chars) * min(self._ratios, default=1.0)

    def proves_more_than(self, limit: int, evidence: Evidence) -> bool:
        """Whether certainly more than `limit` tokens were generated."""
        letters = evidence.chars_latin - evidence.blanks - evidence.marks + evidence.chars_other + evidence.tool_chars
        by_chars = letters / _CHARS_PER_TOKEN + evidence.chars_wide * _WIDE_TOKENS
        return max(self.tokens(evidence), by_chars) > limit

    def row(self) -> list[float]:
        """The learned state, for `restored`."""
        return list(self._ratios)

    @classmethod
    def restored(cls, row: Sequence[float]) -> Floor | None:
        """The inverse of `row`, whose numbers are finite; None if it is invalid."""
        return cls(row) if len(row) <= _ANSWERS_MAX and all(0 <= ratio <= 1 for ratio in row) else None
