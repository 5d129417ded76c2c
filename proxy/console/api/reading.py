"""A request's query and body → the fields of its route. Law: what is unknown, doubled or not what it must be is refused
by its name; nothing is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import cache
from typing import Any, cast
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from proxy.http.errors import ApiError, bad_request
from proxy.http.request_body import parse_object, read_body

# A key with every field is 2 kB; a thousand keys to delete are 40.
BODY_BYTES_MAX = 64 << 10
QUERY_FIELDS_MAX = 500

_PLACE = re.compile(r"`\$\.?([A-Za-z_][A-Za-z0-9_]*)")
_NAMED = re.compile(r"field `([^`]*)`")


def read_query(request: web.BaseRequest, made: type[Any]) -> Any:
    """The query as `made`. A list is written `name=a&name=b`, or with `[]` behind the name. Raises ApiError 400."""
    text = request.raw_path.partition("?")[2]
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        raise bad_request("The query is not well-formed.", code="invalid_query") from None
    lists = _lists(cast("Hashable", made))
    found: dict[str, Any] = {}
    for written, value in pairs:
        name = written.removesuffix("[]")
        if name in lists:
            found.setdefault(name, []).append(value)
        elif written in found:
            raise bad_request(f"'{_shown(written)}' is given twice.", param=_shown(written), code="duplicate_parameter")
        else:
            found[written] = value
    return _converted(found, made, strict=False)


async def read_json(request: web.BaseRequest, made: type[Any]) -> Any:
    """The body as `made`. Raises ApiError."""
    try:
        body = await read_body(request, bytes_max=BODY_BYTES_MAX)
    except (web.RequestPayloadError, ConnectionError):
        raise bad_request("The request body broke off.", code="incomplete_body") from None
    return _converted(parse_object(body), made, strict=True)


def invalid(message: str, param: str | None) -> ApiError:
    """400: a field has a value that it cannot have."""
    return bad_request(message, param=param, code="invalid_value")


@cache
def _lists(made: Any) -> frozenset[str]:
    """The fields that may be given several times."""
    fields = ((field.name, msgspec.inspect.type_info(field.type)) for field in msgspec.structs.fields(made))
    return frozenset(name for name, kind in fields if isinstance(kind, msgspec.inspect.VarTupleType))


def _converted(found: dict[str, Any], made: type[Any], *, strict: bool) -> Any:
    try:
        return msgspec.convert(found, made, strict=strict)
    except msgspec.ValidationError as wrong:
        raise _refusal(str(wrong)) from None


def _refusal(words: str) -> ApiError:
    """msgspec's words name the field, and repeat a value only where it is one of a list."""
    named = _NAMED.search(words)
    if named is not None and "unknown" in words:
        name = _shown(named[1])
        return bad_request(f"There is no field '{name}' here.", param=name, code="unknown_field")
    if named is not None:
        return bad_request(f"'{named[1]}' is missing.", param=named[1], code="missing_field")
    place = _PLACE.search(words)
    param = None if place is None else place[1]
    said = words.partition(" - at ")[0].replace("`", "'")
    return invalid(f"'{param}': {said}." if param else f"{said}.", param)


def _shown(name: str) -> str:
    return name[:64] if name.isprintable() else "…"
