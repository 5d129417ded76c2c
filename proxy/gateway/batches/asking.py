"""Requests to providers about objects.

Invariants: the target consists of the API's path, an id, and the query names that the API lists. An answer that is read
as a whole has a limit.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from urllib.parse import quote, unquote

from aiohttp import web

from proxy.foundation.slices import Slice
from proxy.gateway.upstream.client import Answer, UpstreamClient
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.http import errors
from proxy.http.headers import upward
from proxy.metering.stored_objects.api import ObjectApi

# The longest known objects are batches that failed with the errors of some hundred lines.
OBJECT_BYTES_MAX = 1 << 20
# Bytes of results that wait to be read, in addition to one line.
AHEAD_BYTES_MAX = 256 * 1024
# A longer line is metered by its beginning: four times the longest answer of a model with 128,000 tokens of output.
LINE_BYTES_MAX = 16 << 20

_ID = re.compile(r"[A-Za-z0-9_.:+@-]{1,256}", re.ASCII)
_BLANK_LINES = re.compile(rb"\n\s++")
_VALUE = re.compile(r"[A-Za-z0-9_.~%+-]{0,200}", re.ASCII)


def is_id(text: str) -> bool:
    """True if `text` can be the id of an object."""
    return _ID.fullmatch(text) is not None


def request_to(
    provider: Provider,
    api: ObjectApi,
    method: str,
    after: str = "",
    *,
    credential: str | None,
    client: web.BaseRequest | None = None,
) -> bytes:
    """The bytes of a request without a body. `after`: the end of the path, after the API's. `client`: the
    client's request."""
    path, headers = target(api, after, client), _headers(provider, api, client)
    return provider.bodiless(method, path, api.key_header, headers, accepts="*/*", credential=credential)


def posting_to(
    provider: Provider,
    api: ObjectApi,
    content_type: str,
    body: Sequence[bytes],
    *,
    credential: str | None,
    client: web.BaseRequest,
) -> list[bytes]:
    """The bytes of a request that makes an object, in pieces."""
    headers = f"Content-Type: {content_type}\r\n{_headers(provider, api, client)}"
    return provider.posting(target(api, "", client), api.key_header, headers, body, credential=credential)


def after_of(object_id: str, after: str | None = "") -> str:
    """The end of the path of an object."""
    return f"/{quote(object_id, safe='')}{after or ''}"


def target(api: ObjectApi, after: str, client: web.BaseRequest | None = None) -> str:
    """The path and query to append to a provider's base URL."""
    query = "" if client is None else "&".join(_query(client.raw_path, api.query))
    return f"{api.upstream_path}{after}?{query}" if query else f"{api.upstream_path}{after}"


def _headers(provider: Provider, api: ObjectApi, client: web.BaseRequest | None) -> str:
    if client is not None:
        return upward(client.headers, api.headers_up, provider.header_rules)
    return "".join(f"{name}: {value}\r\n" for name, value in api.own_headers)


def _query(raw_path: str, names: tuple[str, ...]) -> Iterator[str]:
    """The query parameters that are relayed, with their values unchanged."""
    for part in raw_path.partition("?")[2].partition("#")[0].split("&"):
        name, _, value = part.partition("=")
        if unquote(name) in names and _VALUE.fullmatch(value) and part.isascii() and part.isprintable():
            yield f"{quote(unquote(name))}={value}"


async def asked(client: UpstreamClient, provider: Provider, request: bytes, *rest: bytes) -> Answer:
    """Send a request. `rest`: further pieces of its body. Returns the answer with its head. Raises ApiError."""
    try:
        async with asyncio.timeout(provider.limits.first_byte_s):
            return await client.ask(provider, request, *rest)
    except UpstreamFailedError as failure:
        raise failure.refusal() from None
    except TimeoutError:
        raise errors.upstream_stalled() from None


async def object_in(answer: Answer, provider: Provider) -> bytes:
    """The whole body of an answer that has an object. Raises ApiError."""
    try:
        async with asyncio.timeout(provider.limits.idle_s):
            body = await answer.read(OBJECT_BYTES_MAX)
    except (UpstreamFailedError, TimeoutError):
        raise errors.upstream_failed() from None
    finally:
        answer.close()
    readable = None if body is None else answer.readable(body)
    if readable is None:
        raise errors.upstream_failed()
    return readable


async def lines_in(answer: Answer, *, idle_s: float) -> AsyncIterator[tuple[bytes, int]]:
    """The lines of a body with their lengths; only the beginnings of those that are too long. Other tasks run in
    between, even if lines are short. Raises UpstreamFailedError, TimeoutError."""
    if answer.coding:
        raise UpstreamFailedError("compressed although that was declined")
    pieces, current_slice = _Pieces(answer), Slice()
    answer.relay_to(pieces)
    held, size = bytearray(), 0
    while True:
        async with asyncio.timeout(idle_s):
            piece = await pieces.next()
        if piece is None:
            break
        *ended, rest = _BLANK_LINES.sub(b"\n", piece).split(b"\n")
        for end in ended:
            await current_slice.give_way()
            held += end[: LINE_BYTES_MAX - len(held)]
            if held.strip():
                yield bytes(held), size + len(end)
            held.clear()
            size = 0
        held += rest[: LINE_BYTES_MAX - len(held)]
        size += len(rest)
    if held.strip():
        yield bytes(held), size


class _Pieces:
    """A sink that returns its pieces one by one; the provider is read no faster."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._pieces: list[bytes] = []
        self._size = 0
        self._ended = self._failed = False
        self._changed = asyncio.Event()

    async def next(self) -> bytes | None:
        """The bytes that have arrived; None: the end. Raises UpstreamFailedError."""
        while not self._pieces:
            if self._failed:
                raise UpstreamFailedError("broke off")
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        pieces, self._pieces, self._size = self._pieces, [], 0
        self._answer.resume_reading()
        return b"".join(pieces)

    def relay_matched(self, wire: bytes) -> bool:
        return False

    def piece(self, payload: bytes, framed: bytes | None = None) -> None:
        self._pieces.append(payload)
        self._size += len(payload)
        if self._size >= AHEAD_BYTES_MAX:
            self._answer.pause_reading()
        self._changed.set()

    def complete(self) -> None:
        self._ended = True
        self._changed.set()

    def upstream_error(self) -> None:
        self._failed = True
        self._changed.set()

    def internal_error(self) -> None:
        """A bug of ours: the lines are read again."""
        self.upstream_error()
