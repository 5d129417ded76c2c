"""Cuts the long strings out of a JSON body: a parser reads the rest, and the strings are read piece by piece.

A call of a function in C holds the interpreter until it returns, and every other task waits. Invariants: no call here
reads more than REST_BYTES_MAX; reading piece by piece has the same result as reading at once. A string begins and ends
where it does for a strict parser; a fault in it is found when the parser reaches it.
"""

from __future__ import annotations

import re
import secrets
from itertools import pairwise
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]  # it is the decoder's own
from typing import NamedTuple

import msgspec

from proxy.http.errors import ApiError, bad_request
from proxy.metering.wire.long_string import BEGINNING_CHARS, LongString, json_of
from proxy.metering.wire.text import chars_of, total

# A body is searched in steps of so many bytes. A string that is not whole in a step is cut out if it is as long.
STEP_BYTES = 4096
# Bytes of a long string that are read at once, in some hundred microseconds.
PIECE_BYTES = 32 * 1024
# The rest of a body. A conversation of two million tokens in messages of less than STEP_BYTES has 8 MB, and no model
# reads so much. The longest call takes some 10 ms.
REST_BYTES_MAX = 8 << 20
# The longest names are those of a client's own properties in a tool's schema.
NAME_BYTES_MAX = 4096

_BOM = b"\xef\xbb\xbf"
_BLANKS = re.compile(rb"[ \t\r\n]*+")
_CONTINUATION = bytes(range(0x80, 0xC0))
# The second half of an escaped character: without the first one, it would be another character.
_LOW_SURROGATE = re.compile(rb"\\u[dD][c-fC-F][0-9A-Fa-f]{2}")
# Escapes that may have a shorter form, which JSON that is written anew has.
_LONG_ESCAPE = re.compile(rb"\\[u/]")
_text_of = msgspec.json.Decoder(str).decode
# In place of a long string: a number that no client can know, and the index of the string.
_NUMBER = f"0.{secrets.randbelow(10**24):024}"


class _Cut(NamedTuple):
    """A long string or blanks that are not in the rest."""

    at: int
    """offset of its replacement in the rest"""
    length: int
    """length of the replacement"""
    start: int
    end: int


class WrongStringError(JSONDecodeError):
    """A long string is no valid JSON. `pos`: the character of the body."""


