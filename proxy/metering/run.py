"""Events that differ only in one text need not be parsed: most of a stream is such a run.

Law: exact. `text_of` says only what parsing each event would say, and None where it is not sure. An event is known by
the bytes before its text and the bytes after it; what lies between is a JSON string's inside, or the run ends.
"""

from __future__ import annotations

import re

import msgspec

_INSIDE = re.compile(rb'(?:[^"\\\n]|\\.)*')
# Short needles are found several times faster than long ones: what follows a text is looked for by its first bytes,
# and the rest is compared.
_SIGN_BYTES = 16


class TextRun:
    """What is the same in every event of a run: the bytes `before` and `after` its text."""

    __slots__ = ("_before", "_rest", "_sign", "index", "reasoning")

    def __init__(self, before: bytes, after: bytes, *, index: int, reasoning: bool) -> None:
        self._before = before
        self._sign, self._rest = after[:_SIGN_BYTES], after[_SIGN_BYTES:]
        self.index = index
        """of the choice"""
        self.reasoning = reasoning
        """the text is reasoning"""

    def text_of(self, payload: bytes) -> tuple[str, int] | None:
        """All text of `payload`, and how many of its events have some, if it is events of this run and nothing else."""
        insides = self._insides(payload)
        if insides is None:
            return None
        joined = b"".join(insides)
        count = len(insides) - insides.count(b"")
        if b"\n" in joined:
            return None
        if joined.isascii() and b'"' not in joined and b"\\" not in joined:
            return joined.decode("ascii"), count
        try:
            return "".join([_unescaped(inside) for inside in insides]), count
        except (UnicodeDecodeError, msgspec.DecodeError):
            return None

    def _insides(self, payload: bytes) -> list[bytes] | None:
        """The bytes between `before` and `after` of each event."""
        if not payload.startswith(self._before) or not payload.endswith(self._rest):
            return None
        # Each part but the first begins with the rest of `after` and (but for the last) `before`.
        first, *parts = payload.split(self._sign)
        same = self._rest + self._before
        if not parts or parts.pop() != self._rest or b"".join([p[: len(same)] for p in parts]) != same * len(parts):
            return None
        return [first[len(self._before) :], *[part[len(same) :] for part in parts]]


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
