"""A client's body: read within limits, parsed so that what was checked is what goes up.

Law: what is forwarded is the parsed object re-serialised, never the bytes that were inspected, because parsers
disagree about duplicate keys and odd numbers, and whoever is billed must not choose between two readings.
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

# Deeper than any request of the known SDKs (tool schemas nest about 20), far below the parser's own recursion limit.
DEPTH_MAX = 64
# Ten times what the longest conversation with the largest set of tools has; reading more would hold up every stream.
CONTAINERS_MAX = 50_000
# A body must arrive within this many seconds, plus the time that what has come so far takes at the slowest rate.
BODY_S = 30.0
BODY_BYTES_PER_S_MIN = 16 * 1024

# A string without an end takes the rest, and nothing is tried twice: any body is read in linear time.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


async def read_body(request: web.BaseRequest, *, bytes_max: int) -> bytes:
    """The whole body. Raises ApiError 413, 415 or 408; a client that leaves raises ConnectionError."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ApiError(415, "A compressed request body is not accepted.", param="Content-Encoding")
    if (request.content_length or 0) > bytes_max:
        raise _too_large(bytes_max)
    if "Expect" in request.headers:
        await _continue(request)
    content = request.content
    if content.is_eof():
        body = content.read_nowait()
        if len(body) > bytes_max:  # chunked, and all here already
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
    """The name that stands twice in one object."""


class _BadNumberError(ValueError):
    """A number JSON does not have, or one that no double can hold."""


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
    """A JSON object, strictly. Raises ApiError 400 that says what is wrong and, where it can, names the field."""
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
            f"The request body has a bad number: {refusal}.",
            param=_field_of_bad_number(body),
            code="invalid_json",
        ) from None
    except (ValueError, RecursionError) as refusal:
        raise bad_request(f"The request body is not valid JSON: {_reason(refusal)}.", code="invalid_json") from None
    if not isinstance(document, dict):
        raise bad_request("The request body must be a JSON object.", code="invalid_json")
    return document


def _field_of_bad_number(body: bytes) -> str | None:
    """The name under which the first bad number stands, found by a second, tolerant reading."""
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.extend(name for name, value in pairs if isinstance(value, float) and not isfinite(value))
        return {}

    with suppress(ValueError):  # what follows the bad number need not be JSON at all
        json.loads(body, object_pairs_hook=note)
    return _shown(found[0]) if found else None


def _shown(name: str) -> str:
    """A member's name as an error can carry it: not endless, and nothing that UTF-8 or a terminal cannot take."""
    return name[:64] if name.isprintable() else "…"


def _reason(refusal: Exception) -> str:
    if isinstance(refusal, json.JSONDecodeError):
        return f"{refusal.msg} at character {refusal.pos}"
    return "a number is out of range" if "digits" in str(refusal) else str(refusal)[:80]


def _check_structure(body: bytes) -> None:
    """Raise ApiError 400 for too deep or too many arrays and objects. Linear; stops as soon as a limit is passed."""
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
    """The object as it goes to the provider: same names, same values, numbers of any size exact."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        # A lone surrogate, legal as an escape in JSON: keep it an escape.
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")


@dataclass(frozen=True, slots=True)
class BodyCodec:
    """One way to write a document."""

    parse: Callable[[bytes, str], dict[str, Any]]
    """the body and its Content-Type as the client sent it → the document. Raises ApiError"""
    write: Callable[[dict[str, Any]], tuple[str, bytes]]
    """the document → the Content-Type and the body that go up"""
    idempotency_bytes: Callable[[bytes, str], bytes] = lambda body, _content_type: body
    """the body and its Content-Type → what is the same in every repetition of a request, and in no other"""


def _parse_json(body: bytes, _content_type: str) -> dict[str, Any]:
    return parse_object(body)  # whatever it is called: some clients say nothing, or text/plain


def _write_json(document: dict[str, Any]) -> tuple[str, bytes]:
    return JSON_TYPE, serialise(document)


CODECS = {
    RequestBody.JSON: BodyCodec(_parse_json, _write_json),
    RequestBody.MULTIPART: BodyCodec(multipart.parse, multipart.serialise, multipart.without_boundary),
}
