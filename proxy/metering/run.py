"""Events that differ only in one text need not be parsed: most of a stream is such a run.

Law: exact. `text_of` says only what parsing each event would say, and None where it is not sure. An event is known by
the bytes before its text and the bytes after it; what lies between is a JSON string's inside, or the run ends.
"""

from __future__ import annotations

import re

import msgspec

_INSIDE = re.compile(rb'(?:[^"\\\n]|\\.)*')
# Short needles are found several times faster than long ones: what follows a text is looked for by its first bytes.
_SIGN_BYTES = 16


class TextRun:
    """What is the same in every event of a run: the bytes `before` and `after` its text."""

    __slots__ = ("_after", "_before", "_seam", "_sign", "index", "reasoning")

    def __init__(self, before: bytes, after: bytes, *, index: int, reasoning: bool) -> None:
        self._before = before
        self._after = after
        self._seam = after + before
        self._sign = after[:_SIGN_BYTES]
        self.index = index
        """of the choice"""
        self.reasoning = reasoning
        """the text is reasoning"""

    def text_of(self, payload: bytes) -> tuple[str, int, int] | None:
        """If `payload` is events of this run and nothing else: their text, how many have some, how many there are."""
        insides = self._insides(payload)
        if insides is None:
            return None
        joined = b"".join(insides)
        events = len(insides)
        texts = events - insides.count(b"")
        if b"\n" in joined:
            return None
        if joined.isascii() and b'"' not in joined and b"\\" not in joined:
            return joined.decode("ascii"), texts, events
        try:
            return "".join([_unescaped(inside) for inside in insides]), texts, events
        except (UnicodeDecodeError, msgspec.DecodeError):
            return None

    def _insides(self, payload: bytes) -> list[bytes] | None:
        """The bytes between `before` and `after` of each event: a guess, made sure by putting all together again."""
        before, seam = self._before, self._seam
        first, *parts = payload.split(self._sign)
        skipped = len(seam) - len(self._sign)
        insides = [first[len(before) :], *[part[skipped:] for part in parts[:-1]]]
        return insides if before + seam.join(insides) + self._after == payload else None


def _unescaped(inside: bytes) -> str:
    """Raises UnicodeDecodeError or msgspec.DecodeError if this is not the inside of one JSON string."""
    return inside.decode() if inside.isalnum() else msgspec.json.decode(b'"%b"' % inside, type=str)


def run_of(event: bytes, name: bytes, text: str, *, index: int, reasoning: bool) -> TextRun | None:
    """The run that `event` (one line of data) begins, whose one text is `text`, under `name`; None if unsure."""
    key = b'"%b":"' % name
    at = event.find(key)
    if at < 0 or event.find(key, at + 1) >= 0:
        return None
    start = at + len(key)
    inside = _INSIDE.match(event, start)
    assert inside is not None
    before, after = b"data: " + event[:start], event[inside.end() :] + b"\n\n"
    if b"\\" in before or b"\\" in after or not after.startswith(b'"') or _text(inside[0]) != text:
        return None
    return TextRun(before, after, index=index, reasoning=reasoning)


def _text(inside: bytes) -> str | None:
    try:
        return _unescaped(inside)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return None
