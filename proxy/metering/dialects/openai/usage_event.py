"""Which event is the usage event that `stream_options.include_usage` adds, told while its bytes still come.

Law: exactly a JSON object whose `choices` is an empty list and whose `usage` is an object, each key there once and
spelled without escapes. The answer is the same for every way of cutting the bytes, and the time is linear.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_STRUCTURE = re.compile(rb'["{}\[\],:]')
_VISIBLE = re.compile(rb"[^ \t\r\n]")
_STRING_STOP = re.compile(rb'["\\]')
# Longer than both keys that matter.
_KEY_BYTES_MAX = 16
_WANTED = {b"choices": b"[", b"usage": b"{"}


class UsageEventShape:
    """Follows a JSON text at its top level; `refuted` as soon as it cannot be the usage event any more."""

    __slots__ = ("_depth", "_escaped", "_in_key", "_in_string", "_key", "_key_next", "_seen", "_want", "refuted")

    def __init__(self) -> None:
        self.refuted = False
        self._depth = 0
        self._in_string = self._in_key = self._escaped = False
        self._key = b""
        self._key_next = False  # the next string at depth 1 is a key
        self._want = b"{"  # what the next visible byte must be; empty: anything
        self._seen: set[bytes] = set()

    @property
    def has_both(self) -> bool:
        """True if `choices` and `usage` were there."""
        return len(self._seen) == len(_WANTED)

    def feed(self, text: bytes) -> None:
        """More of the JSON text."""
        at = 0
        while at < len(text) and not self.refuted:
            at = self._through_string(text, at) if self._in_string else self._through_structure(text, at)

    def _through_string(self, text: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        stop = _STRING_STOP.search(text, at)
        end = len(text) if stop is None else stop.start()
        if self._in_key:
            self._key = (self._key + text[at : min(end, at + _KEY_BYTES_MAX)])[:_KEY_BYTES_MAX]
        if stop is None:
            return end
        if stop.group() == b'"':
            self._in_string = self._in_key = False
        elif self._in_key:
            self.refuted = True  # no provider escapes these keys; whoever does is not ours to strip
        else:
            self._escaped = True
        return end + 1

    def _through_structure(self, text: bytes, at: int) -> int:
        found = (_VISIBLE if self._want else _STRUCTURE).search(text, at)
        if found is None:
            return len(text)
        byte = found.group()
        if self._want and byte != self._want:
            self.refuted = True
        else:
            self._step(byte)
        return found.end()

    def _step(self, byte: bytes) -> None:
        wanted, self._want = self._want, b""
        if byte == b'"':
            self._in_string, self._in_key = True, self._depth == 1 and self._key_next
            self._key = b"" if self._in_key else self._key
        elif byte in b"{[":
            self._depth += 1
            self._key_next = self._depth == 1
            self._want = b"]" if wanted == b"[" else b""
        elif byte in b"}]":
            self._depth -= 1
        elif self._depth == 1:
            self._separate(byte)

    def _separate(self, byte: bytes) -> None:
        if byte == b",":
            self._key_next = True
        elif self._key_next:
            self._key_next = False
            self.refuted = self._key in self._seen
            if (want := _WANTED.get(self._key)) is not None:
                self._want = want
                self._seen.add(self._key)


class _UsageEvent(msgspec.Struct, gc=False):
    choices: list[Any]
    usage: dict[str, Any]


_USAGE_EVENT = msgspec.json.Decoder(_UsageEvent)


def is_usage_event(event_data: bytes) -> bool:
    """True for the usage event. Azure's first event (`choices` empty, no usage) and `"usage":null` are not it."""
    # The cheap questions first: nearly every event is refused by one of them.
    if b'"usage"' not in event_data or b'"choices"' not in event_data or not _decodes(event_data):
        return False
    shape = UsageEventShape()
    shape.feed(event_data)
    return not shape.refuted and shape.has_both


def _decodes(event_data: bytes) -> bool:
    try:
        return not _USAGE_EVENT.decode(event_data).choices
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
