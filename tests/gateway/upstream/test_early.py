"""The bytes that arrive before a body has a sink: looked at, and none taken."""

from __future__ import annotations

import asyncio

import pytest

from proxy.gateway.upstream.early import EarlyBody
from proxy.http.framing import BadFramingError, ChunkReader, LengthReader

BODY = b"data: 1\n\ndata: [DONE]\n\n"
CHUNKED = b"9\r\ndata: 1\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def reader(*, chunked: bool, length: int | None = None) -> ChunkReader | LengthReader:
    return ChunkReader() if chunked else LengthReader(length)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize("chunked", [True, False])
async def test_it_is_read_as_it_arrives_and_stays_whole(size: int, chunked: bool) -> None:
    wire, early = CHUNKED if chunked else BODY, EarlyBody()

    async def arrive() -> None:
        for at in range(0, len(wire), size):
            early.add(wire[at : at + size])
            await asyncio.sleep(0)

    async def look() -> bytes:
        made = reader(chunked=chunked, length=len(BODY))
        return b"".join([piece async for piece in early.payload(made, lambda: True)])

    looked, _ = await asyncio.gather(look(), arrive())
    assert looked == BODY
    assert early.size == len(wire)
    assert (early.take(), early.size) == (wire, 0)


async def test_it_ends_with_the_connection() -> None:
    early, goes_on = EarlyBody(), True

    async def look() -> bytes:
        return b"".join([piece async for piece in early.payload(reader(chunked=False), lambda: goes_on)])

    async def end() -> None:
        nonlocal goes_on
        early.add(b"a")
        await asyncio.sleep(0)
        goes_on = False
        early.wake()

    looked, _ = await asyncio.gather(look(), end())
    assert looked == b"a"


async def test_what_breaks_its_framing_is_said_after_what_came_before() -> None:
    early = EarlyBody()
    early.add(b"1\r\na\r\nzz\r\n")
    looking = early.payload(ChunkReader(), lambda: True)
    assert await anext(looking) == b"a"
    with pytest.raises(BadFramingError):
        await anext(looking)
