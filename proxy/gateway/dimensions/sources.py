"""The fields in which clients name the dimensions of a request: one table, and its reader.

Invariants: only an invalid header of our own makes a request fail; in any other field, an invalid value is ignored. Of
two sources of one dimension, the first in the table counts. A request without any source costs a few calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from multidict import CIMultiDictProxy

from proxy.billing.dimensions import (
    END_USER,
    RUN,
    RUN_CAP,
    SESSION,
    TAG,
    TAGS_MAX,
    VALUE_CHARS_MAX,
    SentDimensions,
    tag,
    value_of,
    within_limits,
)
from proxy.billing.limits import BUDGET_NUSD_MAX
from proxy.billing.money import Nusd, nusd_from_usd, usd_text
from proxy.http import errors
from proxy.metering.wire.json_reader import reader

# A list or object with more members names no tags, but something else.
MEMBERS_MAX = 64
# Longer texts are not parsed; the longest known one has 200 characters.
TEXT_CHARS_MAX = 8_192
# Combinations of header names: of the clients in use there are dozens.
COMBINATIONS_MAX = 512
# Ids; Python refuses to write very long integers.
INTEGER_MAX = 10**18

NOTHING: SentDimensions = {}

Pairs = Iterable[tuple[str | None, object]]
"""dimension (None: it has no valid name) and value, unchecked"""


class Place(StrEnum):
    """The part of a request."""

    HEADER = "header"
    """a name that ends in `*` is the beginning of names, and the rest is the tag"""
    BODY = "body"
    """a path of members; in a message of a WebSocket, also below `response`"""


class Source(NamedTuple):
    """One place, in one preset."""

    preset: str
    place: Place
    name: str
    """name of the header, in lower case; or path of the member"""
    gives: str
    """the dimensions, for the reader and the documentation"""
    read: Callable[[Any, str], Pairs]
    """called with the value, and with `gives`, or the tag of a header's name"""
    families: tuple[str, ...] = ()
    """families of dialects with this member; empty: all"""


def as_value(value: object, gives: str) -> Pairs:
    """One value."""
    return ((gives, value),)


def as_members(value: object, _gives: str) -> Pairs:
    """The members of an object, as tags."""
    members = value if isinstance(value, Mapping) else {}
    return ((tag(name), one) for name, one in islice(members.items(), MEMBERS_MAX))


def as_list(value: object, _gives: str) -> Pairs:
    """Words: `name:value`, `name=value`, or a name alone, whose value is `true`. In a text, commas separate them."""
    words = value.split(",") if isinstance(value, str) else value
    for word in islice(words, MEMBERS_MAX) if isinstance(words, list) else ():
        if isinstance(word, str):
            name, *value = re.split("[:=]", word, maxsplit=1)
            yield tag(name), value[0] if value else "true"


class _ClaudeCodeUser(msgspec.Struct):
    device_id: str = ""
    account_uuid: str = ""
    session_id: str = ""


_claude_code_user = reader(_ClaudeCodeUser)
_CLAUDE_CODE_USER = re.compile(r"user_([0-9a-f]{1,128})_account_([0-9a-f-]{0,36})_session_([0-9a-f-]{1,36})", re.ASCII)


def as_claude_code_user(value: object, _gives: str) -> Pairs:
    """JSON with an account, a device and a session; of earlier versions, a text of these parts. Without an account, the
    end user is the device."""
    text = value if isinstance(value, str) and len(value) <= TEXT_CHARS_MAX else ""
    if (old := _CLAUDE_CODE_USER.fullmatch(text)) is not None:
        return (END_USER, old[2] or old[1]), (SESSION, old[3])
    found = _claude_code_user(_bytes(text)) if text.startswith("{") else None
    if found is None or not found.session_id:
        return ()
    return (END_USER, found.account_uuid or found.device_id), (SESSION, found.session_id)


def as_portkey_metadata(value: object, gives: str) -> Pairs:
    """JSON; `_user` is the end user, other members are tags."""
    try:
        members = msgspec.json.decode(_bytes(value)) if isinstance(value, str) and len(value) <= TEXT_CHARS_MAX else {}
    except (msgspec.MsgspecError, RecursionError):
        members = {}
    if isinstance(members, dict) and "_user" in members:
        yield END_USER, members.pop("_user")
    yield from as_members(members, gives)


BAGGAGE = {
    "user.id": END_USER, "enduser.id": END_USER, "session.id": SESSION, "gen_ai.conversation.id": SESSION,
    "tokenweir.end_user": END_USER, "tokenweir.session": SESSION, "tokenweir.run": RUN,
}  # fmt: skip
"""keys of W3C baggage → dimension; `tokenweir.tag.NAME` is a tag"""
_BAGGAGE_TAG = "tokenweir.tag."


