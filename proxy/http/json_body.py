"""Parses and writes JSON bodies.

Invariants: parsing is strict: RFC 8259, no duplicate names, numbers in the range of a double or exact integers. The
time that one body takes is bounded: its parts are counted before it is parsed. It is parsed on the event loop, since a
thread would not free the loop: the parser holds the interpreter's lock. The upstream body is the parsed object
serialised again (see request_body.py).
"""

from __future__ import annotations

import encodings.utf_8_sig  # noqa: F401  a process without descriptors could not import it with its first request
import json
import re
from contextlib import suppress
from math import isfinite, isinf
from typing import Any, NoReturn

import msgspec

from proxy.http.errors import ApiError, bad_request

# Deeper than any request of the known SDKs (tool schemas nest about 20 levels), far below the parser's recursion limit.
DEPTH_MAX = 64
# Ten times the longest conversation with the largest set of tools; parsing more would delay every stream.
CONTAINERS_MAX = 50_000
# Twenty for each object of that conversation, which has two to four. Reading them takes some 50 ms.
MEMBERS_MAX = 100_000
# The longest known array is an embeddings request of 300,000 tokens, OpenAI's limit. Reading them takes 20 ms, and as
# many fractions 60 ms.
ELEMENTS_MAX = 400_000
# An integer with more digits than this is beyond a double, and the time to read it grows with the square of its length:
# 23 of the longest ones (4,300 digits, Python's limit) take a few milliseconds.
LONG_DIGITS = 309
LONG_DIGITS_MAX = 100_000

_BRACKETS = re.compile(rb"[\[\]{}]")
_DIGITS_ONLY = bytes(byte if byte in b"0123456789" else 0x20 for byte in range(256))
_DIGITS_AS_0 = bytes(0x30 if byte in b"0123456789" else 0x20 for byte in range(256))


class _DuplicateKeyError(ValueError):
    """A name occurs twice in one object; the message is the name."""


class _BadNumberError(ValueError):
    """A number that is not JSON, or out of the range of a double."""


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object strictly. Raises ApiError 400, which names the field if it is known."""
    _check_size(body)
    try:
        document = _DECODER.decode(body.decode("utf-8-sig"))  # a BOM is not JSON, but editors and shells write it
    except UnicodeDecodeError:
        raise bad_request("The request body is not UTF-8.", code="invalid_json") from None
    except _DuplicateKeyError as duplicate:
        name = shown_name(str(duplicate))
        message = f"The request body has the key '{name}' twice in one object."
        raise bad_request(message, param=name, code="duplicate_key") from None
    except _BadNumberError as refusal:
        field = _field_of_bad_number(body)
        where = "the request body" if field is None else f"'{field}'"
        message = f"A number in {where} is invalid: {refusal}."
        raise bad_request(message, param=field, code="invalid_json") from None
    except (ValueError, RecursionError) as refusal:
        raise bad_request(f"The request body is not valid JSON: {_reason(refusal)}.", code="invalid_json") from None
    if not isinstance(document, dict):
        raise bad_request("The request body must be a JSON object.", code="invalid_json")
    return document


def _check_size(body: bytes) -> None:
    """Raise ApiError 400 if the body is nested too deeply, or has too many parts.

    Counting bytes costs a fraction of parsing. Most bodies pass even with the bytes of their texts counted, and most
    are too short to have too many parts.
    """
    if (
        body.count(b"[") + body.count(b"{") > DEPTH_MAX
        or (len(body) > MEMBERS_MAX * len(b'"":0') and body.count(b":") > MEMBERS_MAX)
        or (len(body) > ELEMENTS_MAX * len(b"0,") and body.count(b",") > ELEMENTS_MAX)
        or (len(body) > LONG_DIGITS_MAX and _may_have_long_integers(body))
    ):
        _check_structure(_structure(body))


def _may_have_long_integers(body: bytes) -> bool:
    """True if the body may have long integers. Each of them contains two of the bytes at equal distances, so other
    bytes need not be checked."""
    return b"00" in body[:: LONG_DIGITS // 2].translate(_DIGITS_AS_0) and (
        b"0" * (LONG_DIGITS + 1) in body.translate(_DIGITS_AS_0)
    )


def _structure(body: bytes) -> bytes:
    """The bytes outside strings. (Valid JSON has backslashes only in strings: escapes need no state.)"""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if plain.count(b'"') > 2 * (MEMBERS_MAX + MEMBERS_MAX + ELEMENTS_MAX):  # names, their values, elements
        raise _too_large(f"{MEMBERS_MAX + MEMBERS_MAX + ELEMENTS_MAX} strings")
    return b"".join(plain.split(b'"')[::2])


def _check_structure(structure: bytes) -> None:
    if structure.count(b"[") + structure.count(b"{") > DEPTH_MAX:
        _check_nesting(structure)
    members = structure.count(b":")
    if members > MEMBERS_MAX:
        raise _too_large(f"{MEMBERS_MAX} members in its objects")
    if structure.count(b",") > members + ELEMENTS_MAX:
        raise _too_large(f"{ELEMENTS_MAX} elements in its arrays")
    if len(structure) > LONG_DIGITS_MAX:
        lengths = map(len, structure.translate(_DIGITS_ONLY).split())
        if sum(length for length in lengths if length > LONG_DIGITS) > LONG_DIGITS_MAX:
            raise _too_large(f"{LONG_DIGITS_MAX} digits in numbers of over {LONG_DIGITS} digits")


def _check_nesting(structure: bytes) -> None:
    """Raise ApiError 400 if it is nested too deeply."""
    depth = containers = 0
    for token in _BRACKETS.finditer(structure):
        if structure[token.start()] in b"[{":
            depth += 1
            containers += 1
            if depth > DEPTH_MAX:
                raise bad_request(f"The request body is nested deeper than {DEPTH_MAX} levels.", code="json_too_deep")
            if containers > CONTAINERS_MAX:
                raise _too_large(f"{CONTAINERS_MAX} arrays and objects")
        else:
            depth -= 1


def _too_large(most: str) -> ApiError:
    return bad_request(f"The request body has more than {most}.", code="json_too_large")


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


def _field_of_bad_number(body: bytes) -> str | None:
    """The name of the member with the first invalid number, from a second, tolerant parse."""
    names: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names.extend(name for name, value in pairs if isinstance(value, float) and not isfinite(value))
        return {}

    with suppress(ValueError):  # the bytes after the invalid number may not be JSON
        json.loads(body, object_pairs_hook=note)
    return shown_name(names[0]) if names else None


def shown_name(name: str) -> str:
    """A member's name for an error message: cut to 64 characters; "…" if it is not printable."""
    return name[:64] if name.isprintable() else "…"


def _reason(refusal: Exception) -> str:
    if isinstance(refusal, json.JSONDecodeError):
        return f"{refusal.msg} at character {refusal.pos}"
    return "a number is out of range" if "digits" in str(refusal) else str(refusal)[:80]


def serialise(document: dict[str, Any]) -> bytes:
    """The object as JSON for the provider: the same names and values; integers of any size are exact."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        # JSON allows a lone surrogate as an escape: keep the escape.
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")
