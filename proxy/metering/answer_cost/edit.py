"""Writes a cost into the usage object of a JSON text, and of an event.

Invariants: all bytes outside of the usage object stay, and so do those of its other members. A text that is not JSON,
or has no such object, stays as it is. Time is linear. Nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from proxy.metering.wire.parts import is_crowded


class Cost(NamedTuple):
    """The members of a usage object, as JSON."""

    cost: bytes
    """USD"""
    cost_details: bytes


UNKNOWN = Cost(b"null", b"null")
"""replaces a cost that the provider states: the customer does not pay it"""

CostSoFar: TypeAlias = Callable[[], Cost | None]
"""The cost of the answer if it ended at this event; None: unknown, or not final."""
UsagePath: TypeAlias = tuple[str, ...]
"""names of members, from the whole text to its usage object"""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NAME = re.compile(rb"[\s,]*+(%b)\s*+:\s*+" % _STRING, re.DOTALL)
_SCALAR = re.compile(rb'%b|[^\s,\[\]{}"]++' % _STRING, re.DOTALL)
_BRACKET = re.compile(rb'[^"\[\]{}]*+(?:%b[^"\[\]{}]*+)*+([\[\]{}])' % _STRING, re.DOTALL)
_BLANKS = b" \t\r\n"
# A line of data, and the lines before it. Several lines of data would be one document; no known provider sends that.
_DATA_LINE = re.compile(rb"(?:\A|(?<=[\r\n]))data: ?([^\r\n]*)")
_USAGE = b'"usage"'
# A text with more marks stays as it is: probabilities of 400 tokens have as many.
_MARKS_MAX = 32 << 10

_check = msgspec.json.Decoder(msgspec.Raw).decode


def with_cost(document: bytes, path: UsagePath, cost: CostSoFar) -> bytes:
    """`document` with this cost in the usage object at `path`. `cost` is called only if there is a usage object."""
    if _USAGE not in document or is_crowded(document, _MARKS_MAX):
        return document
    try:
        _check(document)
        return _edited(document, path, cost)
    except (msgspec.MsgspecError, RecursionError):
        return document


def event_with_cost(event: bytes, path: UsagePath, cost: CostSoFar) -> bytes:
    """`event`, a whole server-sent event, with this cost in the usage object at `path`."""
    if _USAGE not in event or is_crowded(event, _MARKS_MAX):
        return event
    lines = list(_DATA_LINE.finditer(event))
    if len(lines) != 1:
        return event
    start, end = lines[0].span(1)
    document = event[start:end]
    edited = with_cost(document, path, cost)
    return event if edited is document else event[:start] + edited + event[end:]


def _edited(document: bytes, path: UsagePath, cost: CostSoFar) -> bytes:
    """`with_cost` of a text that is valid JSON."""
    at = len(document) - len(document.lstrip(_BLANKS))
    for name in path:
        found = _value_at(document, at, f'"{name}"'.encode())
        if found is None:
            return document
        at = found
    if document[at : at + 1] != b"{":
        return document
    known_cost = cost()
    values = dict(zip((b'"cost"', b'"cost_details"'), known_cost or UNKNOWN, strict=True))
    return _with_members(document, at, values, add=known_cost is not None)


def _value_at(document: bytes, at: int, name: bytes) -> int | None:
    """The offset of this member's value in the object at `at`. Of duplicates the last one counts, as in parsers."""
    if document[at : at + 1] != b"{":
        return None
    places = [start for found, start, _ in _members(document, at) if found == name]
    return places[-1] if places else None


def _with_members(document: bytes, at: int, values: dict[bytes, bytes], *, add: bool) -> bytes:
    """The object at `at` with these values of its members. `add`: also insert members that it lacks."""
    parts, copied, missing = [], 0, dict(values)
    end, empty = at + 1, True
    for name, start, end in _members(document, at):
        empty = False
        if name in values:
            missing.pop(name, None)
            parts += [document[copied:start], values[name]]
            copied = end
    if add:
        new = b",".join(b"%b:%b" % member for member in missing.items())
        parts += [document[copied:end], b"" if empty or not new else b",", new]
        copied = end
    return b"".join([*parts, document[copied:]])


def _members(document: bytes, at: int) -> Iterator[tuple[bytes, int, int]]:
    """The members of the object at `at`: name with its quotes, start and end of the value."""
    at += 1
    while (name := _NAME.match(document, at)) is not None:
        at = _end_of_value(document, name.end())
        yield name[1], name.end(), at


def _end_of_value(document: bytes, at: int) -> int:
    if document[at] not in b"{[":
        scalar = _SCALAR.match(document, at)
        assert scalar is not None, "it is valid JSON"
        return scalar.end()
    depth = 0
    while True:
        bracket = _BRACKET.match(document, at)
        assert bracket is not None, "it is valid JSON"
        at = bracket.end()
        depth += 1 if bracket[1] in b"{[" else -1
        if not depth:
            return at
