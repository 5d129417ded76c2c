"""Finds reported numbers and words that this version does not read, so that nothing billable is missed.

Invariants: every number other than 0 in an object with a usage is known to the dialect, or its path is found; so is
every word in the usage itself. Only such numbers and words are kept, never other text. Nothing raises, and the result
is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from proxy.metering.wire.json_reader import document_of
from proxy.metering.wire.parts import is_crowded

# More than any answer is known to have; the rest is one path, `...`.
PATHS_MAX = 24
# The deepest member known, of a step of a usage, has a depth of 6.
_DEPTH_MAX = 8
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_WORD = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}", re.ASCII)
_OTHER, _MORE = "other", "..."
# Larger numbers, which no ledger takes, are named without their value.
_VALUE_MAX = 10.0**15
# Members of events that hold what an answer has at its top: a path is the same in both.
_HOLDERS = frozenset({"response", "message", "delta", "interaction"})
# Lists of an answer's parts, which have megabytes of output.
_LISTS = frozenset({"choices", "output", "candidates"})
# Of a text with more marks (probabilities of 800 tokens have as many) only the usage is looked into. A member with more
# is named as a whole, and an object with more members is skipped.
_TEXT_MARKS_MAX, _MEMBER_MARKS_MAX, _MEMBERS_MAX = 64 << 10, 32 << 10, 1024
# Names of usage objects. They are kept whole with the entry.
USAGE_OBJECTS = frozenset({"usage", "usageMetadata", "usage_info", "meta"})


@dataclass(frozen=True, eq=False)
class Members:
    """The known members of an object, or of the objects in a list, which are named by their `modality`, if any."""

    whole: frozenset[str]
    """members that are known with everything inside them"""
    inner: Mapping[str, Members | frozenset[str]]
    """members that are known in part: with their known members, or their known words"""

    @cached_property
    def only(self) -> type[msgspec.Struct]:
        """An object with no other members, and no other words."""
        kinds: dict[str, Any] = {name: _kind(known) for name, known in self.inner.items()}
        kinds |= dict.fromkeys(self.whole, msgspec.Raw)
        names = {f"f{number}": name for number, name in enumerate(kinds)}
        fields = [(field, kinds[name], None) for field, name in names.items()]
        return msgspec.defstruct("Only", fields, rename=names, forbid_unknown_fields=True, gc=False)

    @cached_property
    def read_only(self) -> Callable[[bytes], object]:
        """Reads an object with no other members, and no other words. Raises a MsgspecError for any other text."""
        return msgspec.json.Decoder(self.only).decode


def _kind(known: Members | frozenset[str]) -> Any:
    """The type of a member that is known in part, without other members and words."""
    if isinstance(known, frozenset):
        return Literal[tuple(known)] | None
    modalities = tuple(filter(str.isupper, known.whole))
    entry = msgspec.defstruct("Entry", [("modality", Literal[modalities])]) if modalities else known.only
    return known.only | list[entry] | None  # type: ignore[valid-type]


Value: TypeAlias = "int | float | str | None"


class UnknownFields(NamedTuple):
    """Unknown fields: sorted paths, and the values of those outside the usage object."""

    paths: tuple[str, ...]
    values: dict[str, Value]


NO_UNKNOWN_FIELDS = UnknownFields((), {})
_UNKNOWN = Members(frozenset(), {})
# In place of a value that no reader takes.
_BEYOND = object()


def members(*paths: str) -> Members:
    """Known members from paths: `a`, `a.b`, `a.b=word|word`; one string may have several, with blanks between."""
    whole: set[str] = set()
    paths_of: dict[str, list[str]] = {}
    inner: dict[str, Members | frozenset[str]] = {}
    for path in " ".join(paths).split():
        name, dot, rest = path.partition(".")
        if dot:
            paths_of.setdefault(name, []).append(rest)
        elif "=" in path:
            name, _, known = path.partition("=")
            inner[name] = frozenset(known.split("|"))
        else:
            whole.add(name)
    for name, rests in paths_of.items():
        inner[name] = members(*rests)
    return Members(frozenset(whole), inner)


def each(holder: str, paths: str) -> str:
    """These paths in an object that is the member `holder`, for `members`."""
    return " ".join(f"{holder}.{path}" for path in paths.split())


def unknown_fields(
    texts: Iterable[bytes], known: Members, items: Mapping[str, int] = MappingProxyType({})
) -> UnknownFields:
    """The unknown fields of these JSON objects, and the paths of `items`. A text that is no JSON object has none."""
    unknown: dict[str, Value] = {**items}
    for text in texts:
        if len(text) <= _TEXT_MARKS_MAX and _has_only(text, known):  # a longer text is read once
            continue
        is_long = len(text) > _TEXT_MARKS_MAX and is_crowded(text, _TEXT_MARKS_MAX)
        _look_into_members(_usages_in(text) if is_long else _members_in(text), known, unknown)
    if not unknown:
        return NO_UNKNOWN_FIELDS
    paths = sorted(unknown)
    if len(paths) > PATHS_MAX:
        paths = [*paths[: PATHS_MAX - 1], _MORE]
    values = {path: unknown[path] for path in paths if path != _MORE and not _in_usage(path.split("."))}
    return UnknownFields(tuple(paths), values)


_NULL = msgspec.Raw(b"null")


class _Usages(msgspec.Struct, gc=False):
    usage: msgspec.Raw = _NULL
    usageMetadata: msgspec.Raw = _NULL  # noqa: N815  its name
    usage_info: msgspec.Raw = _NULL
    meta: msgspec.Raw = _NULL
    response: _Usages | None = None
    interaction: _Usages | None = None


_usages_of = msgspec.json.Decoder(_Usages).decode
_members_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_entries_of = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_value_of = msgspec.json.Decoder().decode
_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


def _has_only(text: bytes, known: Members) -> bool:
    """Whether one strict read shows that a text has no unknown field, as most texts. False: it may have one."""
    try:
        known.read_only(text)
    except _ERRORS:
        return False
    return True


def _usages_in(text: bytes) -> dict[str, Any]:
    """The usage objects of an answer or its holder, not decoded."""
    try:
        top = _usages_of(text)
    except _ERRORS:
        return {}
    holders = [holder for holder in (top, top.response, top.interaction) if holder is not None]
    return {name: raw for one in holders for name in USAGE_OBJECTS if (raw := getattr(one, name)) is not _NULL}


def _look_into_members(inner: dict[str, Any], known: Members, unknown: dict[str, Value]) -> None:
    """Add the unknown fields of an event, an answer or its holder. Known members are not decoded: an answer has
    megabytes of them."""
    for name, raw in inner.items():
        if name in known.whole:
            continue
        what = known.inner.get(name)
        if name in _HOLDERS and isinstance(what, Members) and (held := _members_in(raw)):
            _look_into_members(held, what, unknown)
        elif name in _LISTS and isinstance(what, Members):
            entries = _decoded(raw, _entries_of)
            for entry in entries[:_MEMBERS_MAX] if isinstance(entries, list) else ():
                for member, within in entry.items() if type(entry) is dict else ():
                    if member not in what.whole:
                        _look_at_member(member, _decoded(within, _value_of), what, (name,), unknown)
        else:
            _look_at_member(name, _decoded(raw, _value_of), known, (), unknown)


def _members_in(holder: Any) -> dict[str, Any]:
    """The members of an object, not decoded if all of it is valid JSON. Empty: no object."""
    inner = _decoded(holder, _members_of)
    return inner if isinstance(inner, dict) and len(inner) <= _MEMBERS_MAX else {}


def _decoded(raw: Any, decode: Callable[[Any], Any]) -> Any:
    """The value of a JSON text by `decode`; else (NaN, for example) by a lenient reader; `_BEYOND` if neither can read
    it, or reading takes too long. Other values are decoded already."""
    if not isinstance(raw, bytes | msgspec.Raw):
        return raw
    if len(raw) > _MEMBER_MARKS_MAX and decode is _value_of and is_crowded(bytes(raw), _MEMBER_MARKS_MAX):
        return _BEYOND
    try:
        return decode(raw)
    except _ERRORS:
        document = document_of(bytes(raw))
        return _BEYOND if document is None else document


def _look_at_member(name: str, value: Any, known: Members, path: tuple[str, ...], unknown: dict[str, Value]) -> None:
    what = known.inner.get(name)
    if what is None:
        what, name = _UNKNOWN, name if _NAME.fullmatch(name) else _OTHER
    if value:
        _look_at(value, what, (*path, name), unknown)


def _look_at(value: Any, known: Members | frozenset[str], path: tuple[str, ...], unknown: dict[str, Value]) -> None:
    """Add a number other than 0, or a word that is unknown or in a usage; look into objects and lists."""
    kind = type(value)
    if len(unknown) > PATHS_MAX:
        return
    if kind is dict or kind is list:
        inner = known if isinstance(known, Members) else _UNKNOWN
        if len(path) > _DEPTH_MAX:  # too deep to look into: named as a whole
            unknown[".".join(path)] = None
        elif kind is dict:
            for name, one in value.items():
                if not one or name in inner.whole:
                    continue
                part = inner.inner.get(name)
                if not (type(one) is dict and type(part) is Members and one.keys() <= part.whole):  # as nearly all are
                    _look_at_member(name, one, inner, path, unknown)
        else:
            _look_into_list(value, inner, path, unknown)
    elif kind is str:
        word = value.lower()
        if word not in known if type(known) is frozenset else _in_usage(path):
            word = word if _WORD.fullmatch(word) else _OTHER
            unknown[f"{'.'.join(path)}={word}"] = word
    elif value is _BEYOND:
        unknown[".".join(path)] = None
    elif kind is not bool:
        unknown[".".join(path)] = value if -_VALUE_MAX < value < _VALUE_MAX else None


def _look_into_list(value: list[Any], known: Members, path: tuple[str, ...], unknown: dict[str, Value]) -> None:
    for one in value:
        modality = one.get("modality") if type(one) is dict else None
        if modality is None:
            if one:  # a list in a list counts as a level, so that the depth is bounded
                _look_at(one, known, (*path, _OTHER) if type(one) is list else path, unknown)
        elif (name := str(modality)) not in known.whole:
            named = {at: number for at, number in one.items() if at != "modality"}
            here = (*path, name if _WORD.fullmatch(name.lower()) else _OTHER)
            _look_at(named, known.inner.get(name, _UNKNOWN), here, unknown)


def _in_usage(path: Iterable[str]) -> bool:
    return not USAGE_OBJECTS.isdisjoint(path)
