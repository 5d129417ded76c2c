"""The last part of one stream in memory, in the bytes that its client gets, or would have got.

Invariants: a tape is never written to disk, a log or an entry. It begins between two events, and is at most `bytes_max`
long: older events are dropped. Places are counted in bytes from the beginning of the stream. A reader never delays the
writer. An event is what a client's parser of server-sent events dispatches: a block of lines with a `data` line, up to
its blank line. So the place after N events is where a client that has counted N events continues.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from proxy.metering.refusal import ErrorShape
from proxy.metering.wire.sse import event_of

# One line end, then at least one blank line. No line end is taken for two.
_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)+")
_DATA = re.compile(rb"(?:\A|[\r\n])data(?:[:\r\n]|\Z)")
_BOM = b"\xef\xbb\xbf"


class Block(NamedTuple):
    """The lines up to a blank line, and their places."""

    start: int
    end: int
    """after the blank line"""
    lines: bytes

    @property
    def is_event(self) -> bool:
        """True if a client's parser dispatches an event."""
        return _DATA.search(self.lines) is not None

    @property
    def number(self) -> int | None:
        """The `sequence_number` of an event of OpenAI's responses; None: it has none."""
        event = event_of(self.lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        try:
            return None if event is None else _decode(event[0]).sequence_number
        except msgspec.MsgspecError:
            return None


class _Numbered(msgspec.Struct):
    sequence_number: int | None = None


_decode = msgspec.json.Decoder(_Numbered).decode


def blocks(stream: bytes | bytearray) -> Iterator[Block]:
    """The complete blocks, in order."""
    start = 0
    for found in _END.finditer(stream):
        lines = bytes(stream[start : found.start()])
        yield Block(start, found.end(), lines if start else lines.removeprefix(_BOM))
        start = found.end()


class Cut(NamedTuple):
    """A place between two events."""

    place: int
    events: int
    """the number of events before `place`"""


def after_events(stream: bytes | bytearray, events: int) -> Cut:
    """The place after this number of events, or after the last event if there are fewer."""
    last = Cut(0, 0)
    if events <= 0:
        return last
    for block in blocks(stream):
        if block.is_event:
            last = Cut(block.end, last.events + 1)
            if last.events == events:
                break
    return last


def after_number(stream: bytes | bytearray, number: int, events_before: int) -> int | None:
    """The place after the event with this `sequence_number`: before the next one, or after the last event. None: events
    are missing in between. `events_before`: events of the stream before these bytes. Events without numbers are counted
    from 0."""
    place, counted = 0, events_before
    first = True
    for block in blocks(stream):
        if not block.is_event:
            continue
        own = counted if (numbered := block.number) is None else numbered
        if own > number:
            return None if first and events_before and own > number + 1 else place
        first = False
        place, counted = block.end, counted + 1
    return place


def boundary(stream: bytes | bytearray, place: int) -> Cut:
    """The first place between two blocks from `place` on, or else the last one."""
    last = Cut(0, 0)
    for block in blocks(stream):
        if last.place >= place:
            break
        last = Cut(block.end, last.events + block.is_event)
    return last


# The part of a full tape that is left after a cut, so that cuts are rare.
_LEFT = 0.75
# The memory of an empty tape, about: without it, short streams would take more memory than they count for.
EMPTY_BYTES = 2048


class OverwrittenError(Exception):
    """The next bytes are not in memory any more."""


class BeyondError(Exception):
    """The stream has only `events` events so far."""

    def __init__(self, events: int) -> None:
        super().__init__(f"the stream has {events} events")
        self.events = events


class Tape:
    """Written by an exchange (`add`, `end`), read by any number of clients from any place on."""

    def __init__(
        self,
        exchange_id: str,
        key_id: str,
        *,
        content_type: str,
        errors: ErrorShape,
        heartbeat_s: float,
        bytes_max: int,
        grew: Callable[[Tape, int], None],
    ) -> None:
        """`grew`: called with each change of the size."""
        self.exchange_id = exchange_id
        self.key_id = key_id
        self.content_type = content_type
        self.errors = errors
        self.heartbeat_s = heartbeat_s
        self.readers = 0
        self.resumed_count = 0
        """how often a client resumed the stream"""
        self.on_resumed: Callable[[], None] | None = None
        """called when a client resumes the stream; set by the exchange"""
        self.ended = False
        self.whole = False
        """the stream is complete"""
        self.error_sent = False
        """the last event gives the reason why the stream ended early"""
        self._bytes_max = bytes_max
        self._grew = grew
        self._held = bytearray()
        self._before = 0  # bytes that were dropped, and their events
        self._events_before = 0
        self._dropped = False
        self._waiting: set[asyncio.Future[None]] = set()
        grew(self, EMPTY_BYTES)

    # -- written

    def add(self, payload: bytes) -> None:
        """Append a piece of the body."""
        if self._dropped:
            return
        self._held += payload
        self._grew(self, len(payload))
        if len(self._held) > self._bytes_max:
            self._drop_oldest()
        if self._waiting:
            self._wake()

    def end(self, *, whole: bool, error_sent: bool) -> None:
        """The stream has ended. Called once."""
        self.ended, self.whole, self.error_sent, self.on_resumed = True, whole, error_sent, None
        self._wake()

    def drop(self) -> None:
        """Free the memory: the tape cannot be read any more."""
        if not self._dropped:
            self._dropped = True
            self._grew(self, -EMPTY_BYTES - len(self._held))
            self._held = bytearray()
            self._wake()

    def _drop_oldest(self) -> None:
        cut = boundary(self._held, len(self._held) - int(self._bytes_max * _LEFT))
        if len(self._held) - cut.place > self._bytes_max:  # an event longer than a tape
            self.drop()
            return
        del self._held[: cut.place]
        self._before += cut.place
        self._events_before += cut.events
        self._grew(self, -cut.place)

    # -- read

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return len(self._held)

    @property
    def readable(self) -> bool:
        """True if a part of the stream is in memory."""
        return not self._dropped

    @property
    def can_be_completed(self) -> bool:
        """True if a reader gets the rest of the stream."""
        return not self._dropped and (self.whole or not self.ended)

    def after_events(self, events: int) -> int:
        """The place after this number of events. Raises OverwrittenError, BeyondError."""
        wanted = events - self._events_before
        if self._dropped or wanted < 0:
            raise OverwrittenError
        cut = after_events(self._held, wanted)
        if cut.events < wanted:
            raise BeyondError(self._events_before + cut.events)
        return self._before + cut.place

    def after_number(self, number: int) -> int:
        """The place after the event with this `sequence_number`; -1: the beginning. Raises OverwrittenError."""
        found = None if self._dropped else after_number(self._held, number, self._events_before)
        if found is None:
            raise OverwrittenError
        return self._before + found

    def read(self, place: int, bytes_max: int) -> bytes:
        """The bytes from `place` on; empty: none yet, or the stream has ended. Raises OverwrittenError."""
        start = place - self._before
        if self._dropped or start < 0:
            raise OverwrittenError
        return bytes(self._held[start : start + bytes_max])

    def has_more(self, place: int) -> bool:
        """True if there are bytes after `place`."""
        return self._before + len(self._held) > place

    async def more(self, place: int, timeout_s: float | None) -> None:
        """Wait until there are bytes after `place` or the stream has ended, for at most `timeout_s`."""
        if self.ended or self._dropped or self.has_more(place):
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await waiting
        finally:
            self._waiting.discard(waiting)

    def wake(self) -> None:
        """Wake all readers that wait."""
        self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def resumed(self) -> None:
        """A client resumed the stream: abort the previous client's connection."""
        self.resumed_count += 1
        if self.on_resumed is not None:
            self.on_resumed()
