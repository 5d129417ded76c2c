"""Matches consecutive events that differ only in one text, without parsing them. Most of a stream is such events.

Invariant: a match is exactly what parsing each event would give, or None. It is accepted only after two checks: the
parts joined again equal the input, and each text is the content of a JSON string.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import msgspec

from proxy.metering.wire.long_string import Chars
from proxy.metering.wire.sse import EVENT_BYTES_MAX
from proxy.metering.wire.text import chars_of

_INSIDE = re.compile(rb'(?:[^"\\\n]|\\.)*')
# Up to a quote; with escapes, up to a quote without a backslash before it. Parts of known length are skipped, not
# matched. Nothing in it is possessive: up to Python 3.11.4 that corrupts the span of the enclosing group.
_TEXT, _TEXT_ESCAPED = rb'([^"]*)', rb'([^"]*(?:(?<=\\)"[^"]*)*)'
# Texts are a few bytes long; their heads are cached for every length below this.
_HEADS_MAX = 64
# Chat events have some 300 bytes. Longer ones give no template: with the line above this bounds the cache.
_EVENT_BYTES_MAX = 4096

_text_of = msgspec.json.Decoder(str).decode


class EventTemplate(msgspec.Struct, frozen=True):
    """The constant parts of events that differ only in one text."""

    before: bytes
    """from `data:` to the quote before the text"""
    after: bytes
    """from the quote after the text to the blank line"""
    reasoning: bool
    """True if the text is reasoning"""


class TemplateMatch(msgspec.Struct, frozen=True, gc=False):
    """The content of consecutive events that match a template."""

    events: int
    text_events: int
    """events whose text is not empty"""
    chars: Chars
    reasoning: bool
    size: int
    """bytes of the events without their wrapping"""
    texts: list[bytes]
    """JSON-escaped"""


class Wrap(msgspec.Struct, frozen=True):
    """The bytes around each event, such as chunk framing."""

    head: Callable[[int], bytes]
    """the bytes before an event of the given size"""
    head_pattern: bytes
    """a regular expression that matches every head"""
    tail: bytes


BARE = Wrap(lambda size: b"", b"", b"")


class TemplateMatcher:
    """Matches many events at once, in one pass of built-in functions over the bytes."""

    __slots__ = ("_find", "_find_escaped", "_fixed", "_heads", "_tail", "_wrap", "template")

    def __init__(self, template: EventTemplate, wrap: Wrap = BARE) -> None:
        self.template = template
        self._wrap = wrap
        self._fixed = len(template.before) + len(template.after)
        self._tail = template.after + wrap.tail
        around = wrap.head_pattern, len(template.before), len(self._tail)
        self._find, self._find_escaped = _finder(_TEXT, *around), _finder(_TEXT_ESCAPED, *around)
        self._heads: dict[int, bytes] = {}  # length of the text → all bytes before it

    def read(self, wire: bytes) -> TemplateMatch | None:
        """The content of `wire` if it consists of wrapped events of the template; else None."""
        texts = self._find_escaped(wire) if b"\\" in wire else self._find(wire)
        heads = self._heads
        try:
            parts = [heads[len(text)] + text for text in texts]
        except KeyError:
            parts = [(heads.get(len(text)) or self._head(len(text))) + text for text in texts]
        parts.append(b"")
        events = len(texts)
        if not events or self._tail.join(parts) != wire or len(wire) > EVENT_BYTES_MAX:
            return None
        # Neither an escape nor a character can continue across the blank between two texts: all are valid, or none.
        joined = b" ".join(texts)
        try:
            text = _text_of(b'"' + joined + b'"')
        except (UnicodeDecodeError, msgspec.DecodeError):
            return None
        blanks = events - 1
        chars = chars_of(text)
        if blanks:
            chars = chars[0] - blanks, chars[1], chars[2], chars[3] - blanks, *chars[4:]
        size = events * self._fixed + len(joined) - blanks
        return TemplateMatch(events, events - texts.count(b""), chars, self.template.reasoning, size, texts)

    def _head(self, text_bytes: int) -> bytes:
        head = self._wrap.head(self._fixed + text_bytes) + self.template.before
        if text_bytes < _HEADS_MAX:
            self._heads[text_bytes] = head
        return head


@lru_cache(maxsize=512)
def _finder(text: bytes, head_pattern: bytes, before_bytes: int, tail_bytes: int) -> Callable[[bytes], list[bytes]]:
    """Finds the candidate texts. An event that does not fit consumes the rest, so that no byte is scanned twice."""
    pattern = rb"%b(?s:.{%d})%b(?s:.{%d})|(?s:.+)" % (head_pattern, before_bytes, text, tail_bytes)
    return re.compile(pattern).findall


def template_of(event: bytes, name: bytes, text: str, *, reasoning: bool) -> EventTemplate | None:
    """The template of `event`, whose only text is `text`, in the field `name`; None if unsure."""
    key = b'"%b":"' % name
    at = event.find(key)
    if at < 0 or event.count(b'"%b"' % name) > 1 or b"\n" in event or len(event) > _EVENT_BYTES_MAX:
        return None
    start = at + len(key)
    inside = _INSIDE.match(event, start)
    assert inside is not None
    before, after = b"data: " + event[:start], event[inside.end() :] + b"\n\n"
    if b"\\" in before or b"\\" in after or not after.startswith(b'"') or _unescaped(inside[0]) != text:
        return None
    return EventTemplate(before, after, reasoning)


def _unescaped(inside: bytes) -> str | None:
    try:
        return _text_of(b'"%b"' % inside)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return None
