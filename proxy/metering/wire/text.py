"""Counts characters by class, and cumulative texts (each repeats all earlier text) once.

Invariant: at any moment, the count is that of a stream that ends there. Possible repetitions count as new text until
they are proven to be repetitions; then they are subtracted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import add, sub

from proxy.metering.wire.long_string import Chars, LongString

NO_CHARS: Chars = (0,) * 11

# Characters that are counted in one step: others get the interpreter in between. Those of alternating scripts take
# some milliseconds.
STEP_CHARS = 32 * 1024

_LATIN = re.compile("[\x00-\u024f]+")
_WIDE = re.compile(
    "[\u1100-\u11ff\u2600-\u27bf\u2b00-\u2bff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\ufe30-\ufe4f\uff00-\uffef\U0001f000-\U0001faff\U00020000-\U0003ffff]+"
)

# Characters of an answer that are counted at once, and changes of their script, each of which takes up to 1 µs.
WINDOW_CHARS, _RUNS_MAX = 1 << 13, 1 << 13

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
    if type(text) is LongString:
        return text.chars
    size = len(text)
    if size > STEP_CHARS:
        return total([chars_of(text[at : at + STEP_CHARS]) for at in range(0, size, STEP_CHARS)])
    blanks = text.count(" ")
    if text.isascii():
        raw = text.encode()
        return size, 0, 0, blanks, size - len(raw.translate(None, _MARKS)), 0, 0, 0, 0, 0, 0
    raw = text.encode(errors="ignore")  # lone surrogates are counted, but in no script
    marks = len(raw) - len(raw.translate(None, _MARKS))
    rest = _LATIN.sub("", text.replace(" ", "") if blanks else text)
    other = len(_WIDE.sub("", rest))
    scripts = [len(raw.translate(None, all_but)) for all_but in _ALL_BUT]
    return size - len(rest), len(rest) - other, other, blanks, marks, *scripts


def chars_about(text: str) -> Chars:
    """Count as `chars_of` does, in a bounded time: if a long text changes its script more than _RUNS_MAX times, the
    rest counts as if it had the same scripts as the text before it."""
    if len(text) <= WINDOW_CHARS or text.isascii():
        return chars_of(text)
    counted, at, runs = NO_CHARS, 0, 0
    while at < len(text) and runs <= _RUNS_MAX:
        window = text[at : at + WINDOW_CHARS]
        counted, at = plus(counted, chars_of(window)), at + len(window)
        rest, latin_runs = _LATIN.subn("", window.replace(" ", ""))
        runs += latin_runs + _WIDE.subn("", rest)[1]
    return counted if at == len(text) else tuple([count * len(text) // at for count in counted])


def total(counts: Iterable[Chars]) -> Chars:
    """The sum of counts, class by class."""
    return tuple(map(sum, zip(NO_CHARS, *counts, strict=True)))


def plus(a: Chars, b: Chars) -> Chars:
    """The sum of two counts, class by class."""
    return tuple(map(add, a, b))


def minus_floor(a: Chars, b: Chars) -> Chars:
    """The difference of two counts, class by class, never below 0."""
    return tuple([x - y if x > y else 0 for x, y in zip(a, b, strict=True)])


def minus(a: Chars, b: Chars) -> Chars:
    """The difference of two counts, class by class; below 0 it is a correction."""
    return tuple(map(sub, a, b))


class GrowingText:
    """The texts of one choice while they may be cumulative.

    `sure=True`: they are cumulative. Otherwise the first text that does not begin with the longest one proves that they
    are fragments (`plain`).
    """

    __slots__ = ("_growths", "_longest", "_repeated", "_skipped", "_sure", "news", "plain")

    def __init__(self, *, sure: bool) -> None:
        self._sure = sure
        self._longest = ""
        self._growths = 0
        self._repeated = NO_CHARS  # counted unless the texts are known to be cumulative
        self.plain = False
        self.news: str | None = ""
        """the new part of the last text, and skipped text that was also added; None: unknown by now"""
        self._skipped: str | None = ""  # the text of `_repeated`, which `news` lacked; None: it was too long

    @property
    def cumulative(self) -> bool:
        return not self.plain and (self._sure or self._growths >= _GROWTHS_SURE)

    def be_sure(self) -> Chars:
        """The stream declares that its texts are cumulative. Returns the change of the count: 0 or less."""
        counted = NO_CHARS if self.cumulative else self._repeated
        self._sure, self._repeated, self._skipped = True, NO_CHARS, ""
        return minus(NO_CHARS, counted)

    def take(self, text: str) -> Chars:
        """The characters that `text` adds to the count: negative if it shows that earlier texts were repetitions."""
        longest = self._longest
        if not (self._sure or text.startswith(longest.rstrip(_NOT_YET)) or longest.startswith(text)):
            return self._be_plain(text)
        if len(text) <= len(longest):
            self.news = ""
            self._skip(text)
            return self._repeat(chars_about(text))
        self._longest, self.news = text, text[len(longest) :]
        new = chars_about(self.news)
        if not longest:
            return new
        self._skip(longest)
        repeated = minus_floor(chars_about(text), new)
        if self.cumulative:
            return plus(new, self._repeat(repeated))
        self._growths += 1
        if self._growths == _GROWTHS_SURE:
            before, self._repeated = self._repeated, plus(self._repeated, repeated)
            return minus(new, before)
        return plus(new, self._repeat(repeated))

    def settle(self) -> None:
        """The end of the stream: `news` is the text of assumed repetitions that were new. Idempotent."""
        self.news = ""
        if not self.cumulative:
            self.news, self._skipped = self._skipped, ""
            self.plain, self._longest = True, ""

    def _repeat(self, chars: Chars) -> Chars:
        if not self._sure:
            self._repeated = plus(self._repeated, chars)
        return NO_CHARS if self.cumulative else chars

    def _skip(self, text: str) -> None:
        if self._skipped is not None and not self._sure:
            skipped = self._skipped + text
            self._skipped = skipped if len(skipped) <= _SKIPPED_CHARS_MAX else None

    def _be_plain(self, text: str) -> Chars:
        """The texts are fragments."""
        owed = self._repeated if self.cumulative else NO_CHARS
        self.news = None if self._skipped is None else self._skipped + text
        self.plain, self._longest, self._repeated, self._skipped = True, "", NO_CHARS, ""
        return plus(owed, chars_about(text))
