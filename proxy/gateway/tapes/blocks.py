"""Finds the blocks of lines in a stream of server-sent events, a window of bytes at a time.

Invariants: an event is what a client's parser dispatches: a block of lines with a `data` line, up to its blank line.
The time of a window is bounded, whatever its bytes are, and each byte is looked at once, but for a few at the edges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from proxy.metering.wire.sse import event_of

# The shortest blocks (3 bytes) of a window take less than a millisecond: ten readers may begin in one turn of the loop.
WINDOW_BYTES = 1024
# Windows overlap by more than the longest text that is searched for.
EDGE_BYTES = 8
# OpenAI's events have two.
NUMBERED_LINES_MAX = 1_000

# One of these is in each blank line, together with the line end before it.
_BLANK = (b"\n\n", b"\r\r", b"\n\r")
# One line end, then at least one blank line. No line end is taken for two.
_END = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?+|\n)++")
# A block has a line end after each line.
_DATA = (b"data:", b"data\n", b"data\r")
_LATER_DATA = re.compile(rb"[\r\n]data[:\r\n]")
_BOM = b"\xef\xbb\xbf"

Block = tuple[int, int, bool]
"""The lines up to a blank line: where they start, where the blank line ends; True: it is an event."""


def blocks(read: Callable[[int, int], bytes], place: int, window_bytes: int = WINDOW_BYTES) -> Iterator[list[Block]]:
    """The complete blocks from `place` on, which is between two blocks; at each step those of one window. `read`:
    place, size → the bytes from there on, fewer at the end of the stream; its exceptions are passed on."""
    start = looked = place
    is_event = False
    while True:
        window = read(looked, window_bytes)
        is_last = len(window) < window_bytes
        ended: list[Block] = []
        at = 0 if looked == start else -1  # where the block begins in the window; -1: before it
        for line_end, end in _ends(window):
            if end == len(window) and line_end and not is_last:
                break  # the next window may begin with further line ends
            ended.append((start, looked + end, is_event or _has_data(window, at, line_end + 1, start)))
            start, at, is_event = looked + end, end, False
        is_event = is_event or _has_data(window, at, len(window), start)
        yield ended
        if is_last:
            return
        looked = max(start, looked + window_bytes - EDGE_BYTES)


def _ends(window: bytes) -> list[tuple[int, int]]:
    """Where the lines of each block end, and where its blank lines end."""
    if any(blank in window for blank in _BLANK):
        return [found.span() for found in _END.finditer(window)]
    return []


def _has_data(window: bytes, at: int, end: int, start: int) -> bool:
    """True if a `data` line is in the part of a block in the window. `at`: see `blocks`; `start`: the block's place."""
    if at >= 0 and window.startswith(_DATA, at if start or not window.startswith(_BOM) else len(_BOM)):
        return True
    return window.find(b"data", at + 1, end) >= 0 and _LATER_DATA.search(window, max(at, 0), end) is not None


class _Numbered(msgspec.Struct):
    sequence_number: int | None = None


_decode = msgspec.json.Decoder(_Numbered).decode


def number_of(block: bytes) -> int | None:
    """The `sequence_number` of an event of OpenAI's responses; None: it has none."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    event = event_of(block) if block.count(b"\n") <= NUMBERED_LINES_MAX else None
    try:
        return None if event is None else _decode(event[0]).sequence_number
    except msgspec.MsgspecError:
        return None
