"""What a field of a request may be, in words, from its type.

Invariant: a pattern is never shown: its field has a description.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from typing import Any, cast

from msgspec import inspect, structs

NAMES = "(names)"
"""in a path: the names in an object"""

# Longer lists of values fill an error message.
_VALUES_SHOWN = 40


def expected(kind: type[Any], path: Sequence[str]) -> str:
    """`one of asc and desc`, `a whole number from 1 to 200`: the value at this path in the type. `path`: names of
    fields; a number is a place in a list, NAMES the names in an object."""
    return _text(_at(_info(cast("Hashable", kind)), path))


@cache
def _info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _at(kind: inspect.Type, path: Sequence[str]) -> inspect.Type:
    """The innermost type on the path that is known."""
    for name in path:
        below = next(filter(None, (_below(part, name) for part in _parts(kind))), None)
        if below is None:
            return kind
        kind = below
    return kind


def _below(kind: inspect.Type, name: str) -> inspect.Type | None:
    if isinstance(kind, inspect.StructType):
        found = next((one for one in structs.fields(kind.cls) if one.encode_name == name), None)
        return None if found is None else inspect.type_info(found.type)
    if isinstance(kind, inspect.VarTupleType | inspect.ListType):
        return kind.item_type if name.isdecimal() else None
    if isinstance(kind, inspect.DictType):
        return kind.key_type if name == NAMES else kind.value_type
    return None


def _parts(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        yield from _parts(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _parts(one)
    else:
        yield kind


def _text(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        described = (kind.extra_json_schema or {}).get("description")
        return str(described) if described else _text(kind.type)
    if isinstance(kind, inspect.UnionType):
        return " or ".join(map(_text, kind.types))
    if isinstance(kind, inspect.LiteralType):
        return _one_of([str(value) for value in kind.values])
    if isinstance(kind, inspect.EnumType):
        return _one_of([str(one.value) for one in kind.cls])
    if isinstance(kind, inspect.IntType):
        return f"a whole number{_range(kind)}"
    if isinstance(kind, inspect.FloatType):
        return f"a number{_range(kind)}"
    if isinstance(kind, inspect.StrType):
        return f"text{_length(kind, 'characters')}"
    if isinstance(kind, inspect.VarTupleType | inspect.ListType):
        return f"a list{_length(kind, 'elements')}"
    if isinstance(kind, inspect.DictType | inspect.StructType):
        return "an object"
    words = {inspect.BoolType: "true or false", inspect.NoneType: "null"}
    return words.get(type(kind), "another value")


def _one_of(values: Sequence[str]) -> str:
    shown = list(values[:_VALUES_SHOWN])
    if len(shown) == 1:
        return shown[0]
    return f"one of {', '.join(shown[:-1])} and {shown[-1]}"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    least, above, most = kind.ge, kind.gt, kind.le
    if least is not None and most is not None:
        return f" from {least:,} to {most:,}"
    parts = [f"at least {least:,}"] if least is not None else []
    parts += [f"above {above:,}"] if above is not None else []
    parts += [f"at most {most:,}"] if most is not None else []
    return f" {' and '.join(parts)}" if parts else ""


def _length(kind: Any, units: str) -> str:
    least, most = kind.min_length, kind.max_length
    if least and most:
        return f" of {least:,} to {most:,} {units}"
    return f" of at most {most:,} {units}" if most else f" of at least {least:,} {units}" if least else ""
