"""Provider JSON → typed values. Invariant: nothing raises; well-typed fields are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from proxy.metering.wire.parts import is_crowded

# Objects in lists of an answer that are read: reading one takes up to 10 µs. There may be _LIGHT times as many other
# elements and members.
ENTRIES_MAX = 1024
_LIGHT = 8
# A text that no typed reader takes is read by Python, if it has at most so many marks: that takes 1 µs for each.
_LENIENT_MARKS_MAX = 12 << 10
# More digits than any count has; beyond 4,300 Python refuses to read an integer at all.
_DIGITS_MAX = 400

_T = TypeVar("_T", bound=msgspec.Struct)


def reader(kind: type[_T], entries_max: int = ENTRIES_MAX) -> Callable[[bytes], _T | None]:
    """A function that reads a JSON object as `kind`, whose fields all have defaults; None if it is no object, or more
    than `entries_max` entries would be read.

    Usually it is decoded directly into typed values; otherwise each field that fits is kept.
    """
    decode = msgspec.json.Decoder(kind).decode

    def read(text: bytes) -> _T | None:
        try:
            value = decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            if not text.lstrip().startswith(b"{") or is_crowded(text, _LENIENT_MARKS_MAX):
                return None
            document = document_of(text)
            return _struct(kind, document) if isinstance(document, dict) else None
        return value if len(text) <= ENTRIES_MAX or _entries_left(value, entries_max) >= 0 else None

    return read


def _entries_left(value: object, left: int) -> int:
    """`left`, less the entries of the lists and objects in `value`; less than 0 if there are more."""
    inner: Iterable[object] = ()
    if isinstance(value, msgspec.Struct):
        inner = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        left, inner = left - len(value), value
    elif isinstance(value, list | dict):
        left -= len(value) // _LIGHT
    for one in inner:
        if left >= 0 and one is not None and not isinstance(one, str):
            left = _entries_left(one, left)
    return left


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


@lru_cache(maxsize=1024)
def _options(kind: Any) -> tuple[tuple[Any, Any], ...]:
    """Each type that `kind` allows, without and with the types of its elements."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple((option, get_origin(option) or option) for option in options)


def _fitting(kind: Any, value: Any) -> Any:
    """`value`, or the part of it that is of `kind`; None if there is none."""
    for option, origin in _options(kind):
        if option is Any:
            return value
        if isinstance(value, dict) and isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            return _struct(origin, value)
        if origin is list and isinstance(value, list):
            inner = get_args(option)[0]
            fitting = (_fitting(inner, one) for one in value)
            return [one for one in fitting if one is not None]
        if type(value) is origin:
            return value
    return None
