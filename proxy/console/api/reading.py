"""Decodes a request's query and body into the types of its route.

Invariants: an unknown, repeated or invalid field is refused with its name; no field is ignored. A text that Postgres
cannot store (with a NUL character, or half of a surrogate pair) reaches no query. A type's `OTHER_NAMES` (accepted name
→ name of the field) are names that clients may send, and the documentation does not have: an earlier one, or another
API's.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from typing import Any, cast
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from proxy.console.api.expected import NAMES, expected
from proxy.http.errors import ApiError, bad_request
from proxy.http.json_body import parse_object
from proxy.http.request_body import read_body

# A key with every field takes 2 kB, a thousand keys to delete 40 kB.
BODY_BYTES_MAX = 64 << 10
QUERY_FIELDS_MAX = 500

# The place in a message of msgspec: `$.tags[0]`.
_PLACE = re.compile(r" - at (`key` in )?`\$([^`]*)`$")
_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+", re.ASCII)
_GOT = re.compile(r", got `([a-z]+)`")
# Types in a message of msgspec, and their names for those who write JSON.
_JSON_WORDS = {
    "float": "a decimal number",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_NAMED = re.compile(r"field `([^`]*)`")
_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


def read_query(request: web.BaseRequest, kind: type[Any]) -> Any:
    """Decodes the query as `kind`. A list is `name=a&name=b` or `name[]=a&name[]=b`. Raises ApiError 400."""
    text = request.raw_path.partition("?")[2]
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        raise bad_request("The query string is malformed.", code="invalid_query") from None
    lists = _lists(cast("Hashable", kind))
    found: dict[str, Any] = {}
    for raw_name, value in pairs:
        name = raw_name.removesuffix("[]")
        if name in lists:
            found.setdefault(name, []).append(value)
        elif raw_name in found:
            raise bad_request(
                f"'{_shown(raw_name)}' is given more than once.", param=_shown(raw_name), code="duplicate_parameter"
            )
        else:
            found[raw_name] = value
    return _converted(found, kind, strict=False)


async def read_json(request: web.BaseRequest, kind: type[Any]) -> Any:
    """Decodes the body as `kind`. Raises ApiError."""
    try:
        body = await read_body(request, bytes_max=BODY_BYTES_MAX)
    except (web.RequestPayloadError, ConnectionError):
        raise bad_request("The request body is incomplete.", code="incomplete_body") from None
    return _converted(parse_object(body), kind, strict=True)


def invalid(message: str, param: str | None) -> ApiError:
    """400: a field has an invalid value."""
    return bad_request(message, param=param, code="invalid_value")


@cache
def _lists(struct: Any) -> frozenset[str]:
    """The fields that may be repeated."""
    fields = ((field.name, msgspec.inspect.type_info(field.type)) for field in msgspec.structs.fields(struct))
    return frozenset(name for name, kind in fields if isinstance(kind, msgspec.inspect.VarTupleType))


def _with_own_names(found: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """The fields under their own names. Raises ApiError if one is given under two names."""
    other_names: Mapping[str, str] = getattr(kind, "OTHER_NAMES", {})
    for other, name in other_names.items():
        if other in found and name in found:
            message = f"'{name}' and '{other}' are the same field; send '{name}' only."
            raise bad_request(message, param=name, code="duplicate_parameter")
    return {other_names.get(name, name): value for name, value in found.items()}


def _converted(found: dict[str, Any], kind: type[Any], *, strict: bool) -> Any:
    for name, value in found.items():
        if not _is_text(name) or not all(map(_is_text, _texts(value))):
            shown = _shown(name)
            raise invalid(f"'{shown}': must have neither NUL characters nor halves of surrogate pairs.", shown)
    try:
        return msgspec.convert(_with_own_names(found, kind), kind, strict=strict)
    except msgspec.ValidationError as wrong:
        raise _refusal(str(wrong), kind) from None


def _is_text(text: str) -> bool:
    return _NOT_TEXT.search(text) is None


def _texts(value: object) -> Iterator[str]:
    """All strings in a JSON value. Without recursion: a body may have thousands of levels."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _refusal(message: str, kind: type[Any]) -> ApiError:
    """The ApiError for a message of msgspec: it names the field and what it may be, and repeats no free text."""
    named = _NAMED.search(message)
    if named is not None and "unknown" in message:
        name = _shown(named[1])
        return bad_request(f"Unknown field '{name}'.", param=name, code="unknown_field")
    if named is not None:
        return bad_request(f"'{named[1]}' is missing.", param=named[1], code="missing_field")
    place, got = _PLACE.search(message), _GOT.search(message)
    where = "" if place is None else place[2].lstrip(".")
    path, is_name = _STEP.findall(where), place is not None and place[1] is not None
    instead = "" if got is None else f", not {_JSON_WORDS.get(got[1], got[1])}"
    problem = f"must be {expected(kind, path)}{instead}"
    if is_name:
        problem = f"must have names that are {expected(kind, [*path, NAMES])}"
    param = path[0] if path else None
    inner = "" if len(path) < 2 else f" ({where})"
    return invalid(f"'{param}'{inner}: {problem}." if param else f"The body {problem}.", param)


def _shown(name: str) -> str:
    return name[:64] if name.isprintable() else "…"
