"""Reads a client's body within limits, and parses it strictly.

Invariant: the upstream body is the parsed object serialised again, never the client's bytes: parsers disagree about
duplicate keys and unusual numbers, and a client must not be able to send one request for checks and another upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from aiohttp import HttpVersion11, web

from proxy.foundation.slices import in_slices
from proxy.http import multipart
from proxy.http.errors import JSON_TYPE, ApiError, bad_request
from proxy.http.field_names import refuse_ambiguous_names
from proxy.http.json_body import parse_object
from proxy.metering.dialect import RequestBody
from proxy.metering.request import uploads_in
from proxy.metering.wire.content_coding import CODINGS, BadCodingError, TooLongError, slices
from proxy.metering.wire.long_string import json_pieces

# A body must arrive within this many seconds, plus the time that the received bytes take at the lowest rate.
BODY_S = 30.0
BODY_BYTES_PER_S_MIN = 16 * 1024


Buffer: TypeAlias = bytes | memoryview


def _uncounted(_size: int) -> None: ...


def _coding(request: web.BaseRequest) -> str:
    return request.headers.get("Content-Encoding", "identity").strip(" \t").lower()


def is_compressed(request: web.BaseRequest) -> bool:
    """True if the body takes more memory than the bytes that arrive."""
    return "Content-Encoding" in request.headers and _coding(request) != "identity"


async def read_body(request: web.BaseRequest, *, bytes_max: int, grew: Callable[[int], None] = _uncounted) -> bytes:
    """The complete body, decompressed. `grew` is called with the size of each piece that arrives or is decompressed,
    and may raise ApiError. Raises ApiError 400, 413, 415 or 408, and ConnectionError if the client disconnects."""
    if not is_compressed(request):
        return await _read(request, bytes_max, grew)
    coding = _coding(request)
    if coding not in CODINGS:
        message = "Content-Encoding: only gzip and deflate are accepted."
        raise ApiError(415, message, param="Content-Encoding", code="unsupported_encoding")
    return await _decompressed(await _read(request, bytes_max, grew), bytes_max, grew)


async def _decompressed(body: bytes, bytes_max: int, grew: Callable[[int], None]) -> bytes:
    pieces: list[bytes] = []
    try:
        for piece in slices(body, bytes_max):
            pieces.append(piece)
            grew(len(piece))
            await asyncio.sleep(0)  # lets other tasks run
    except TooLongError:
        raise _too_large(bytes_max) from None
    except BadCodingError:
        message = "Content-Encoding: the request body is not compressed as stated."
        raise bad_request(message, param="Content-Encoding", code="invalid_encoding") from None
    return await _joined(pieces)


async def _read(request: web.BaseRequest, bytes_max: int, grew: Callable[[int], None]) -> bytes:
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
    return await _joined(pieces)


async def _joined(pieces: list[bytes]) -> bytes:
    """(A long `join` lets others have the interpreter.)"""
    return await in_slices(sum(map(len, pieces)), b"".join, pieces)


def _too_large(bytes_max: int) -> ApiError:
    return ApiError(413, f"The request body is larger than {bytes_max} bytes.", code="request_too_large")


@dataclass(frozen=True, slots=True)
class BodyCodec:
    """Reads and writes bodies of one content type."""

    parse: Callable[[bytes, str], dict[str, Any]]
    """the client's body and Content-Type → the document. Raises ApiError"""
    write: Callable[[dict[str, Any]], tuple[str, list[bytes]]]
    """the document → the upstream Content-Type and body, in pieces"""
    idempotency_bytes: Callable[[bytes, str], Iterable[Buffer]] = lambda body, _content_type: (body,)
    """the client's body and Content-Type → bytes, in pieces, that are equal for retries of one request only"""


def _parse_json(body: bytes, _content_type: str) -> dict[str, Any]:
    document = parse_object(body)  # with any Content-Type: some clients send none, or text/plain
    refuse_ambiguous_names(document)
    return document


def _write_json(document: dict[str, Any]) -> tuple[str, list[bytes]]:
    return JSON_TYPE, json_pieces(document)


def _parse_form(body: bytes, content_type: str) -> dict[str, Any]:
    document = multipart.parse(body, content_type)
    refuse_ambiguous_names(document)
    return document


def _is_form(content_type: str) -> bool:
    return content_type.lstrip()[:10].lower() == "multipart/"


def _parse_either(body: bytes, content_type: str) -> dict[str, Any]:
    return (_parse_form if _is_form(content_type) else _parse_json)(body, content_type)


def _write_either(document: dict[str, Any]) -> tuple[str, list[bytes]]:
    return (multipart.serialise if uploads_in(document) else _write_json)(document)


def _either_idempotency_bytes(body: bytes, content_type: str) -> Iterable[Buffer]:
    return multipart.without_boundary(body, content_type) if _is_form(content_type) else (body,)


CODECS = {
    RequestBody.JSON: BodyCodec(_parse_json, _write_json),
    RequestBody.MULTIPART: BodyCodec(_parse_form, multipart.serialise, multipart.without_boundary),
    RequestBody.EITHER: BodyCodec(_parse_either, _write_either, _either_idempotency_bytes),
}
