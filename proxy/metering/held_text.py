"""Holds the text of a running answer until it is counted or dropped.

Invariants: one answer holds at most `answer_bytes_max` bytes, all together at most `bytes_max`; more is dropped, and
the counters extrapolate. The text is in memory only, and its objects never show it. Its bytes are free again when its
last reference is gone, however the exchange ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

import msgspec

from proxy.metering.profile import Counted, Profile
from proxy.metering.wire.long_string import beginning

# Room is taken in such steps: most answers need one, and 16,384 of them, as many as run at once, have 64 MiB.
_STEP_BYTES = 4096

_text_of = msgspec.json.Decoder(str).decode


class TextKind(IntEnum):
    """Kinds of text that are counted separately."""

    TEXT = 0
    REASONING = 1
    CALLS = 2


class TextRoom:
    """A budget of bytes for texts. For one thread: a text counted by another thread is given back on this one."""

    def __init__(self, *, answer_bytes_max: int, bytes_max: int) -> None:
        self.answer_bytes_max = answer_bytes_max
        self.free = bytes_max

    def take(self, size: int) -> bool:
        """Take `size` bytes. False: not enough are free."""
        if size > self.free:
            return False
        self.free -= size
        return True

    def give_back(self, size: int) -> None:
        self.free += size


class PromptText:
    """The text of a prompt, until it is counted or dropped. All are equal: evidence is compared by its counters."""

    __slots__ = ("_parts", "_room", "_taken", "text")

    def __init__(self, text: str = "", parts: Sequence[str] = ()) -> None:
        """`parts`: of a text that is too long to be joined unless it is held."""
        self.text = text
        self._parts = parts
        self._room: TextRoom | None = None
        self._taken = 0

    def hold(self, room: TextRoom | None) -> None:
        """Hold the text within this room: only its beginning if it is long, nothing if there is no room."""
        if self._parts:
            self.text = "" if room is None else beginning(self._parts, room.answer_bytes_max)
            self._parts = ()
        size = sys.getsizeof(self.text)
        if room is not None and size > room.answer_bytes_max:
            self.text = self.text[: len(self.text) * room.answer_bytes_max // size]
            size = room.answer_bytes_max
        if room is not None and self.text and room.take(size):
            self._room, self._taken = room, size
        else:
            self.drop()

    def drop(self) -> None:
        """Drop the text, and give its bytes back. Idempotent."""
        if self.text or self._parts:
            self.text, self._parts = "", ()
        if self._room is not None:
            self._room.give_back(self._taken)
            self._room = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptText)

    def __hash__(self) -> int:
        return 0

    def __del__(self) -> None:
        if self._room is not None:
            self.drop()


NO_PROMPT_TEXT = PromptText()


class AnswerText:
    """The texts of one answer."""

    __slots__ = ("_left", "_room", "_taken", "_texts", "is_lost")

    def __init__(self, room: TextRoom) -> None:
        self._room = room
        self._taken = 0
        self._left = 0  # bytes of taken texts
        self._texts = [bytearray(), bytearray(), bytearray()]  # by TextKind
        self.is_lost = False
        """a part of the text is missing: it cannot be counted"""

    def add(self, kind: TextKind, text: str | None) -> None:
        """Add text. None: text is missing."""
        if text is None:
            self.give_up()
        elif text:
            self._add(kind, text.encode(errors="replace"))

    def add_raw(self, kind: TextKind, fragments: Sequence[bytes]) -> None:
        """Add the contents of valid JSON strings. Hot path."""
        raw = fragments[0] if len(fragments) == 1 else b"".join(fragments)
        if b"\\" in raw:
            raw = _text_of(b'"%b"' % raw).encode(errors="replace")
        size = len(raw)
        if size > self._left:
            self._add(kind, raw)
        else:
            self._left -= size
            self._texts[kind] += raw

    def _add(self, kind: TextKind, raw: bytes) -> None:
        if len(raw) > self._left and not self._grow(len(raw)):
            raw = raw[: self._left]
        self._left -= len(raw)
        self._texts[kind].extend(raw)

    def _grow(self, size: int) -> bool:
        """Take `size` more bytes. False: not all of them are free."""
        if self.is_lost:
            return False
        used = self._taken - self._left
        wanted = min(-(-(used + size) // _STEP_BYTES) * _STEP_BYTES, self._room.answer_bytes_max)
        if wanted > self._taken and self._room.take(wanted - self._taken):
            self._left += wanted - self._taken
            self._taken = wanted
        return size <= self._left

    def give_up(self) -> None:
        """Drop the text: it cannot be counted."""
        self.is_lost = True
        for text in self._texts:
            text.clear()
        self._release()

    def _release(self) -> None:
        if self._taken:
            self._room.give_back(self._taken)
            self._taken = self._left = 0

    @property
    def size(self) -> int:
        """Number of held bytes."""
        return self._taken - self._left

    def texts(self) -> list[str]:
        """The texts by kind, without an incomplete last character."""
        return [bytes(text).decode(errors="ignore") for text in self._texts]

    def __bool__(self) -> bool:
        return self._taken > self._left

    def __del__(self) -> None:
        if self._taken:
            self._release()


class TextCounter(Protocol):
    """Counts the texts of one model in the background."""

    @property
    def room(self) -> TextRoom | None:
        """The budget of held texts; None: nothing is counted."""

    def count(
        self,
        held: AnswerText | None,
        prompt: PromptText | None,
        on_counted: Callable[[Counted | None, Profile | None], None],
        *,
        urgent: bool,
    ) -> bool:
        """Count these texts and drop them; then call `on_counted` with the counts on the running event loop, None for a
        text without a count. Returns False, without a call, if there is no room. `urgent`: an entry waits for the
        counts; else they only teach the estimator."""
