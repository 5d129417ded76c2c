"""Events that differ only in one text need not be parsed: most of a stream is such a run.

Law: exact. A reader says only what parsing each event would say, and None where it is not sure. What it finds is a
guess until two proofs hold: put together again it is what came, and the texts are the insides of JSON strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import msgspec

from proxy.metering.wire.sse import EVENT_BYTES_MAX
from proxy.metering.wire.text import Chars, chars_of

_INSIDE = re.compile(rb'(?:[^"\\\n]|\\.)*')
# Up to a quote; where there are escapes, up to one that no backslash is before. What is known by its length is stepped
# over, not looked at. Nothing in it is possessive: up to Python 3.11.4 that spoils the span of the group around it.
_TEXT, _TEXT_ESCAPED = rb'([^"]*)', rb'([^"]*(?:(?<=\\)"[^"]*)*)'
# Texts are a few bytes long; what comes before one is kept ready for every length below this.
_HEADS_MAX = 64
# Events of chats are some 300 bytes. Longer ones begin no run: with the line above this bounds what is kept.
_EVENT_BYTES_MAX = 4096

_text_of = msgspec.json.Decoder(str).decode


class EventTemplate(msgspec.Struct, frozen=True):
    """What is the same in every event of a run."""

    before: bytes
    """from `data:` to the quote before the text"""
    after: bytes
    """from the quote after the text to the blank line"""
    reasoning: bool
    """the text is reasoning"""


class TemplateMatch(msgspec.Struct, frozen=True, gc=False):
    """What some events of a run say."""

    events: int
    spoken: int
    """events whose text is not empty"""
    chars: Chars
    reasoning: bool
    size: int
    """bytes of the events, without what they were wrapped in"""
    texts: list[bytes]
    """as they stand in JSON"""

    @property
    def text(self) -> str:
        """All of it."""
        return _text_of(b'"' + b"".join(self.texts) + b'"')


class Wrap(msgspec.Struct, frozen=True):
    """What the wire puts around each event."""

    head: Callable[[int], bytes]
    """what comes before an event of so many bytes"""
    head_pattern: bytes
    """a regular expression that every such head matches"""
    tail: bytes


BARE = Wrap(lambda size: b"", b"", b"")


class TemplateMatcher:
    """Reads many events of a run in one look: the bytes are passed over once, by the interpreter's own loops."""

    __slots__ = ("_find", "_find_escaped", "_fixed", "_heads", "_tail", "_wrap", "run")

    def __init__(self, run: EventTemplate, wrap: Wrap = BARE) -> None:
        self.run = run
        self._wrap = wrap
        self._fixed = len(run.before) + len(run.after)
        self._tail = run.after + wrap.tail
        around = wrap.head_pattern, len(run.before), len(self._tail)
        self._find, self._find_escaped = _finder(_TEXT, *around), _finder(_TEXT_ESCAPED, *around)
        self._heads: dict[int, bytes] = {}  # by the length of the text: all that comes before it

    def read(self, wire: bytes) -> TemplateMatch | None:
        """What `wire` says, if it is events of the run, each wrapped, and nothing else."""
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
        # The blank between two texts is what neither an escape nor a character can go on with: all are good, or none.
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
        return TemplateMatch(events, events - texts.count(b""), chars, self.run.reasoning, size, texts)

    def _head(self, text_bytes: int) -> bytes:
        head = self._wrap.head(self._fixed + text_bytes) + self.run.before
        if text_bytes < _HEADS_MAX:
            self._heads[text_bytes] = head
        return head


@lru_cache(maxsize=512)
def _finder(text: bytes, head_pattern: bytes, before_bytes: int, tail_bytes: int) -> Callable[[bytes], list[bytes]]:
    """Finds what may be the texts. Where an event does not fit, it takes all that is left: it never looks twice."""
    pattern = rb"%b(?s:.{%d})%b(?s:.{%d})|(?s:.+)" % (head_pattern, before_bytes, text, tail_bytes)
    return re.compile(pattern).findall


def run_of(event: bytes, name: bytes, text: str, *, reasoning: bool) -> EventTemplate | None:
    """The run that the data of `event` begins, whose one text is `text`, under `name`; None if unsure."""
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
