"""A string of a JSON document that is too long to be handled in one step, and JSON with such strings.

Invariants: a `LongString` is its beginning (for prefixes and comparisons), but counts and JSON have the whole text. It
is a value, never a name. Its pieces are short.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

Chars: TypeAlias = tuple[int, ...]
"""Code points by the classes of `Evidence`: latin, wide, other; and parts of these: blanks, marks, accented, greek,
arabic, indic, kana, hangul."""

# What code needs of a long string: prefixes such as that of a data URL with its type, and names in errors.
BEGINNING_CHARS = 4096

# Stands for a long string in JSON: msgspec escapes this byte, so that nothing else is written so.
_MARK = msgspec.Raw(b"\0")
# Likewise where only Python's encoder can write the document; a client cannot know it.
_NAME = f"long string {secrets.token_hex(16)}"


class LongString(str):
    """The beginning of a long text. Its counts and its JSON are those of the whole text."""

    __slots__ = ("chars", "pieces")

    chars: Chars
    """the characters of the whole text"""
    pieces: tuple[bytes, ...]
    """JSON of the whole text, in pieces, without the quotes"""

    @classmethod
    def of(cls, text: str, chars: Chars, pieces: Sequence[bytes]) -> LongString:
        """`text`: a beginning."""
        made = cls(text[:BEGINNING_CHARS])
        made.chars, made.pieces = chars, tuple(pieces)
        return made

    def __len__(self) -> int:
        """Code points of the whole text."""
        return sum(self.chars[:3])

    def texts(self) -> Iterator[str]:
        """The whole text, piece by piece."""
        for piece in self.pieces:
            yield _text_of(piece)


_decoded = msgspec.json.Decoder(str).decode


def _text_of(piece: bytes) -> str:
    written = b'"%b"' % piece
    try:
        return _decoded(written)
    except (msgspec.DecodeError, UnicodeDecodeError):  # it has a lone surrogate
        return str(json.loads(written))


def json_of(text: str) -> bytes:
    """A text as JSON, without the quotes."""
    try:
        return msgspec.json.encode(text)[1:-1]
    except UnicodeEncodeError:
        return _in_python(text)[1:-1]


def _in_python(value: object) -> bytes:
    """JSON by Python's encoder, which writes what msgspec does not: integers over 64 bits, and lone surrogates, as
    escapes. All else is written in as many bytes as msgspec takes, except for some exponents."""
    # In JSON, only strings have characters that UTF-8 cannot express.
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode(
        "utf-8", "backslashreplace"
    )


def json_pieces(value: object) -> list[bytes]:
    """A JSON value, whose long strings are in pieces. Raises ValueError for what JSON cannot express."""
    long: list[LongString] = []

    def mark(one: object) -> msgspec.Raw:
        assert isinstance(one, LongString), "all other values are those of JSON"
        long.append(one)
        return _MARK

    try:
        written = msgspec.json.encode(value, enc_hook=mark)
    except (msgspec.MsgspecError, ValueError, OverflowError):  # a lone surrogate, say
        long.clear()
        written = _in_python(_marked(value, long))
        written = written.replace(b'"%b"' % _NAME.encode(), b"\0") if long else written
    if not long:
        return [written]
    first, *between = written.split(b"\0")
    pieces = [first + b'"']
    for one, after in zip(long, between, strict=True):
        pieces += one.pieces
        pieces.append(b'"%b"' % after)
    pieces[-1] = pieces[-1][:-1]
    return pieces


def _marked(value: Any, long: list[LongString]) -> Any:
    """A copy with marks in place of long strings, which are added to `long`."""
    if isinstance(value, LongString):
        long.append(value)
        return _NAME
    if isinstance(value, dict):
        return {name: _marked(one, long) for name, one in value.items()}
    return [_marked(one, long) for one in value] if isinstance(value, list) else value


def beginning(texts: Sequence[str], bytes_max: int) -> str:
    """The beginning of the joined texts: of all of them, or of at least `bytes_max` bytes in memory."""
    taken: list[str] = []
    left = bytes_max
    for text in texts:
        for part in text.texts() if isinstance(text, LongString) else (text,):
            taken.append(part)
            left -= len(part)
            if left <= 0:
                return "".join(taken)
    return "".join(taken)
