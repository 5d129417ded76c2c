"""Provider JSON → typed values. Invariant: nothing raises; well-typed fields are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

# More digits than any count has; beyond 4,300 Python refuses to read an integer at all.
_DIGITS_MAX = 400

_T = TypeVar("_T", bound=msgspec.Struct)


def reader(kind: type[_T]) -> Callable[[bytes], _T | None]:
    """A function that reads a JSON object as `kind`, whose fields all have defaults; None if it is no object.

    Usually it is decoded directly into typed values; otherwise each field that fits is kept.
    """
    decode = msgspec.json.Decoder(kind).decode

    def read(text: bytes) -> _T | None:
        try:
            return decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            document = document_of(text)
            return _struct(kind, document) if isinstance(document, dict) else None

    return read


def strict_reader(kind: type[_T]) -> Callable[[bytes], _T | None]:
    """A function that reads JSON as `kind`; None if a field does not fit, or it is no JSON."""
    decode = msgspec.json.Decoder(kind).decode

    def read(text: bytes) -> _T | None:
        try:
            return decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    return read


def document_of(text: bytes) -> Any:
    """Any JSON value, tolerating invalid UTF-8 and huge numbers; None if it is no JSON."""
    try:
        return json.loads(text.decode("utf-8", "replace"), parse_int=_int)
    except (ValueError, RecursionError):
        return None


def compact(value: object) -> str:
    """`value` as compact JSON, close to what the model generated; empty if it is None or not serialisable."""
    try:
        return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return ""


def argument_text(arguments: object) -> str:
    """The generated text of a tool call's arguments: JSON as text; or a value, if the server has parsed it."""
    return arguments if isinstance(arguments, str) else compact(arguments)


def _int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS_MAX else math.inf


def _struct(kind: type[_T], document: dict[str, Any]) -> _T:
    given = {field.name: field for field in msgspec.structs.fields(kind) if field.encode_name in document}
    return kind(**{name: _fitting(field.type, document[field.encode_name]) for name, field in given.items()})


def _fitting(kind: Any, value: Any) -> Any:
    """`value`, or the part of it that is of `kind`; None if there is none."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for option in options:
        origin = get_origin(option) or option
        if option is Any:
            return value
        if isinstance(value, dict) and isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            return _struct(origin, value)
        if origin is list and isinstance(value, list):
            fitting = (_fitting(get_args(option)[0], one) for one in value)
            return [one for one in fitting if one is not None]
        if type(value) is origin:
            return value
    return None
