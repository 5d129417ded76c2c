"""The admin listener serves others, whatever one client sends: bodies of its own, and the heads of
tests/support/worst_bytes.py."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import urlsplit

import pytest

from proxy.console.api.reading import BODY_BYTES_MAX
from tests.console.stand import SECRET, Stand
from tests.support.turns import nobody_waits
from tests.support.worst_bytes import HEADS, talk, turn_s_max

pytestmark = pytest.mark.io


def padded(begin: bytes, repeated: bytes, end: bytes) -> bytes:
    """A body as long as may be."""
    count = (BODY_BYTES_MAX - len(begin) - len(end)) // len(repeated)
    return begin + repeated * count + end


BODIES: Mapping[str, Callable[[], bytes]] = {
    "brackets": lambda: padded(b'{"a":', b"[", b""),
    "empty arrays": lambda: b'{"a":[' + b"[]," * 10_000 + b"0]}",  # twice as many take 27 ms; operators alone may post
    "members": lambda: b"{" + b",".join(b'"%d":0' % number for number in range(7_000)) + b"}",
    "one member many times": lambda: padded(b"{", b'"a":0,', b'"a":0}'),
    "fractions": lambda: padded(b'{"a":[', b"1e9,", b"0]}"),
    "digits": lambda: padded(b'{"a":', b"9", b"}"),
    "quotes": lambda: padded(b'{"a":"', b'\\"', b'"}'),
    "blanks": lambda: padded(b"{", b" ", b"}"),
    "blanks in gzip": lambda: gzip.compress(b"{" + b" " * (50 << 20) + b"}", 9),
    "a body that is too long": lambda: b" " * (20 << 20),
}


def posted(body: bytes) -> bytes:
    coding = "gzip" if body[:2] == b"\x1f\x8b" else "identity"
    fields = f"Host: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Encoding: {coding}\r\nContent-Length: {len(body)}"
    return f"POST /key/generate HTTP/1.1\r\n{fields}\r\nConnection: close\r\n\r\n".encode() + body


WIRES = {
    **{row: (lambda bytes_of=bytes_of: posted(bytes_of())) for row, bytes_of in BODIES.items()},
    **{
        row: (lambda bytes_of=bytes_of: bytes_of(1) + b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        for row, bytes_of in HEADS.items()
    },
    "a long query": lambda: (
        b"GET /v1/exchanges?"
        + b"a=b&" * 1_900
        + b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        + SECRET.encode()
        + b"\r\nConnection: close\r\n\r\n"
    ),
}


@pytest.mark.thorough
def test_nobody_waits(stand: Stand) -> None:
    port = urlsplit(stand.url).port
    assert port is not None

    for row, wire in WIRES.items():
        work = nobody_waits(partial(asyncio.to_thread, talk, port, wire(), b"\0"), turn_s_max)
        failure = asyncio.run_coroutine_threadsafe(work, stand._loop).exception()
        assert failure is None, f"{row}: {failure}"
