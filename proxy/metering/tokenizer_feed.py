"""What an answer says, on its way to a tokenizer: counted in pieces, while the answer still comes.

Law: where a piece ends is a matter of the text alone, so that the count is the same for every way of cutting the bytes.
No text is kept longer than until its piece is full or the answer is over.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

# Some 250 tokens, counted in a fifth of a millisecond. A piece ends before a blank, where tokens do, too; in texts
# without any, a cut through a token costs one in so many characters.
PIECE_CHARS = 1024


class TokenCounter(Protocol):
    """Counts the tokens of one answer, elsewhere. Never raises."""

    def add(self, text: str) -> None:
        """Some text. It never waits."""

    def total(self) -> int | None:
        """Tokens of all that was added. Waits for what is under way, some milliseconds at most; None: not to be had.
        Once it was had, it is at hand."""

    def then(self, told: Callable[[int | None], None]) -> None:
        """As `total`, but whoever asks does not wait: `told` is called later."""


class TextKind(IntEnum):
    """Who counts a text by itself: what one says does not continue the other."""

    TEXT = 0
    REASONING = 1
    CALLS = 2


class TokenizerFeed:
    """One answer's texts, as they come."""

    __slots__ = ("_counter", "_waiting")

    def __init__(self, counter: TokenCounter) -> None:
        self._counter: TokenCounter | None = counter
        self._waiting = [""] * len(TextKind)

    def say(self, spoken: TextKind, text: str | None) -> None:
        """More of it. None: something came that cannot be told, and there will be no count."""
        counter = self._counter
        if counter is None:
            return
        if text is None:
            self.give_up()
            return
        waiting, start = self._waiting[spoken] + text, 0
        while len(waiting) - start > PIECE_CHARS:
            end = waiting.rfind(" ", start + 1, start + PIECE_CHARS)
            end = start + PIECE_CHARS if end < 0 else end
            counter.add(waiting[start:end])
            start = end
        self._waiting[spoken] = waiting[start:]

    def give_up(self) -> None:
        """There will be no count."""
        self._counter, self._waiting = None, [""] * len(TextKind)

    def end(self) -> TokenCounter | None:
        """The answer is over: who knows its tokens, if anyone does. Idempotent."""
        counter = self._counter
        if counter is not None:
            for text in filter(None, self._waiting):
                counter.add(text)
            self._waiting = [""] * len(TextKind)
        return counter
