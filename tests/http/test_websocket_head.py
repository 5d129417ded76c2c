"""The handshake of a client: what it accepts is a WebSocket for the parser of the connection, too."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import HttpVersion11, http_parser, web
from aiohttp.base_protocol import BaseProtocol

from proxy.http.errors import ApiError
from proxy.http.websocket_head import asks_for_websocket, handshake

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
KELVIN, NBSP, LONG_S = (
    "\N{KELVIN SIGN}".encode(),
    "\N{NO-BREAK SPACE}".encode(),
    "\N{LATIN SMALL LETTER LONG S}".encode(),
)
UPGRADES = (
    b"websocket", b"WebSocket", b" websocket\t", b"websoc" + KELVIN + b"et", b"web" + LONG_S + b"ocket",
    b"websocket" + NBSP, NBSP + b"websocket", b"websocket\xe2\x80\x83", b"websocket\xff", b"websocket,h2c", b"",
    b"websocket/13", b"h2c",
)  # fmt: skip
CONNECTIONS = (
    b"upgrade", b"Upgrade", b"\tUPGRADE ", b"keep-alive, Upgrade", b"keep-alive\t,\tupgrade\t,x", b",upgrade,",
    b"close", b"upgrade" + NBSP, NBSP + b"upgrade", b"keep-alive," + NBSP + b"upgrade", b"upgrade\xff", b"upgrade;x",
    b"", b"keep-alive upgrade", b"close, upgrade",
)  # fmt: skip


def wire(upgrade: bytes, connection: bytes) -> bytes:
    return (
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: %b\r\nConnection: %b\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: %b\r\n\r\n" % (upgrade, connection, KEY)
    )


async def read(head: bytes) -> tuple[web.BaseRequest, bool]:
    """The request, and whether the parser takes what follows for another protocol."""
    loop = asyncio.get_running_loop()
    parser = http_parser.HttpRequestParser(BaseProtocol(loop), loop, 2**16)
    ((message, _),), upgraded, _ = parser.feed_data(head)
    request: Any = SimpleNamespace(headers=message.headers, method=message.method, version=HttpVersion11)
    return cast("web.BaseRequest", request), upgraded


async def test_what_is_accepted_is_a_websocket_for_the_parser() -> None:
    """Else the parser would take the frames for requests."""
    accepted = set()
    for upgrade, connection in product(UPGRADES, CONNECTIONS):
        request, upgraded = await read(wire(upgrade, connection))
        if not asks_for_websocket(request):
            continue
        with suppress(ApiError):
            handshake(request)
            accepted.add((upgrade, connection))
            assert upgraded, (upgrade, connection)
    assert accepted == set(product(UPGRADES[:3], (*CONNECTIONS[:6], CONNECTIONS[-1])))


@pytest.mark.parametrize("protocols", ["realtime\N{NO-BREAK SPACE}", "a, \N{EM SPACE}b", "realtime\x0b"])
async def test_only_ascii_is_blank_around_a_protocol(protocols: str) -> None:
    request, _ = await read(wire(b"websocket", b"upgrade"))
    headers = request.headers.copy()
    headers["Sec-WebSocket-Protocol"] = " realtime\t,x"
    request.headers = headers  # type: ignore[misc]
    assert handshake(request).protocols == ("realtime", "x")
    headers["Sec-WebSocket-Protocol"] = protocols
    with pytest.raises(ApiError) as refusal:
        handshake(request)
    assert refusal.value.param == "Sec-WebSocket-Protocol"
