"""Reads a client's body within limits, and parses it strictly.

Invariant: the upstream body is the parsed object serialised again, never the client's bytes: parsers disagree about
duplicate keys and unusual numbers, and a client must not be able to send one request for checks and another upstream.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, isinf
from typing import Any, NoReturn

import msgspec
from aiohttp import HttpVersion11, web

from proxy.http import multipart
from proxy.http.errors import JSON_TYPE, ApiError, bad_request
from proxy.metering.dialect import RequestBody

# Deeper than any request of the known SDKs (tool schemas nest about 20 levels), far below the parser's recursion limit.
DEPTH_MAX = 64
# Ten times the longest conversation with the largest set of tools; parsing more would delay every stream.
CONTAINERS_MAX = 50_000
# A body must arrive within this many seconds, plus the time that the received bytes take at the lowest rate.
BODY_S = 30.0
BODY_BYTES_PER_S_MIN = 16 * 1024

# An unterminated string matches the rest, and the possessive quantifiers never backtrack: linear time for any body.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


async def read_body(request: web.BaseRequest, *, bytes_max: int) -> bytes:
    """The complete body. Raises ApiError 413, 415 or 408, and ConnectionError if the client disconnects."""
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
        return await _read_bounded(content, bytes_max)
    except TimeoutError:
        raise ApiError(408, "The request body did not arrive in time.", code="request_timeout") from None


async def _continue(request: web.BaseRequest) -> None:
    if request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


async def _read_bounded(content: Any, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    due_at = asyncio.get_running_loop().time() + BODY_S
    async with asyncio.timeout_at(due_at) as deadline:
        while piece := await content.readany():
            pieces.append(piece)
            size += len(piece)
            if size > bytes_max:
                raise _too_large(bytes_max)
            deadline.reschedule(due_at + size / BODY_BYTES_PER_S_MIN)
    return b"".join(pieces)


def _too_large(bytes_max: int) -> ApiError:
    return ApiError(413, f"The request body is larger than {bytes_max} bytes.", code="request_too_large")


class _DuplicateKeyError(ValueError):
    """A name occurs twice in one object; the message is the name."""


class _BadNumberError(ValueError):
    """Not a JSON number, or out of the range of a double."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _DuplicateKeyError(name)
            seen.add(name)
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise _BadNumberError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise _BadNumberError("a number is out of range")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, strict=True
)


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object strictly. Raises ApiError 400, which names the field if it is known."""
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX:
        _check_structure(body)
    try:
        document = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise bad_request("The request body is not UTF-8.", code="invalid_json") from None
    except _DuplicateKeyError as duplicate:
        name = _shown(str(duplicate))
        message = f"The request body has the key '{name}' twice in one object."
        raise bad_request(message, param=name, code="duplicate_key") from None
    except _BadNumberError as refusal:
        raise bad_request(
            f"The request body has an invalid number: {refusal}.",
            param=_field_of_bad_number(body),
            code="invalid_json",
        ) from None
    except (ValueError, RecursionError) as refusal:
        raise bad_request(f"The request body is not valid JSON: {_reason(refusal)}.", code="invalid_json") from None
    if not isinstance(document, dict):
        raise bad_request("The request body must be a JSON object.", code="invalid_json")
    return document


def _field_of_bad_number(body: bytes) -> str | None:
    """The name of the member with the first invalid number, from a second, tolerant parse."""
    names: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names.extend(name for name, value in pairs if isinstance(value, float) and not isfinite(value))
        return {}

    with suppress(ValueError):  # the bytes after the invalid number may not be JSON
        json.loads(body, object_pairs_hook=note)
    return _shown(names[0]) if names else None


def _shown(name: str) -> str:
    """A member's name for an error message: cut to 64 characters; "…" if it is not printable."""
    return name[:64] if name.isprintable() else "…"


def _reason(refusal: Exception) -> str:
    if isinstance(refusal, json.JSONDecodeError):
        return f"{refusal.msg} at character {refusal.pos}"
    return "a number is out of range" if "digits" in str(refusal) else str(refusal)[:80]


def _check_structure(body: bytes) -> None:
    """Raise ApiError 400 for too deep or too many arrays and objects. Linear time; stops at the first limit passed."""
    depth = containers = 0
    for token in _STRUCTURE.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            containers += 1
            if depth > DEPTH_MAX:
                raise bad_request(f"The request body is nested deeper than {DEPTH_MAX} levels.", code="json_too_deep")
            if containers > CONTAINERS_MAX:
                message = f"The request body has more than {CONTAINERS_MAX} arrays and objects."
                raise bad_request(message, code="json_too_large")
        elif first in b"]}":
            depth -= 1


def serialise(document: dict[str, Any]) -> bytes:
    """The object as JSON for the provider: the same names and values; integers of any size are exact."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        # JSON allows a lone surrogate as an escape: keep the escape.
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")


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
    return parse_object(body)  # whatever the Content-Type: some clients send none, or text/plain


def _write_json(document: dict[str, Any]) -> tuple[str, bytes]:
    return JSON_TYPE, serialise(document)


CODECS = {
    RequestBody.JSON: BodyCodec(_parse_json, _write_json),
    RequestBody.MULTIPART: BodyCodec(multipart.parse, multipart.serialise, multipart.without_boundary),
}
