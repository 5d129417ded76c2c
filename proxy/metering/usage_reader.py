"""Reads the counts of a usage object. A reader is defined by data: for each count, the members that state it.

Invariants: a count is an exact integer within bounds, never clamped. An invalid count counts as not reported, alone:
the other counts stand. Of two members that state one count, the larger one applies that the total allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from proxy.metering.usage import NO_USAGE, TOKENS_MAX, UNIT_COUNTS, UNITS_MAX, Usage

_Found: TypeAlias = "dict[int, int | None]"  # None: invalid
# Members that state the same count, such as `(3, 4)`; those that are added up; those that apply one after the other.
_Same: TypeAlias = "tuple[int, ...]"
_Added: TypeAlias = "tuple[_Same, ...]"

# What OpenAI calls the parts of a prompt and of a completion: in chat/completions, in responses, in Realtime.
_OF_PROMPT = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OF_COMPLETION = ("completion_tokens_details", "output_tokens_details", "output_token_details")


def _part(holders: Sequence[str], member: str, *others: str) -> str:
    return " | ".join((*(f"{holder}.{member}" for holder in holders), *others))


# OpenAI's names, and those that gateways and servers give the same counts. All dialects with OpenAI's shapes read all
# of them, because any server can stand behind a gateway.
OPENAI_COUNTS: Mapping[str, str] = {
    "prompt_tokens": "prompt_tokens | input_tokens | promptTokens | inputTokens",
    # Anthropic's name, of Databricks, Snowflake and LiteLLM; DeepSeek; Moonshot; Mistral
    "cached_tokens": _part(
        _OF_PROMPT, "cached_tokens",
        "cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens",
    ),
    "completion_tokens": "completion_tokens | output_tokens | completionTokens | outputTokens",
    "reasoning_tokens": _part(_OF_COMPLETION, "reasoning_tokens", "reasoning_tokens"),
    "total_tokens": "total_tokens | totalTokens",
    # OpenRouter and Bedrock; vLLM; gateways to Anthropic
    "cache_write_tokens": _part(
        _OF_PROMPT, "cache_write_tokens", "prompt_tokens_details.created_cache_tokens", "cache_creation_input_tokens"
    ),
    "cache_write_1h_tokens": "cache_creation.ephemeral_1h_input_tokens",
    "audio_prompt_tokens": _part(_OF_PROMPT, "audio_tokens"),
    "audio_completion_tokens": _part(_OF_COMPLETION, "audio_tokens"),
    "image_prompt_tokens": _part(_OF_PROMPT, "image_tokens"),
    "image_completion_tokens": _part(_OF_COMPLETION, "image_tokens"),
    "cached_audio_tokens": _part(_OF_PROMPT, "cached_tokens_details.audio_tokens"),
    "cached_image_tokens": _part(_OF_PROMPT, "cached_tokens_details.image_tokens"),
    # OpenRouter; Anthropic's name; Perplexity; xAI's in responses
    "searches": (
        "server_tool_use_details.web_search_requests | server_tool_use.web_search_requests | num_search_queries"
        " | server_side_tool_usage_details.web_search_calls"
    ),
    "file_searches": "server_side_tool_usage_details.file_search_calls",
}  # fmt: skip


# More objects than any list of counts has: a longer list is invalid.
_ENTRIES_MAX = 1024


class _ListMembers(NamedTuple):
    """The members that are read of the objects in a list."""

    key: str
    """name of the member that says which object it is"""
    of_entry: dict[str, dict[str, Any]]
    """word of the key → the members"""


class UsageReader:
    """Reads the counts of a usage object into a `Usage`.

    Each field of `Usage` = the paths of its count. `a.b` is `b` in the object `a`; `a[key=x/y].b` are `b` in those
    objects of the list `a` whose `key` is x or y, in any case, added up. Between paths, `|` is "the same count by
    another name", `+` adds counts up, and `,` is "if not reported".
    """

    def __init__(self, **counts: str) -> None:
        assert set(counts) <= set(Usage.__struct_fields__), counts
        slots: dict[str, int] = {}
        self._members: dict[str, Any] = {}
        self._ways: dict[str, tuple[_Added, ...]] = {}
        for field, sources in counts.items():
            most = UNITS_MAX if field in UNIT_COUNTS else TOKENS_MAX
            self._ways[field] = tuple(
                tuple(
                    tuple(self._slot(path.strip(), slots, most) for path in same.split("|")) for same in way.split("+")
                )
                for way in sources.split(",")
            )
        # Slot → the fields that it is for, and whether it states the count by itself.
        self._uses = [
            [
                (field, len(ways) == len(ways[0]) == 1)
                for field, ways in self._ways.items()
                if any(slot in same for added in ways for same in added)
            ]
            for slot in slots.values()
        ]
        self._totals = [slots[path.strip()] for path in counts.get("total_tokens", "").split("|") if path]
        self.paths = " ".join(path for path in slots if "[" not in path)
        """the paths outside lists, with blanks between"""

    def _slot(self, path: str, slots: dict[str, int], most: int) -> int:
        """The slot of the member at `path`, which a count reads."""
        if path in slots:
            return slots[path]
        slots[path] = slot = len(slots)
        *holders, name = path.split(".")
        members = self._members
        for holder in holders:
            holder, bracket, entry = holder.partition("[")
            if bracket:
                key, _, words = entry.rstrip("]").partition("=")
                list_ = members.setdefault(holder, _ListMembers(key, {}))
                first, *others = words.lower().split("/")
                members = list_.of_entry.setdefault(first, {})
                list_.of_entry.update(dict.fromkeys(others, members))
            else:
                members = members.setdefault(holder, {})
        members[name] = (slot, most)
        return slot

    def __call__(self, raw: Mapping[str, Any], flags: set[str]) -> Usage:
        """The counts in `raw`. Adds to `flags` that a count is invalid, or that two members contradict each other."""
        found: _Found = {}
        _find(self._members, raw, found, flags)
        if not found:
            return NO_USAGE
        counts: dict[str, int | None] = {}
        several: list[str] = []  # fields that need more than one member
        for slot, number in found.items():
            for field, alone in self._uses[slot]:
                if not alone or field in counts:
                    if field not in several:
                        several.append(field)
                elif number is not None:
                    counts[field] = number
        for field in several:
            counts[field] = self._count(field, found, flags)
        return Usage(**counts)

    def _count(self, field: str, found: _Found, flags: set[str]) -> int | None:
        """The first of the ways to state a count that is reported, and valid: a sum needs each of its counts."""
        for added in self._ways[field]:
            total, is_reported = 0, False
            for same in added:
                number: int | None = None
                is_stated = False
                for slot in same:
                    if slot in found:
                        is_stated = True
                        other = found[slot]
                        if number is not None and other is not None and other != number:
                            other = self._larger(number, other, found, flags)
                        number = number if other is None else other
                if is_stated and number is None:
                    break
                is_reported = is_reported or is_stated
                total += number or 0
            else:
                if is_reported:
                    return total
        return None

    def _larger(self, number: int, other: int, found: _Found, flags: set[str]) -> int:
        """The larger of two counts that the total allows."""
        flags.add("usage_conflict")
        total = max((found.get(slot) or 0 for slot in self._totals), default=0) or TOKENS_MAX
        larger, smaller = max(number, other), min(number, other)
        return larger if larger <= total or smaller > total else smaller


def _find(members: Mapping[str, Any], raw: Mapping[str, Any], found: _Found, flags: set[str]) -> None:
    """Find the counts of these members."""
    for name in raw:
        if name not in members or (value := raw[name]) is None:
            continue
        member = members[name]
        if type(member) is tuple:
            slot, most = member
            found[slot] = value if type(value) is int and 0 <= value <= most else count(value, flags, most)
        elif type(member) is dict:
            if type(value) is dict:
                _find(member, value, found, flags)
        elif type(value) is list:
            _find_in_list(member, value, found, flags)


def _find_in_list(members: _ListMembers, entries: Sequence[object], found: _Found, flags: set[str]) -> None:
    if len(entries) > _ENTRIES_MAX:
        flags.add("usage_invalid")
        return
    for entry in entries:
        of_entry = members.of_entry.get(str(entry.get(members.key)).lower()) if isinstance(entry, dict) else None
        if of_entry is not None:
            counts: _Found = {}
            _find(of_entry, entry, counts, flags)  # type: ignore[arg-type]  # an entry with a known key is an object
            for slot, number in counts.items():
                earlier = found.get(slot, 0)
                found[slot] = None if number is None or earlier is None else earlier + number


def count(value: object, flags: set[str], most: int = TOKENS_MAX) -> int | None:
    """An exact integer, also from a float such as 9.0; None stays None. Anything else is flagged, and None."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int and 0 <= value <= most:
        return value
    if value is not None:
        flags.add("usage_invalid")
    return None


openai_usage_of = UsageReader(**OPENAI_COUNTS)
"""reads the usage of every dialect with OpenAI's shapes"""
