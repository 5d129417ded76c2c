"""Parses and writes JSON bodies.

Invariants: parsing is strict: RFC 8259, no duplicate names, numbers in the range of a double or exact integers. The
time that one body takes is bounded: its parts are counted before it is parsed. Of a body over AT_ONCE_BYTES, no step
takes longer than some milliseconds, so that it can be parsed in a thread: its long strings are cut out, and the parser
calls a function in Python for each object and each number. The upstream body is the parsed object serialised again (see
request_body.py).
"""

from __future__ import annotations

import encodings.utf_8_sig  # noqa: F401  a process without descriptors could not import it with its first request
import json
import re
from contextlib import suppress
from math import isfinite, isinf
from typing import Any, NoReturn

from proxy.foundation.slices import AT_ONCE_BYTES
from proxy.http.errors import ApiError, bad_request
from proxy.http.long_json import CutBody, WrongStringError
from proxy.metering.wire.long_string import LongString, json_pieces

# Deeper than any request of the known SDKs (tool schemas nest about 20 levels), far below the parser's recursion limit.
DEPTH_MAX = 64
# Ten times the longest conversation with the largest set of tools.
CONTAINERS_MAX = 50_000
# Twenty for each object of that conversation, which has two to four.
MEMBERS_MAX = 100_000
# Of one object, which is parsed at once: more than the words of a vocabulary that a client has reason to weight.
OBJECT_MEMBERS_MAX = 20_000
# The longest known array is an embeddings request of 300,000 tokens, OpenAI's limit.
ELEMENTS_MAX = 400_000
# Of members and of arrays. No API takes more than some thousand in an array, which is parsed at once.
STRINGS_MAX = 150_000
# An integer with more digits than this is beyond a double, and the time to read it grows with the square of its length:
# 23 of the longest ones (4,300 digits, Python's limit) take a few milliseconds.
LONG_DIGITS = 309
LONG_DIGITS_MAX = 100_000

_BRACKETS = re.compile(rb"[\[\]{}]")


class _DuplicateKeyError(ValueError):
    """A name occurs twice in one object; the message is the name."""


class _BadNumberError(ValueError):
    """A number that is not JSON, or out of the range of a double."""


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object strictly. Raises ApiError 400, which names the field if it is known."""
    cut = None if len(body) <= AT_ONCE_BYTES else CutBody(body)
    if cut is None:
        _check_short(body)
    else:
        body = cut.rest
        _check_structure(cut.structure)
    try:
        document = _DECODER.decode(body.decode("utf-8-sig")) if cut is None else _decoder(cut).decode(body.decode())
    except (ValueError, RecursionError) as refusal:
        raise _refusal(refusal, body, cut) from None
    if not isinstance(document, dict):
        raise bad_request("The request body must be a JSON object.", code="invalid_json")
    return document


def _refusal(refusal: Exception, body: bytes, cut: CutBody | None) -> ApiError:
    if cut is not None and not cut.is_utf8():  # this comes before all that is wrong with a part
        return _not_utf8()
    match refusal:
        case UnicodeDecodeError():
            return _not_utf8()
        case _DuplicateKeyError():
            name = shown_name(str(refusal))
            message = f"The request body has the key '{name}' twice in one object."
            return bad_request(message, param=name, code="duplicate_key")
        case _BadNumberError():
            field = _field_of_bad_number(body)
            where = "the request body" if field is None else f"'{field}'"
            return bad_request(f"A number in {where} is invalid: {refusal}.", param=field, code="invalid_json")
    return bad_request(f"The request body is not valid JSON: {_reason(refusal, cut)}.", code="invalid_json")


def _not_utf8() -> ApiError:
    return bad_request("The request body is not UTF-8.", code="invalid_json")


def _check_short(body: bytes) -> None:
    """Raise ApiError 400 if the body is nested too deeply. It is too short to have too many parts."""
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX:
        # Valid JSON has backslashes only in strings: escapes need no state.
        plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
        _check_containers(b"".join(plain.split(b'"')[::2]))


def _check_structure(structure: bytes) -> None:
    """Raise ApiError 400 if the body is nested too deeply, or has too many parts."""
    _check_containers(structure)
    members = structure.count(b":")
    if members > MEMBERS_MAX:
        raise _too_large(f"{MEMBERS_MAX} members in its objects")
    if members > OBJECT_MEMBERS_MAX:
        _check_objects(structure)
    if structure.count(b'""') > members + STRINGS_MAX:
        raise _too_large(f"{STRINGS_MAX} strings")
    if structure.count(b",") > members + ELEMENTS_MAX:
        raise _too_large(f"{ELEMENTS_MAX} elements in its arrays")


def _check_containers(structure: bytes) -> None:
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
            if depth < 0:
                return  # it is no JSON


def _check_objects(structure: bytes) -> None:
    before = 0
    members = [0]  # of the arrays and objects that are open
    for token in _BRACKETS.finditer(structure):
        members[-1] += structure.count(b":", before, token.start())
        before = token.start()
        if structure[before] in b"[{":
            members.append(0)
        elif members.pop() > OBJECT_MEMBERS_MAX:
            raise _too_large(f"{OBJECT_MEMBERS_MAX} members in one object")
        elif not members:
            return  # it is no JSON
    members[-1] += structure.count(b":", before)
    if max(members) > OBJECT_MEMBERS_MAX:  # of those that are never closed
        raise _too_large(f"{OBJECT_MEMBERS_MAX} members in one object")


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


def _decoder(cut: CutBody) -> json.JSONDecoder:
    """A decoder that gives the interpreter to others at each object and each number."""
    digits_left = LONG_DIGITS_MAX

    def check(text: str) -> str:
        nonlocal digits_left
        digits_left -= len(text)
        if digits_left < 0:
            raise _too_large(f"{LONG_DIGITS_MAX} digits in numbers of over {LONG_DIGITS} digits")
        return text

    def fraction(text: str) -> float | LongString:
        long = cut.string(text)
        if long is not None:
            return long
        return _finite(text if len(text) <= LONG_DIGITS else check(text))

    return json.JSONDecoder(
        object_pairs_hook=_unique,
        parse_constant=_refuse_constant,
        parse_float=fraction,
        parse_int=lambda text: int(text if len(text) <= LONG_DIGITS else check(text)),
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


def _reason(refusal: Exception, cut: CutBody | None) -> str:
    if isinstance(refusal, json.JSONDecodeError):
        own = cut is None or isinstance(refusal, WrongStringError)
        return f"{refusal.msg} at character {refusal.pos if cut is None or own else cut.position(refusal.pos)}"
    return "a number is out of range" if "digits" in str(refusal) else str(refusal)[:80]


def serialise(document: dict[str, Any]) -> bytes:
    """The object as JSON for the provider: the same names and values; integers of any size are exact."""
    return b"".join(json_pieces(document))
