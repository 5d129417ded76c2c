"""Finds places between the events of a stream, in its bytes. Pure.

Invariant: an event is what a client's parser of server-sent events dispatches: a block of lines with a `data` line, up
to its blank line. So the place after N events is where a client that has counted N events continues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

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