def as_baggage(value: object, _gives: str) -> Pairs:
    """W3C baggage."""
    text = value if isinstance(value, str) and len(value) <= TEXT_CHARS_MAX else ""
    for member in text.split(","):
        key, _, one = member.partition(";")[0].partition("=")
        key = key.strip()
        if key in BAGGAGE:
            yield BAGGAGE[key], unquote(one)
        elif key.startswith(_BAGGAGE_TAG):
            yield tag(key.removeprefix(_BAGGAGE_TAG)), unquote(one)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


class OwnHeaders(NamedTuple):
    """The names of our own headers, in lower case."""

    end_user: str = "x-tokenweir-end-user"
    session: str = "x-tokenweir-session"
    run: str = "x-tokenweir-run"
    tags: str = "x-tokenweir-tags"


TAGS = "tags"
OWN = "tokenweir"
"""the preset of our own headers"""
_HEADER, _BODY = Place.HEADER, Place.BODY
_MEMBERS_ARE_TAGS = ("openai", "azure", "mistral")

SOURCES = (
    Source("claude_code", _HEADER, "x-claude-code-session-id", SESSION, as_value),
    Source("claude_code", _BODY, "metadata.user_id", f"{END_USER}, {SESSION}", as_claude_code_user),
    Source("codex", _HEADER, "session-id", SESSION, as_value),
    Source("codex", _HEADER, "session_id", SESSION, as_value),
    Source("codex", _BODY, "client_metadata.session_id", SESSION, as_value),
    Source("codex", _HEADER, "originator", f"{TAG}originator", as_value),
    Source("opencode", _HEADER, "x-opencode-session", SESSION, as_value),
    Source("opencode", _HEADER, "x-session-affinity", SESSION, as_value),
    Source("opencode", _HEADER, "x-opencode-project", f"{TAG}project", as_value),
    Source("amp", _HEADER, "x-amp-thread-id", SESSION, as_value),
    Source("litellm", _HEADER, "x-litellm-customer-id", END_USER, as_value),
    Source("litellm", _HEADER, "x-litellm-end-user-id", END_USER, as_value),
    Source("litellm", _BODY, "litellm_metadata.user", END_USER, as_value),
    Source("litellm", _HEADER, "x-litellm-session-id", SESSION, as_value),
    Source("litellm", _BODY, "litellm_session_id", SESSION, as_value),
    Source("litellm", _BODY, "metadata.session_id", SESSION, as_value),
    Source("litellm", _HEADER, "x-litellm-trace-id", RUN, as_value),
    Source("litellm", _BODY, "litellm_trace_id", RUN, as_value),
    Source("litellm", _BODY, "metadata.trace_id", RUN, as_value),
    Source("litellm", _HEADER, "x-litellm-tags", TAGS, as_list),
    Source("litellm", _BODY, "metadata.tags", TAGS, as_list),
    Source("helicone", _HEADER, "helicone-user-id", END_USER, as_value),
    Source("helicone", _HEADER, "helicone-session-id", SESSION, as_value),
    Source("helicone", _HEADER, "helicone-property-*", TAGS, as_value),
    Source("portkey", _HEADER, "x-portkey-metadata", f"{END_USER}, {TAGS}", as_portkey_metadata),
    Source("portkey", _HEADER, "x-portkey-trace-id", RUN, as_value),
    Source("anthropic", _BODY, "metadata.user_id", END_USER, as_value),
    Source("openai", _BODY, "safety_identifier", END_USER, as_value),
    Source("openai", _BODY, "user", END_USER, as_value),
    Source("openai", _BODY, "metadata", TAGS, as_members, _MEMBERS_ARE_TAGS),
    Source("gemini", _HEADER, "x-gemini-api-privileged-user-id", END_USER, as_value),
    Source("gemini", _BODY, "labels", TAGS, as_members),
    Source("bedrock", _BODY, "requestMetadata", TAGS, as_members),
    Source("baggage", _HEADER, "baggage", f"{END_USER}, {SESSION}, {RUN}, {TAGS}", as_baggage),
)
"""sources of other clients and gateways, by decreasing precedence"""


def own_sources(names: OwnHeaders) -> tuple[Source, ...]:
    """Our own headers, which precede all others."""

    def checked(name: str) -> Callable[[str, str], Pairs]:
        return lambda value, gives: ((gives, _valid(name, value)),)

    single = ((names.end_user, END_USER), (names.session, SESSION))
    return (
        *(Source(OWN, _HEADER, name, gives, checked(name)) for name, gives in single),
        Source(OWN, _HEADER, names.run, RUN, lambda value, _gives: _own_run(names.run, value)),
        Source(OWN, _HEADER, names.tags, TAGS, lambda value, _gives: _own_tags(names.tags, value)),
    )


_OWN_RUN = "must be a run, or a run and its cap in USD, as `name; max=2.00`"
_MISPLACED_CAP = re.compile(r"[,\s]\s*max\s*=", re.IGNORECASE)


