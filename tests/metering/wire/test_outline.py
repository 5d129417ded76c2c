"""The outline of a long text keeps what fits its bounds, to the byte."""

from __future__ import annotations

import json

import pytest

from proxy.metering.wire.outline import Outline

ROOM = {1: 128 << 10, 2: 32 << 10}
"""depth of a list → the bytes of contents that it may keep"""


def nested(depth: int, size: int) -> bytes:
    """A list at this depth whose contents have `size` bytes, in an object that continues."""
    contents = b"1," * ((size - 1) // 2) + b"1" * (2 - size % 2)
    assert len(contents) == size
    return b'{"a":' + b"[" * depth + contents + b"]" * depth + b',"b":7}'


@pytest.mark.parametrize("depth", ROOM)
def test_a_list_that_fills_its_room_is_kept_and_a_longer_one_is_emptied(depth: int) -> None:
    for size, kept in ((ROOM[depth], True), (ROOM[depth] + 1, False)):
        text = nested(depth, size)
        outline = Outline()
        outline.feed(text)
        closed = outline.close()
        assert closed.size == len(text)
        read = json.loads(closed)
        assert read["b"] == 7
        assert (closed == text) is kept, size
