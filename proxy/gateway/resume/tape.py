"""The last part of one stream in memory, as its client gets it, or would have got it.

Invariants: what it holds is never written to disk, a log or an entry. It begins between two events, and is at most
`bytes_max` long: older events are dropped. Places are counted in bytes from the beginning of the stream. Whoever writes
is never held up by whoever reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from proxy.gateway.resume.places import after_events, after_number, boundary
from proxy.metering.refusal import ErrorShape

# Of a tape that is full; so that it is cut seldom.
_LEFT = 0.75
# What an empty tape takes in memory, about: without it, short streams would take more than they count for.
EMPTY_BYTES = 2048


class OverwrittenError(Exception):
    """What would come next is not in memory any more."""


class BeyondError(Exception):
    """The stream has fewer events. `events`: so many."""

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
        """`grew`: called with each change of its size."""
        self.exchange_id = exchange_id
        self.key_id = key_id
        self.content_type = content_type
        self.errors = errors
        self.heartbeat_s = heartbeat_s
        self.readers = 0
        self.taken_up = 0
        """how often"""
        self.on_taken: Callable[[], None] | None = None
        """called when somebody goes on with the stream; the exchange sets it"""
        self.ended = False
        self.whole = False
        """it ended where the provider's stream ends"""
        self.told = False
        """its last event says why it ended"""
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
        """More of the body."""
        if self._dropped:
            return
        self._held += payload
        self._grew(self, len(payload))
        if len(self._held) > self._bytes_max:
            self._drop_oldest()
        if self._waiting:
            self._wake()

    def end(self, *, whole: bool, told: bool) -> None:
        """Nothing follows. Once."""
        self.ended, self.whole, self.told, self.on_taken = True, whole, told, None
        self._wake()

    def drop(self) -> None:
        """Give its memory back: it cannot be read any more."""
        if not self._dropped:
            self._dropped = True
            self._grew(self, -EMPTY_BYTES - len(self._held))
            self._held = bytearray()
            self._wake()

    def _drop_oldest(self) -> None:
        cut = boundary(self._held, len(self._held) - int(self._bytes_max * _LEFT))
        if len(self._held) - cut.place > self._bytes_max:  # an event longer than all that may be held
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
        """Something of it is in memory."""
        return not self._dropped

    @property
    def goes_on(self) -> bool:
        """A client that reads it gets the rest of the stream."""
        return not self._dropped and (self.whole or not self.ended)

    def after_events(self, events: int) -> int:
        """The place after so many events. Raises OverwrittenError, BeyondError."""
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
        """From there on; empty: nothing yet, or it has ended. Raises OverwrittenError."""
        start = place - self._before
        if self._dropped or start < 0:
            raise OverwrittenError
        return bytes(self._held[start : start + bytes_max])

    def has_more(self, place: int) -> bool:
        """There is something after `place`."""
        return self._before + len(self._held) > place

    async def more(self, place: int, timeout_s: float | None) -> None:
        """Wait until there is something after `place`, or it has ended, or for so long."""
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
        """Let all who wait look again."""
        self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def taken(self) -> None:
        """Somebody goes on with the stream: its earlier client is gone, if that was not noticed yet."""
        self.taken_up += 1
        if self.on_taken is not None:
            self.on_taken()