def _own_run(header: str, text: str) -> Pairs:
    """A run, and its cap in USD: `42; max=2.00`. Raises ApiError."""
    run, separator, parameter = text.partition(";")
    if _MISPLACED_CAP.search(run):  # without this, the run would go on without its cap
        raise _invalid(header, _OWN_RUN)
    yield RUN, _valid(header, run)
    if not separator:
        return
    name, _, cap = parameter.strip().partition("=")
    try:
        cap_nusd = nusd_from_usd(cap.strip())
    except ValueError:
        cap_nusd = Nusd(-1)
    if name.strip() != "max" or not 0 <= cap_nusd <= BUDGET_NUSD_MAX:
        raise _invalid(header, _OWN_RUN)
    yield RUN_CAP, usd_text(cap_nusd)


def _own_tags(header: str, text: str) -> Pairs:
    """Raises ApiError."""
    words = [word for word in text.split(",") if word.strip()]
    if len(words) > TAGS_MAX:
        raise _invalid(header, f"must have at most {TAGS_MAX} tags")
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or tag(name) is None:
            message = "must be name=value, several separated by commas; a name has 1 to 32 of a-z 0-9 _ . -"
            raise _invalid(header, message)
        yield tag(name), _valid(header, value)


def _valid(header: str, text: str) -> str:
    """Raises ApiError."""
    if (value := value_of(text)) is None or ";" in value:  # parameters are reserved for later versions
        raise _invalid(header, f"must have 1 to {VALUE_CHARS_MAX} printable characters, without semicolons")
    return value


def _invalid(header: str, why: str) -> errors.ApiError:
    return errors.bad_request(f"{header}: {why}", param=header, code="invalid_header")


def _joined(source: Source, name: str, values: list[str]) -> str:
    """The values of a header. Raises ApiError if one of our own is there more than once: it would be another value."""
    if len(values) > 1 and source.preset == OWN and source.gives != TAGS:
        raise _invalid(name, "must be sent once")
    return ",".join(values)


class _Found(NamedTuple):
    """A source in a request."""

    order: int
    source: Source
    gives: str
    value: object


class SourceReader:
    """Reads the dimensions of requests from some presets."""

    def __init__(self, presets: Collection[str], own: OwnHeaders) -> None:
        every = [one for one in (*own_sources(own), *SOURCES) if one.preset in presets]
        numbered = list(enumerate(every))
        headers = {one.name: (order, one) for order, one in numbered if one.place is _HEADER}
        self._headers = {name: found for name, found in headers.items() if not name.endswith("*")}
        self._beginnings = [(name[:-1], *found) for name, found in headers.items() if name.endswith("*")]
        self._body: dict[str, list[tuple[int, Source, list[str]]]] = {}
        """first member of a path → the sources below it, with the rest of their paths"""
        for order, one in numbered:
            if one.place is _BODY:
                first, *rest = one.name.split(".")
                self._body.setdefault(first, []).append((order, one, rest))
        self._combinations: dict[tuple[str, ...], tuple[tuple[str, int, Source, str], ...]] = {}
        """names of all headers of a request → those that are sources"""

    def read(self, headers: CIMultiDictProxy[str], dialect: str, document: Mapping[str, Any]) -> SentDimensions:
        """The dimensions of a request. `dialect`: its name. Raises ApiError for an invalid header of our own."""
        names = tuple(headers)
        named = self._combinations.get(names)
        if named is None:
            named = self._named(names)
        members = self._body.keys() & document.keys()
        if not named and not members:
            return NOTHING
        found = [
            _Found(order, source, gives, _joined(source, name, headers.getall(name)))
            for name, order, source, gives in named
        ]
        if members:
            found += self._found_in(members, document, dialect.partition(".")[0])
        return within_limits(_values(sorted(found, key=lambda one: one.order)))

    def _named(self, names: tuple[str, ...]) -> tuple[tuple[str, int, Source, str], ...]:
        found = list[tuple[str, int, Source, str]]()
        for name in dict.fromkeys(map(str.lower, names)):
            if name in self._headers:
                found.append((name, *self._headers[name], self._headers[name][1].gives))
            for beginning, order, source in self._beginnings:
                if name.startswith(beginning) and (gives := tag(name.removeprefix(beginning))) is not None:
                    found.append((name, order, source, gives))
        if len(self._combinations) >= COMBINATIONS_MAX:
            self._combinations.clear()
        self._combinations[names] = tuple(found)
        return self._combinations[names]

    def _found_in(self, members: Iterable[str], document: Mapping[str, Any], family: str) -> Iterator[_Found]:
        """`members`: those of the document that are the beginnings of paths."""
        for first in members:
            for order, source, path in self._body[first]:
                if source.families and family not in source.families:
                    continue
                value: Any = document[first]
                for member in path:
                    value = value.get(member) if type(value) is dict else None  # an isinstance of an ABC is ten calls
                if value is not None:
                    yield _Found(order, source, source.gives, value)


def _values(found: Iterable[_Found]) -> Iterator[tuple[str, str]]:
    for one in found:
        for name, raw in one.source.read(one.value, one.gives):
            text = str(raw) if type(raw) is int and abs(raw) < INTEGER_MAX else raw
            if name is not None and isinstance(text, str) and (value := value_of(text)) is not None:
                yield name, value
