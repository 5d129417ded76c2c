"""Finds generated text in members of an output that no dialect reads, so that it is billed.

Invariants: words about an answer (roles, ids, types, reasons), signatures and encrypted pieces are no text. Objects and
lists are no text either, unless their name indicates generated text. Text that is also in a member that is read is not
found again. Nothing raises; time is linear, and depth is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from proxy.metering.wire.json_reader import document_of
from proxy.metering.wire.outline import LongText
from proxy.metering.wire.parts import is_crowded

# Members that say something about an output, or are of a tool. Sources: the recorded answers of real providers, and
# the references of their APIs.
_LABELS = frozenset(
    {
        "caller", "channel", "citation", "citations", "container", "context", "data", "error", "format", "id", "index",
        "language", "metadata", "mode", "model", "name", "obfuscation", "object", "padding", "phase", "provider",
        "role", "source", "sources", "stage", "state", "status", "stop_sequence", "title", "type", "uri", "url",
    }
)  # fmt: skip
_LABEL_ENDS = (
    "_format", "_id", "_level", "_name", "_opaque", "_reason", "_role", "_status", "_tier", "_type", "_url",
    "fingerprint", "signature",
)  # fmt: skip
_LABEL_PARTS = ("citation", "encrypted", "filter", "logprob", "metadata", "moderation", "safety")
_GENERATED = re.compile(r"analysis|answer|content|plan|reason|summary|text|think|thought|transcript")
_REASONING = re.compile(r"analysis|reason|think|thought")
_MEDIA = re.compile(r"(audio|file|image|video)s?")
# Signatures and media: words of a language have blanks between them.
_BLOB = re.compile(r"[A-Za-z0-9+/=_:;,.?&%#~-]{64,}", re.ASCII)
# A word of a label, next to text that is read.
_WORD = re.compile(r"[a-z0-9_.-]{0,32}", re.ASCII)
# Thinking blocks are lists of objects with a list of objects with a text.
_DEPTH_MAX = 5


# Members around outputs, and of tool calls, in the events and answers of any dialect: there is no unread text in them.
_AROUND = """
args arguments billed_units bytes cache_creation candidates choices completed_at content_block content_index cost
created created_at createTime delta done event_type function inference_geo interaction is_byok item iterations message
modality modelVersion output output_index p part parts response responseId seed sequence_number server_tool_use step
timings token tokens tool_calls updated usage usageMetadata version x_groq
"""
# Numbers of a usage, times, and words, in the names of OpenAI, Anthropic and Google.
_NUMBER = re.compile(
    r"\w+(_tokens|_details|_count|_duration|_time|_cost|_requests|_by_modality|[tT]okenCount|TokensDetails)"
    r"|\w*(tokenCount|Id|Index|Message|Reason|Tier|Type)", re.ASCII,
)  # fmt: skip
# Unknown text is looked for in a text with at most so many marks (probabilities of 150 tokens have as many) and names,
# and in so many of its members and elements. For each text, what is read of its object is searched, in all so many
# characters.
_MARKS_MAX, _NAMES_MAX, _VISITS_MAX, _SEARCHED_CHARS_MAX = 16 << 10, 1024, 1024, 2 << 20
# As many kinds of events and answers, by their members, are known to have nothing: providers have some ten each.
_KINDS_MAX = 512
_NAMES = re.compile(rb'"([^"\\]{1,64})"[ \t]*:')


class FoundText(NamedTuple):
    """Generated text that the dialect does not read."""

    texts: list[str]
    reasonings: list[str]


NO_TEXT = FoundText([], [])


class Place(NamedTuple):
    """A place of output: one kind of object in an event or an answer."""

    paths: str
    """paths from the top, with dots, separated by blanks; lists are passed through; `*`: an element of a list"""
    known: str
    """members that are read, or are no text"""
    mixed: bool = False
    """the object has members about tools, too: only members count whose name indicates generated text"""


class Outputs:
    """The places of a dialect's output."""

    def __init__(self, *places: Place) -> None:
        """The first place is the most common one; its known members need no further check."""
        self._places = [
            (tuple(path.split(".")), frozenset(place.known.split()), place.mixed)
            for place in places
            for path in place.paths.split()
        ]
        self._familiar = self._places[0][1].union(_AROUND.split(), *(path for path, *_ in self._places))
        self._mixed = all(place.mixed for place in places)
        self._nothing: set[frozenset[bytes]] = set()

    def unknown_text(self, text: bytes) -> FoundText:
        """The generated text of an event or an answer that is in no known member. A picture or a sound is a NUL."""
        if len(text) > _MARKS_MAX and is_crowded(text, _MARKS_MAX):
            return NO_TEXT
        names = frozenset(_NAMES.findall(text))
        if names in self._nothing or len(names) > _NAMES_MAX:
            return NO_TEXT
        if not any(self._is_strange(name.decode("utf-8", "replace")) for name in names):
            if len(self._nothing) >= _KINDS_MAX:
                self._nothing.clear()
            self._nothing.add(names)
            return NO_TEXT
        document, found, limits = document_of(text), FoundText([], []), _Limits()
        for path, known, mixed in self._places:
            for output in _at(document, path, limits):
                _look(output, known, found, limits, generated_only=mixed)
        if isinstance(text, LongText):  # in place of signatures and media it has blanks
            return FoundText(
                [one for one in found.texts if one != " "], [one for one in found.reasonings if one != " "]
            )
        return found

    def _is_strange(self, name: str) -> bool:
        if name in self._familiar or _is_label(name) or _NUMBER.fullmatch(name):
            return False
        return not self._mixed or _GENERATED.search(name) is not None


