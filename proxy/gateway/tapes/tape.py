"""The last part of one stream in memory, in the bytes that its client gets, or would have got.

Invariants: a tape is never written to disk, a log or an entry. It begins between two events, and is at most `bytes_max`
long: older events are dropped. Places are counted in bytes from the beginning of the stream. A reader never delays the
writer, and searches its place in slices of the event loop's time. The place after N events is where a client that has
counted N events continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from proxy.foundation.slices import Slice
from proxy.gateway.tapes.blocks import Block, blocks, number_of
from proxy.metering.refusal import ErrorShape


class Cut(NamedTuple):
    """A place between two events."""

    place: int
    events: int
    """the number of events before `place`"""


# What is cut off a full tape at once, or a quarter of it: cuts are rare, and short.
_CUT_OFF_BYTES = 8 * 1024
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
        end = self._before + len(self._held)
        least = end - self._bytes_max + min(_CUT_OFF_BYTES, self._bytes_max // 4)
        place, events = self._before, self._events_before
        for _, block_end, is_event in chain.from_iterable(blocks(self.read, place)):
            if place >= least:
                break
            place, events = block_end, events + is_event
        if end - place > self._bytes_max:  # an event longer than a tape
            self.drop()
            return
        size = place - self._before
        del self._held[:size]
        self._before, self._events_before = place, events
        self._grew(self, -size)

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

    async def after_events(self, events: int) -> int:
        """The place after this number of events. Raises OverwrittenError, BeyondError."""
        cut = await self._before_first(lambda _, index: index >= events)
        if cut.events > events:
            raise OverwrittenError
        if cut.events < events:
            raise BeyondError(cut.events)
        return cut.place

    async def after_number(self, number: int) -> int:
        """The place after the event with this `sequence_number`: before the next one, or after the last event; -1: the
        beginning. Events without numbers are counted from 0. Raises OverwrittenError."""
        own = number  # of the event that was looked at last

        def is_beyond(block: Block, index: int) -> bool:
            nonlocal own
            start, end, _ = block
            numbered = number_of(self.read(start, end - start))
            own = index if numbered is None else numbered
            return own > number

        place, _ = await self._before_first(is_beyond)
        if place == self._before > 0 and own > number + 1:
            raise OverwrittenError
        return place

    async def _before_first(self, is_beyond: Callable[[Block, int], bool]) -> Cut:
        """The place before the first event that is beyond, or after the last one. `is_beyond`: event, and the number of
        events before it → whether it is. Raises OverwrittenError."""
        current = Slice()
        while not self._dropped:
            place, events = self._before, self._events_before
            with suppress(OverwrittenError):  # while others ran: from the new beginning
                for ended in blocks(self.read, place):
                    await current.give_way()
                    for block in ended:
                        _, end, is_event = block
                        if is_event:
                            if is_beyond(block, events):
                                return Cut(place, events)
                            place, events = end, events + 1
                return Cut(place, events)
        raise OverwrittenError

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
