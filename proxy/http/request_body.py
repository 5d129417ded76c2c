"""Reads a client's body within limits, and parses it strictly.

Invariant: the upstream body is the parsed object serialised again, never the client's bytes: parsers disagree about
duplicate keys and unusual numbers, and a client must not be able to send one request for checks and another upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import HttpVersion11, web

from proxy.http import multipart
from proxy.http.errors import JSON_TYPE, ApiError
from proxy.http.field_names import refuse_ambiguous_names
from proxy.http.json_body import parse_object, serialise
from proxy.metering.dialect import RequestBody

# A body must arrive within this many seconds, plus the time that the received bytes take at the lowest rate.
BODY_S = 30.0
BODY_BYTES_PER_S_MIN = 16 * 1024


def _uncounted(_size: int) -> None: ...


async def read_body(request: web.BaseRequest, *, bytes_max: int, grew: Callable[[int], None] = _uncounted) -> bytes:
    """The complete body. `grew` is called with the size of each piece that arrives, and may raise ApiError. Raises
    ApiError 413, 415 or 408, and ConnectionError if the client disconnects."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ApiError(415, "A compressed request body is not accepted.", param="Content-Encoding")
    if (request.content_length or 0) > bytes_max:
        raise _too_large(bytes_max)
    if "Expect" in request.headers:
        await _continue(request)
    content = request.content
    if content.is_eof():
        body = content.read_nowait()
        if len(body) > bytes_max:  # chunked, and fully received
            raise _too_large(bytes_max)
        return body
    try:
        return await _read_bounded(content, bytes_max, grew)
    except TimeoutError:
        raise ApiError(408, "The request body did not arrive in time.", code="request_timeout") from None


async def _continue(request: web.BaseRequest) -> None:
    if request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


async def _read_bounded(content: Any, bytes_max: int, grew: Callable[[int], None]) -> bytes:
    pieces: list[bytes] = []
    size = 0
    due_at = asyncio.get_running_loop().time() + BODY_S
    async with asyncio.timeout_at(due_at) as deadline:
        while piece := await content.readany():
            pieces.append(piece)
            size += len(piece)
            if size > bytes_max:
                raise _too_large(bytes_max)
            grew(len(piece))
            deadline.reschedule(due_at + size / BODY_BYTES_PER_S_MIN)
    return b"".join(pieces)


def _too_large(bytes_max: int) -> ApiError:
    return ApiError(413, f"The request body is larger than {bytes_max} bytes.", code="request_too_large")


@dataclass(frozen=True, slots=True)
class BodyCodec:
    """Reads and writes bodies of one content type."""

    parse: Callable[[bytes, str], dict[str, Any]]
    """the client's body and Content-Type → the document. Raises ApiError"""
    write: Callable[[dict[str, Any]], tuple[str, bytes]]
    """the document → the upstream Content-Type and body"""
    idempotency_bytes: Callable[[bytes, str], bytes] = lambda body, _content_type: body
    """the client's body and Content-Type → bytes that are equal for retries of one request only"""


def _parse_json(body: bytes, _content_type: str) -> dict[str, Any]:
    document = parse_object(body)  # whatever the Content-Type: some clients send none, or text/plain
    refuse_ambiguous_names(document)
    return document


def _write_json(document: dict[str, Any]) -> tuple[str, bytes]:
    return JSON_TYPE, serialise(document)


def _parse_form(body: bytes, content_type: str) -> dict[str, Any]:
    document = multipart.parse(body, content_type)
    refuse_ambiguous_names(document)
    return document


CODECS = {
    RequestBody.JSON: BodyCodec(_parse_json, _write_json),
    RequestBody.MULTIPART: BodyCodec(_parse_form, multipart.serialise, multipart.without_boundary),
}
