"""The profile of a text: its tokens by a vocabulary, and its characters by script.

Invariants: pure; the time is linear in the length of the text. A character is in at most one class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import add

import msgspec

_DIGITS = b"0123456789"
_LETTERS = bytes(byte for byte in range(0x80) if chr(byte).isalpha())
_MARKS = bytes(byte for byte in range(0x21, 0x7F) if not chr(byte).isalnum())
# Bytes that do not begin a character beyond ASCII.
_NOT_FIRST = bytes(range(0xC0))
_NUMBERS = re.compile(rb"[0-9]{1,3}")
# Whitespace beyond one blank or line end, which vocabularies join differently.
_GAPS = re.compile(rb"[ \t\r\n]{2,}")


class Profile(msgspec.Struct, frozen=True, gc=False):
    """Counts of one text. Characters are Unicode code points."""

    tokens: int = 0
    """tokens by the vocabulary"""
    chars: int = 0
    letters: int = 0
    """ASCII letters"""
    digits: int = 0
    numbers: int = 0
    """groups of up to three digits"""
    marks: int = 0
    """ASCII punctuation"""
    gaps: int = 0
    """whitespace after other whitespace"""
    accented: int = 0
    """Latin-1 letters: of western Europe"""
    extended: int = 0
    """further Latin letters: of central Europe, Turkish, …"""
    vietnamese: int = 0
    greek: int = 0
    cyrillic: int = 0
    hebrew: int = 0
    arabic: int = 0
    devanagari: int = 0
    bengali: int = 0
    """Bengali, Gurmukhi, Gujarati, Odia"""
    tamil: int = 0
    """Tamil, Telugu, Kannada, Malayalam, Sinhala"""
    thai: int = 0
    """Thai and Lao"""
    han: int = 0
    kana: int = 0
    """kana, CJK punctuation and full-width forms"""
    hangul: int = 0
    emoji: int = 0
    """emoji, their joiners and colours"""
    rare: int = 0
    """combining marks, rare ideographs, and every other script"""

    def __add__(self, other: Profile) -> Profile:
        """The sums of both profiles."""
        return Profile(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def tokens_alone(self) -> Profile:
        """The profile without characters by script."""
        return Profile(self.tokens, self.chars)

    def times(self, factor: float) -> Profile:
        """The profile of a text `factor` times as long."""
        return Profile(*(round(count * factor) for count in msgspec.structs.astuple(self)))


class Counted(msgspec.Struct, frozen=True, gc=False):
    """The profiles of an answer's texts."""

    text: Profile
    """output text, including reasoning"""
    calls: Profile
    """names and arguments of tool calls"""
    own: bool = False
    """the count is by the model's own vocabulary, not by the reference"""

    @property
    def tokens(self) -> int:
        """The tokens of text and calls."""
        return self.text.tokens + self.calls.tokens

    def whole(self, *, text_chars: int, call_chars: int) -> Counted:
        """The count extrapolated to texts with so many characters, if fewer were counted."""
        if self.text.chars >= text_chars and self.calls.chars >= call_chars:
            return self
        text, calls = _longer(self.text, text_chars), _longer(self.calls, call_chars)
        return Counted(text, calls, self.own)


def _longer(profile: Profile, chars: int) -> Profile:
    return profile.times(chars / profile.chars) if 0 < profile.chars < chars else profile


def profile_of(text: str, tokens: int) -> Profile:
    """The profile of a text with `tokens` tokens."""
    raw = text.encode(errors="replace")
    size = len(raw)
    counts = (
        tokens,
        len(text),
        size - len(raw.translate(None, _LETTERS)),
        size - len(raw.translate(None, _DIGITS)),
        len(_NUMBERS.findall(raw)),
        size - len(raw.translate(None, _MARKS)),
        sum([len(gap) - 1 for gap in _GAPS.findall(raw)]),
    )
    return Profile(*counts) if text.isascii() else Profile(*counts, *_scripts(raw))


def _scripts(raw: bytes) -> tuple[int, ...]:
    """The fields of a profile from `accented` on."""
    first = raw.translate(None, _NOT_FIRST)

    def led(low: int, high: int) -> int:
        """Characters whose first byte is one of these."""
        return sum([first.count(byte) for byte in range(low, high + 1)])

    def pairs(byte: int, low: int, high: int) -> int:
        """Characters that begin with `byte` and one of these."""
        if byte not in first:
            return 0
        return sum([raw.count(bytes((byte, second))) for second in range(low, high + 1)])

    joiners = raw.count(b"\xe2\x80\x8d")
    known = (
        led(0xC2, 0xC3),
        led(0xC4, 0xC8),
        pairs(0xE1, 0xBA, 0xBB),
        led(0xCE, 0xCF),
        led(0xD0, 0xD3),
        led(0xD7, 0xD7),
        led(0xD8, 0xDB),
        pairs(0xE0, 0xA4, 0xA5),
        pairs(0xE0, 0xA6, 0xAD),
        pairs(0xE0, 0xAE, 0xB7),
        pairs(0xE0, 0xB8, 0xBB),
        led(0xE5, 0xE9) + pairs(0xE4, 0xB8, 0xBF),
        pairs(0xE3, 0x80, 0x83) + pairs(0xEF, 0xBC, 0xBF),
        led(0xEA, 0xEC) + pairs(0xED, 0x80, 0x9F),
        pairs(0xF0, 0x9F, 0x9F) + pairs(0xE2, 0x98, 0x9E) + pairs(0xE2, 0xAC, 0xAD) + joiners
        + raw.count(b"\xef\xb8\x8f"),
    )  # fmt: skip
    signs = pairs(0xE2, 0x80, 0x97) - joiners  # dashes, quotes, arrows
    return (*known, max(len(first) - sum(known) - signs, 0))


CountTokens = Callable[[list[str]], list[int]]
"""Texts → the tokens of each"""

# Some 250 tokens. A piece ends before a blank, where tokens end, too; in text without blanks, a cut token costs one
# token for each piece. It bounds the work of a vocabulary in one step: some take more than linear time.
PIECE_CHARS = 1024


def profiles_of(texts: Sequence[str], count: CountTokens) -> list[Profile]:
    """The profile of each text. Raises what `count` raises."""
    cut = [_pieces(text) for text in texts]
    tokens = iter(count([piece for pieces in cut for piece in pieces]))
    return [profile_of(text, sum([next(tokens) for _ in pieces])) for text, pieces in zip(texts, cut, strict=True)]


def _pieces(text: str) -> list[str]:
    pieces, start = [], 0
    while len(text) - start > PIECE_CHARS:
        end = text.rfind(" ", start + 1, start + PIECE_CHARS)
        end = start + PIECE_CHARS if end < 0 else end
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]
