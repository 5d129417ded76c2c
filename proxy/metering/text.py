"""Characters, counted by class; and texts that repeat all before them, counted once.

Law: counting never goes down. What may be a repetition is counted once until it is known not to be one.
"""

from __future__ import annotations

import re
from typing import TypeAlias

Chars: TypeAlias = tuple[int, int, int]
"""Code points: latin, wide, other, as `Evidence` defines them."""

NO_CHARS: Chars = (0, 0, 0)

_LATIN = re.compile("[\x00-\u024f]+")
_WIDE = re.compile(
    "[\u1100-\u11ff\u2600-\u27bf\u2b00-\u2bff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\ufe30-\ufe4f\uff00-\uffef\U0001f000-\U0001faff\U00020000-\U0003ffff]+"
)

# Texts in a row that each begin with the one before and grow. Fragments do this by chance for two or three
# ("1", "10", "100"), hardly for four.
_GROWTHS_SURE = 3
# What a server puts for a character that is not yet whole, and takes back with the next token.
_NOT_YET = "\ufffd"


def chars_of(text: str) -> Chars:
    """The code points of `text` by class."""
    if text.isascii():
        return len(text), 0, 0
    rest = _LATIN.sub("", text)
    other = len(_WIDE.sub("", rest))
    return len(text) - len(rest), len(rest) - other, other


def plus(a: Chars, b: Chars) -> Chars:
    """Class by class."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def minus_floor(a: Chars, b: Chars) -> Chars:
    """Class by class, never below 0."""
    return max(a[0] - b[0], 0), max(a[1] - b[1], 0), max(a[2] - b[2], 0)


class GrowingText:
    """One choice's texts, while each may still be a repetition of all before it.

    `sure=True`: they are, whatever they look like. Otherwise the first text that does not begin with the longest
    one proves that they are fragments (`plain`), and what was taken for repetition is counted after all.
    """

    __slots__ = ("_growths", "_longest", "_spare", "_sure", "plain")

    def __init__(self, *, sure: bool) -> None:
        self._sure = sure
        self._longest = ""
        self._growths = 0
        self._spare = NO_CHARS  # counted only if the texts prove to be fragments
        self.plain = False

    @property
    def cumulative(self) -> bool:
        """True if the texts are known to repeat what was before."""
        return not self.plain and (self._sure or self._growths >= _GROWTHS_SURE)

    def be_sure(self) -> None:
        """The stream said itself that its texts are cumulative."""
        self._sure, self._spare = True, NO_CHARS

    def take(self, text: str) -> Chars:
        """The characters that `text` adds to the count."""
        longest = self._longest
        if not (self._sure or text.startswith(longest.rstrip(_NOT_YET)) or longest.startswith(text)):
            return plus(self.settle(fragments=True), chars_of(text))
        if len(text) <= len(longest):
            self._spare = plus(self._spare, chars_of(text))
            return NO_CHARS
        new = chars_of(text[len(longest) :])
        self._spare = plus(self._spare, minus_floor(chars_of(text), new))
        self._growths += bool(longest)
        self._longest = text
        return new

    def settle(self, *, fragments: bool = False) -> Chars:
        """Decides: what must still be counted because the texts were fragments. Idempotent."""
        if self.cumulative and not fragments:
            return NO_CHARS
        owed, self._spare = self._spare, NO_CHARS
        self.plain, self._longest = True, ""
        return owed
