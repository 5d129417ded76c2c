"""Bodies that are as much work as a provider can make them, for each framing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from proxy.metering.dialect import Dialect
from proxy.metering.wire.event_stream import message
from proxy.metering.wire.framing import CHUNK_STREAM, EVENT_STREAM, JSON_ARRAY, SSE, Framing

OPENED = b'{"id":"x","choices":['
CALLS = b'{"choices":[{"delta":{"tool_calls":[%b]},"message":{"tool_calls":[%b]}}]}'


def _filled(begin: bytes, part: bytes, end: bytes, size: int) -> bytes:
    return begin + part * max(1, (size - len(begin) - len(end)) // len(part)) + end


def _members(size: int, holder: bytes = b"%b") -> bytes:
    names = (b'"m%d":%d' % (number, number) for number in count())
    held, room = [next(names)], size
    while room > 0:
        held.append(next(names))
        room -= len(held[-1]) + 1
    return holder % (b"{" + b",".join(held) + b"}")


# Each makes a document of about so many bytes.
DOCUMENTS: dict[str, Callable[[int], bytes]] = {
    "brackets": lambda size: b"[" * size,
    "nested and closed": lambda size: b'{"x":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}",
    "nested members": lambda size: _filled(b"", b'{"choices":[', b"", size),
    "empty strings": lambda size: _filled(b'{"x":[', b'"",', b'""]}', size),
    "empty lists": lambda size: _filled(b'{"x":[', b"[],", b"[]]}", size),
    "members": _members,
    "members of the usage": lambda size: _members(size, b'{"usage":%b}'),
    "members of a choice": lambda size: _members(size, b'{"choices":[%b]}'),
    "empty choices": lambda size: _filled(OPENED, b"{},", b"{}]}", size),
    "numbers as choices": lambda size: _filled(OPENED, b"1,", b"1]}", size),
    "choices that break off": lambda size: _filled(OPENED, b'{"delta":{"content":"x"}},', b"", size),
    "texts": lambda size: _filled(b'{"content":[', b'{"type":"text","text":"a b"},', b"{}]}", size),
    "parts": lambda size: _filled(b'{"candidates":[{"content":{"parts":[', b'{"text":"a"},', b"{}]}}]}", size),
    "items": lambda size: _filled(b'{"output":[', b'{"type":"reasoning","content":[{}]},', b"{}]}", size),
    "calls": lambda size: CALLS % ((b'{"function":{}},' * (size // 40) + b"{}",) * 2),
    "unknown texts": lambda size: _filled(
        b'{"choices":[', b'{"message":{"content":"ab","thoughts":"a b c"}},', b"{}]}", size
    ),
    "details": lambda size: _filled(b'{"usage":{"promptTokensDetails":[', b'{"modality":"TEXT"},', b"{}]}}", size),
    "one text": lambda size: _filled(b'{"choices":[{"delta":{"content":"', b"word ", b'"}}]}', size),
    "one text of two scripts": lambda size: _filled(
        b'{"choices":[{"delta":{"content":"', "水a".encode(), b'"},"message":{"content":"x"}}]}', size
    ),
    "one text of escapes": lambda size: _filled(b'{"choices":[{"delta":{"content":"', rb"\"", b'"}}]}', size),
    "one text that breaks off": lambda size: _filled(b'{"choices":[{"message":{"content":"', b"word ", b"", size),
    "blanks": lambda size: b" " * size + b"{}",
    "no JSON": lambda size: b"\xff\x00" * (size // 2),
    "lines": lambda size: _filled(b'{"x":1}', b"\nx", b"", size),
}

# Each makes a stream of about so many bytes, in the framing.
STREAMS: dict[str, Callable[[Framing, int], bytes]] = {
    "tiny events": lambda framing, size: _filled(b"", framed(framing, b"0"), b"", size),
    "empty objects": lambda framing, size: _filled(b"", framed(framing, b"{}"), b"", size),
    "events without output": lambda framing, size: _filled(b"", framed(framing, b'{"odd":"a b"}'), b"", size),
    "line ends": lambda _, size: b"\n" * size,
    "lines of data": lambda _, size: _filled(b"", b"data:x\n", b"\n", size),
    "lines without data": lambda _, size: _filled(b"", b"x\n", b"\n", size),
    "empty messages": lambda _, size: _filled(b"", message({}, b""), b"", size),
    "headers": lambda _, size: message({":message-type": "event", **{f"{n:x}": "" for n in range(size // 8)}}, b"{}"),
    "carriage returns": lambda _, size: _filled(b"", b"data:x\r", b"\r", size),
}


def framed(framing: Framing, document: bytes) -> bytes:
    """A document as an event of the framing; of an array without the array's bracket."""
    if framing is JSON_ARRAY:
        return document + b","
    if framing in (EVENT_STREAM, CHUNK_STREAM):
        return message({":message-type": "event", ":event-type": "metadata"}, document)
    if framing.content_type == SSE.content_type:
        return b"data:" + document + b"\n\n"
    return document + b"\n"


def streams(dialect: Dialect, size: int) -> Iterator[tuple[str, Framing, bytes]]:
    """All bodies in the framings of the dialect."""
    for framing in dialect.framings:
        begin = b"[" if framing is JSON_ARRAY else b""
        for name, of_size in DOCUMENTS.items():
            yield name, framing, begin + framed(framing, of_size(size)) + framed(framing, b"{}")
        for name, made in STREAMS.items():
            yield name, framing, begin + made(framing, size)