class _Limits:
    """What may still be done in one text."""

    def __init__(self) -> None:
        self.visits, self.chars = _VISITS_MAX, _SEARCHED_CHARS_MAX

    def visit(self) -> bool:
        """Count an element of a list, or a member. False: it is one too many."""
        self.visits -= 1
        return self.visits >= 0

    def search(self, text: str) -> bool:
        """Count a search in `text`. False: it is one too many."""
        self.chars -= len(text)
        return self.chars >= 0


def _at(value: Any, path: tuple[str, ...], limits: _Limits) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for one in value:
            if not limits.visit():
                return
            yield from _at(one, path[1:] if path[:1] == ("*",) else path, limits)
    elif not isinstance(value, dict):
        return
    elif not path:
        yield value
    else:
        yield from _at(value.get(path[0]), path[1:], limits)


def _look(
    output: dict[str, Any], known: frozenset[str], found: FoundText, limits: _Limits, *, generated_only: bool
) -> None:
    strange = [(name, value) for name, value in output.items() if value and name not in known and not _is_label(name)]
    if not strange:
        return
    read = "\n".join(text for name, value in output.items() if name in known for text in _strings(value, 0, limits))
    for name, value in strange:
        into = found.texts if _REASONING.search(name) is None else found.reasonings
        if _MEDIA.fullmatch(name):
            if not generated_only:
                found.texts.extend("\0" for _ in (value if isinstance(value, list) else [value]))
        elif isinstance(value, str):
            if (not generated_only or _GENERATED.search(name)) and _is_text(value, read, limits):
                into.append(value)
        elif _GENERATED.search(name):
            into.extend(text for text in _strings(value, 0, limits) if _is_text(text, read, limits))


def _is_label(name: str) -> bool:
    return name in _LABELS or name.endswith(_LABEL_ENDS) or any(part in name for part in _LABEL_PARTS)


def _is_text(text: str, read: str, limits: _Limits) -> bool:
    """`read`: the text that is read of the same output."""
    if not limits.search(read):
        return False
    if _BLOB.fullmatch(text) or text in read:
        return False
    return not (read and _WORD.fullmatch(text))


def _strings(value: Any, depth: int, limits: _Limits) -> Iterator[str]:
    """The strings in a value that are no labels."""
    if isinstance(value, str):
        yield value
    elif depth > _DEPTH_MAX:
        return
    elif isinstance(value, list):
        for one in value:
            if not limits.visit():
                return
            yield from _strings(one, depth + 1, limits)
    elif isinstance(value, dict):
        for name, one in value.items():
            if not limits.visit():
                return
            if not _is_label(name):
                yield from _strings(one, depth + 1, limits)
