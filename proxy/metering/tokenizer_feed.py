"""Passes the text of a running answer to a tokenizer, in pieces.

Invariants: piece boundaries depend on the text alone, so that the count is the same for every way of cutting the bytes.
Text is kept only until its piece is full or the answer ends.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

# Some 250 tokens, counted in 0.2 ms. A piece ends before a blank, where tokens end, too; in text without blanks, a cut
# token costs one token per piece.
PIECE_CHARS = 1024


class TokenCounter(Protocol):
    """Counts the tokens of one answer in the background. Never raises."""

    def add(self, text: str) -> None:
        """Add text. Never waits."""

    def total(self) -> int | None:
        """Tokens of all added text; None: no count. The first call waits a few milliseconds at most."""

    def then(self, callback: Callable[[int | None], None]) -> None:
        """Pass `total` to `callback` later, without waiting."""


class TextKind(IntEnum):
    """Kinds of text that are tokenized separately: one does not continue the other."""

    TEXT = 0
    REASONING = 1
    CALLS = 2


class TokenizerFeed:
    """The texts of one running answer."""

    __slots__ = ("_counter", "_waiting")

    def __init__(self, counter: TokenCounter) -> None:
        self._counter: TokenCounter | None = counter
        self._waiting = [""] * len(TextKind)

    def add(self, kind: TextKind, text: str | None) -> None:
        """Add text. None: text is missing, and there will be no count."""
        counter = self._counter
        if counter is None:
            return
        if text is None:
            self.give_up()
            return
        waiting, start = self._waiting[kind] + text, 0
        while len(waiting) - start > PIECE_CHARS:
            end = waiting.rfind(" ", start + 1, start + PIECE_CHARS)
            end = start + PIECE_CHARS if end < 0 else end
            counter.add(waiting[start:end])
            start = end
        self._waiting[kind] = waiting[start:]

    def give_up(self) -> None:
        """Drop the counter: there will be no count."""
        self._counter, self._waiting = None, [""] * len(TextKind)

    def end(self) -> TokenCounter | None:
        """The answer has ended. Returns the counter, or None after `give_up`. Idempotent."""
        counter = self._counter
        if counter is not None:
            for text in filter(None, self._waiting):
                counter.add(text)
            self._waiting = [""] * len(TextKind)
        return counter