class CutBody:
    """A JSON body without its long strings."""

    def __init__(self, body: bytes) -> None:
        """Raises ApiError 400 if too much is left, or a name is too long."""
        self._body = body
        self._begin = at = len(_BOM) if body.startswith(_BOM) else 0  # no JSON, but editors and shells write it
        self._cuts: list[_Cut] = []
        self._strings: list[list[int]] = []  # of each, the offsets of its pieces, and of its end
        self._rest: list[bytes] = []
        self._size = 0
        structure: list[bytes] = []
        opened: list[int] = []  # the offsets of the pieces of a string that has begun
        while at < len(body):
            upto, parts = self._step(at, PIECE_BYTES if opened else STEP_BYTES)
            outside = at
            text = b'""'.join(parts[1 if opened else 0 :: 2])
            structure.append(b"" if text.isspace() else text)
            if opened and len(parts) == 1:
                opened.append(upto)
            else:
                if opened:
                    outside = at + len(parts[0]) + 1
                    self._take_string([*opened, outside - 1])
                ends_inside = len(parts) % 2 == (1 if opened else 0)
                opened = [upto - len(parts[-1]), upto] if ends_inside else []
                self._keep(outside, opened[0] - 1 if opened else upto)
            at = upto
        if opened:
            self._take_string(opened)
        self.structure = b"".join(structure)
        """the bytes outside of strings, and two quotes for a string"""
        self.rest = b"".join(self._rest)
        """JSON with a number in place of each long string"""

    def is_utf8(self) -> bool:
        """Whether the body is UTF-8."""
        try:
            self._chars_before(len(self._body))
        except UnicodeDecodeError:
            return False
        return True

    def position(self, at: int) -> int:
        """The character of the body that is character `at` of the rest."""
        offset = len(self.rest.decode()[:at].encode())
        before = self._begin + offset
        for cut in self._cuts:
            if offset < cut.at:
                break
            inside = offset < cut.at + cut.length
            before = cut.start if inside else cut.end + offset - cut.at - cut.length
        return self._chars_before(before)

    def string(self, number: str) -> LongString | None:
        """The long string in place of which the rest has `number`; None: it is the client's number. Raises
        WrongStringError, UnicodeDecodeError."""
        if not number.startswith(_NUMBER):
            return None
        bounds = self._strings[int(number[len(_NUMBER) :])]
        beginning, counts, pieces = "", [], []
        for at, upto in pairwise(bounds):
            piece = self._body[at:upto]
            text = self._text(piece, at)
            beginning += text if len(beginning) < BEGINNING_CHARS else ""
            counts.append(chars_of(text))
            pieces.append(json_of(text) if b"\\" in piece and _LONG_ESCAPE.search(piece) else piece)
        if bounds[-1] == len(self._body):
            raise WrongStringError("Unterminated string starting at", "", self._chars_before(bounds[0] - 1))
        return LongString.of(beginning, total(counts), pieces)

    def _text(self, piece: bytes, at: int) -> str:
        """The text of a piece that begins at `at`."""
        try:
            return _text_of(b'"%b"' % piece)
        except (msgspec.DecodeError, UnicodeDecodeError):  # it is wrong, or has a lone surrogate
            pass
        try:
            return str(scanstring(piece.decode() + '"', 0, True)[0])
        except JSONDecodeError as wrong:
            raise WrongStringError(wrong.msg, "", self._chars_before(at) + wrong.pos) from None

    def _keep(self, start: int, end: int) -> None:
        """Bytes for the rest, unless they are many blanks."""
        piece = self._body[start:end]
        if len(piece) < STEP_BYTES or not piece.isspace() or b"\v" in piece or b"\f" in piece:
            self._rest.append(piece)
            self._grow(len(piece))
        elif self._cuts and self._cuts[-1].end == start and self._cuts[-1].length == 1:
            self._cuts[-1] = self._cuts[-1]._replace(end=end)
        else:
            self._put(b" ", start, end)

    def _put(self, instead: bytes, start: int, end: int) -> None:
        self._cuts.append(_Cut(self._size, len(instead), start, end))
        self._rest.append(instead)
        self._grow(len(instead))

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > REST_BYTES_MAX:
            raise _too_large(f"{REST_BYTES_MAX} bytes beside its long strings")

    def _take_string(self, bounds: list[int]) -> None:
        """A string that is not whole in one step. `bounds`: of the pieces of its contents."""
        start, end = bounds[0] - 1, min(bounds[-1] + 1, len(self._body))
        if end - start < STEP_BYTES:
            self._keep(start, end)
        elif self._is_name(end):
            if end - start > NAME_BYTES_MAX:
                raise _too_large(f"{NAME_BYTES_MAX} bytes in a name")
            self._keep(start, end)
        else:
            self._put(f" {_NUMBER}{len(self._strings)} ".encode(), start, end)
            self._strings.append(bounds)

    def _step(self, at: int, size: int) -> tuple[int, list[bytes]]:
        """The end of the next piece, between two characters and escapes, and its parts between quotes. In the parts,
        some escapes are replaced."""
        piece = self._body[at : at + size]
        if b'"' in piece and b"\\" in piece:
            piece = piece.replace(b"\\\\", b"..").replace(b'\\"', b"..")
        escape = piece.rfind(b"\\", max(0, len(piece) - 5))
        if escape > 0 and piece[escape + 1 : escape + 2] in (b"", b"u"):  # it may not be whole
            before = piece[: escape + 1]
            if (len(before) - len(before.rstrip(b"\\"))) % 2:
                piece = piece[:escape]
        parts = piece.split(b'"')
        upto = self._at_character(at + len(piece))
        low = _LOW_SURROGATE.match(self._body, upto)
        upto = upto if low is None else low.end()
        parts[-1] = parts[-1].ljust(len(parts[-1]) + upto - at - len(piece))
        return upto, parts

    def _is_name(self, at: int) -> bool:
        """Whether a colon follows."""
        blanks = _BLANKS.match(self._body, at, at + PIECE_BYTES)
        while blanks is not None and blanks.end() - at == PIECE_BYTES:
            at = blanks.end()
            blanks = _BLANKS.match(self._body, at, at + PIECE_BYTES)
        return blanks is not None and self._body[blanks.end() : blanks.end() + 1] == b":"

    def _at_character(self, offset: int) -> int:
        """The offset of the first character from here on, if this is valid UTF-8."""
        after = self._body[offset : offset + 3]
        return offset + len(after) - len(after.lstrip(_CONTINUATION))

    def _chars_before(self, end: int) -> int:
        """The number of characters before this offset. Raises UnicodeDecodeError."""
        at, chars = self._begin, 0
        while at < end:
            upto = min(self._at_character(at + PIECE_BYTES), end)
            chars += len(self._body[at:upto].decode())
            at = upto
        return chars


def _too_large(most: str) -> ApiError:
    return bad_request(f"The request body has more than {most}.", code="json_too_large")
