"""Counts characters by class, and cumulative texts (each repeats all before it) once.

Invariants: counts never decrease. A possible repetition is not counted again until it is known to be new text.
"""

from __future__ import annotations

import re
from operator import add
from typing import TypeAlias

Chars: TypeAlias = tuple[int, ...]
"""Code points by the classes of `Evidence`: latin, wide, other; and parts of these: blanks, marks, accented, greek,
arabic, indic, kana, hangul."""

NO_CHARS: Chars = (0,) * 11

_LATIN = re.compile("[\x00-\u024f]+")
_WIDE = re.compile(
    "[\u1100-\u11ff\u2600-\u27bf\u2b00-\u2bff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\ufe30-\ufe4f\uff00-\uffef\U0001f000-\U0001faff\U00020000-\U0003ffff]+"
)

_MARKS = bytes(byte for byte in range(0x21, 0x7F) if not chr(byte).isalpha())
# First UTF-8 bytes of the scripts: accented, greek, arabic, indic, kana, hangul.
_FIRST_BYTES = (
    range(0xC2, 0xC9), range(0xCD, 0xD6), range(0xD6, 0xE0), range(0xE0, 0xE1), range(0xE3, 0xE4), range(0xEA, 0xEE),
)  # fmt: skip
_ALL_BUT = tuple(bytes(set(range(256)) - set(first)) for first in _FIRST_BYTES)

# Consecutive texts that each extend the previous one. Fragments do so by chance for two or three ("1", "10", "100"),
# hardly for four.
_GROWTHS_SURE = 3
# Of fragments that all repeat the first one, such as blank lines or dashes, and of a few growing ones.
_SKIPPED_CHARS_MAX = 4096
# A server's placeholder for an incomplete character, replaced by the next token.
_NOT_YET = "\ufffd"


def chars_of(text: str) -> Chars:
    """The code points of `text` by class."""
    blanks = text.count(" ")
    if text.isascii():
        raw = text.encode()
        return len(text), 0, 0, blanks, len(raw) - len(raw.translate(None, _MARKS)), 0, 0, 0, 0, 0, 0
    raw = text.encode(errors="ignore")  # lone surrogates are counted, but in no script
    marks = len(raw) - len(raw.translate(None, _MARKS))
    rest = _LATIN.sub("", text)
    other = len(_WIDE.sub("", rest))
    scripts = [len(raw.translate(None, all_but)) for all_but in _ALL_BUT]
    return len(text) - len(rest), len(rest) - other, other, blanks, marks, *scripts


def plus(a: Chars, b: Chars) -> Chars:
    """Class by class."""
    return tuple(map(add, a, b))


def minus_floor(a: Chars, b: Chars) -> Chars:
    """Class by class, never below 0."""
    return tuple([x - y if x > y else 0 for x, y in zip(a, b, strict=True)])


class GrowingText:
    """The texts of one choice while they may be cumulative.

    `sure=True`: they are cumulative. Otherwise the first text that does not begin with the longest one proves that they
    are fragments (`plain`), and the skipped repetitions are counted.
    """

    __slots__ = ("_growths", "_longest", "_skipped", "_spare", "_sure", "news", "plain")

    def __init__(self, *, sure: bool) -> None:
        self._sure = sure
        self._longest = ""
        self._growths = 0
        self._spare = NO_CHARS  # counted only if the texts turn out to be fragments
        self.plain = False
        self.news: str | None = ""
        """the new part of the last text, and skipped text that was also added; None: that is no longer known"""
        self._skipped: str | None = ""  # what `_spare` counts; None: it was too long

    @property
    def cumulative(self) -> bool:
        """True if the texts are known to be cumulative."""
        return not self.plain and (self._sure or self._growths >= _GROWTHS_SURE)

    def be_sure(self) -> None:
        """The stream declares that its texts are cumulative."""
        self._sure, self._spare, self._skipped = True, NO_CHARS, ""

    def take(self, text: str) -> Chars:
        """The characters that `text` adds to the count."""
        longest = self._longest
        if not (self._sure or text.startswith(longest.rstrip(_NOT_YET)) or longest.startswith(text)):
            owed = self.settle(fragments=True)
            self.news = None if self.news is None else self.news + text
            return plus(owed, chars_of(text))
        if len(text) <= len(longest):
            self.news = ""
            self._skip(text)
            self._spare = plus(self._spare, chars_of(text))
            return NO_CHARS
        self._longest = text
        if not longest:
            self.news = text
            return chars_of(text)
        self.news = text[len(longest) :]
        self._skip(longest)
        new = chars_of(self.news)
        self._spare = plus(self._spare, minus_floor(chars_of(text), new))
        self._growths += 1
        return new

    def settle(self, *, fragments: bool = False) -> Chars:
        """Decide. Returns the skipped characters if the texts were fragments; `news` is their text. Idempotent."""
        self.news = ""
        if self.cumulative and not fragments:
            return NO_CHARS
        owed, self._spare = self._spare, NO_CHARS
        self.news, self._skipped = self._skipped, ""
        self.plain, self._longest = True, ""
        return owed

    def _skip(self, text: str) -> None:
        if self._skipped is not None:
            skipped = self._skipped + text
            self._skipped = skipped if len(skipped) <= _SKIPPED_CHARS_MAX else None
