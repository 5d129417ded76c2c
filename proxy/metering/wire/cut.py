"""Completes a JSON object that was cut off before its end, so that it can be read.

Invariants: only whole members and the beginning of a generated text stay. A usage object that is not whole is removed.
Time is linear.
"""

from __future__ import annotations

import re

import msgspec

from proxy.metering.wire.brackets import OPENING, Brackets
from proxy.metering.wire.outline import TEXT_NAMES, UnreadText
from proxy.metering.wire.parts import is_crowded

# A longer text, or one with more marks, is not completed at once, only its outline, which a meter reads in parts. An
# outline has 256 KiB.
BYTES_MAX, MARKS_MAX = 260 << 10, 6 << 10
_BLANKS = b" \t\r\n"
# A string, whole or up to the end of the text. Groups are not possessive: Python before 3.11.5 keeps what the last,
# failed turn of such a group has matched. Nothing that follows one can fail, so nothing is tried twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*("|\\?\Z)', re.DOTALL)
# Up to the first escape that is not whole; a character at the end that is not.
_WHOLE = re.compile(rb'[^"\\]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*+)*')
_PART_OF_CHARACTER = re.compile(rb"(?:[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z")
_NAME_BEFORE = re.compile(rb'"([^"\\]*)"\s*:\s*\Z')
# Names have fewer bytes than this, with the colon and blanks.
_NAME_BYTES_MAX = 64
_USAGE_NAMES = frozenset({b"usage", b"usageMetadata", b"meta"})
_USAGE = re.compile(rb'"(?:usage|usageMetadata|meta)"\s*:\s*\{')
_CLOSING = {b"{"[0]: b"}", b"["[0]: b"]"}


_check = msgspec.json.Decoder(msgspec.Raw).decode


def at_end(text: bytes) -> bytes:
    """The last text of a body. If it was cut off, and cannot be completed at once, it is only read in parts."""
    if _is_short(text):
        return text
    try:
        _check(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return UnreadText.document(text)
    return text


def _is_short(text: bytes) -> bool:
    return len(text) <= BYTES_MAX and not is_crowded(text, MARKS_MAX)


def completed(text: bytes) -> bytes | None:
    """`text` with its open ends completed; None if it is not the beginning of an object, or not cut, or too long."""
    if not text.startswith(b"{") or not _is_short(text):
        return None
    brackets, opened, last = Brackets(), list[int](), 0
    for last in brackets.feed(text):
        if text[last] in OPENING:
            opened.append(last)
        else:
            opened.pop()
            if not opened:
                return None
    kept = _whole_part(text, last + 1, in_object=text[opened[-1]] == OPENING[1])
    for depth, at in enumerate(opened):
        name = _name_before(text, at)
        if name is not None and name[1] in _USAGE_NAMES:
            kept, opened = text[: name.start()], opened[:depth]
            break
    ends = b"".join(_CLOSING[text[at]] for at in reversed(opened))
    return kept.rstrip(_BLANKS).removesuffix(b",") + ends


def has_usage(document: bytes) -> bool:
    """Whether a completed object has a usage object, which then is whole."""
    return _USAGE.search(document) is not None


def _name_before(text: bytes, at: int) -> re.Match[bytes] | None:
    """The name of the value at `at`, at its place in `text`."""
    return _NAME_BEFORE.search(text, max(0, at - _NAME_BYTES_MAX), at)


def _whole_part(text: bytes, start: int, *, in_object: bool) -> bytes:
    """`text` up to its last whole member. From `start` on there are no brackets outside of strings."""
    last = None
    for last in _STRING.finditer(text, start):  # noqa: B007
        pass
    if last is not None and last[1] != b'"':
        return _with_string(text, last.start(), in_object=in_object)
    begin, end = (start, start) if last is None else last.span()
    rest = text[end:]
    comma = rest.rfind(b",")
    if comma >= 0:
        return text[: end + comma]
    if rest.strip(_BLANKS):  # a colon, or a number or literal that may be cut
        return text[:begin] if in_object else text[:end]
    is_name = last is not None and in_object and _name_before(text, begin) is None
    return text[:begin] if is_name else text[:end]


def _with_string(text: bytes, quote: int, *, in_object: bool) -> bytes:
    """`text` with the received part of the string that begins at `quote`, if it is generated text; else without it."""
    name = _name_before(text, quote) if in_object else None
    if name is None:
        return text[:quote]
    if name[1] not in TEXT_NAMES:
        return text[: name.start()]
    whole = _WHOLE.match(text, quote + 1)
    assert whole is not None, "it matches nothing at least"
    return _PART_OF_CHARACTER.sub(b"", text[: whole.end()]) + b'"'
