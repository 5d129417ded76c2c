"""Counts of a usage object: read by a table, checked, folded.

Invariants: a count is an exact integer within bounds, never clamped. A usage with one impossible count is not used at
all. Of two usages of one answer the later one counts, and no count of it is lower than before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
from msgspec import structs

from proxy.metering.usage import TOKENS_MAX, UNITS_MAX, Usage

# Ten times the largest recorded one without its array of times; what is larger has no place in a ledger entry.
RAW_BYTES_MAX = 16 << 10
# One time for each token: summarised in `timings`, too long for a ledger entry.
_TIMES = "decode_time_arr"
# Their limit is UNITS_MAX, not TOKENS_MAX.
_UNITS = frozenset({"images", "searches"})

UsageReader: TypeAlias = Callable[[dict[str, Any]], Usage | None]
"""Reads a usage object: None for each count that it does not report; None altogether if one of them is no count."""


def usage_reader(**sources: str) -> UsageReader:
    """A reader of usage objects by a table: the name of a field of `Usage` = where its count is reported.

    Sources of one field are separated by `|`; the first that is neither absent nor null is taken. In a source, `a.b` is
    `b` in the object `a`.
    """
    places = []
    for field, alternatives in sources.items():
        assert field in Usage.__struct_fields__, field
        for place in alternatives.split("|"):
            holder, _, name = place.strip().rpartition(".")
            places.append((holder, name, field, UNITS_MAX if field in _UNITS else TOKENS_MAX))

    def read(raw: dict[str, Any]) -> Usage | None:
        found: dict[str, int | None] = {}
        for holder, name, field, most in places:
            within = raw.get(holder) if holder else raw
            if type(within) is not dict or (value := within.get(name)) is None or field in found:
                continue
            if type(value) is not int or not 0 <= value <= most:
                try:
                    value = count(value, most)
                except ValueError:
                    return None
            found[field] = value
        return Usage(**found)

    return read


def count(value: object, most: int = TOKENS_MAX) -> int | None:
    """An exact integer, or a float that is one (9.0 → 9). Raises ValueError for anything else but None."""
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("not a count")
    return value


def with_total(usage: Usage) -> Usage:
    """The same with a total of prompt and completion, for providers that report none."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    total = None if prompt is None or completion is None else prompt + completion
    return structs.replace(usage, total_tokens=total)


# A part, and the whole that it may not be more than: word of the flag → (names of the parts, name of the whole). Cached
# and audio tokens may be the same ones; what was read from a cache was not written to it.
_PARTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "cached_exceeds_prompt": (("cached_tokens",), "prompt_tokens"),
    "cache_write_exceeds_prompt": (("cache_write_tokens",), "prompt_tokens"),
    "cache_exceeds_prompt": (("cached_tokens", "cache_write_tokens"), "prompt_tokens"),
    "cache_write_1h_exceeds_cache_write": (("cache_write_1h_tokens",), "cache_write_tokens"),
    "audio_exceeds_prompt": (("audio_prompt_tokens",), "prompt_tokens"),
    "reasoning_exceeds_completion": (("reasoning_tokens",), "completion_tokens"),
    "audio_exceeds_completion": (("audio_completion_tokens",), "completion_tokens"),
}
_ALL_PARTS = attrgetter(*{part for parts, _ in _PARTS.values() for part in parts})


def violations(usage: Usage) -> Iterator[str]:
    """The identities that `usage` breaks. Some providers break them always: it is said, not corrected."""
    if any(_ALL_PARTS(usage)):  # none of most answers
        for flag, (parts, name) in _PARTS.items():
            whole, counts = getattr(usage, name), [getattr(usage, part) for part in parts]
            if whole is not None and None not in counts and sum(counts) > whole:
                yield flag
    prompt, completion, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
    if total is not None and prompt is not None and completion is not None and total != prompt + completion:
        yield "total_mismatch"


def later(old: Usage | None, new: Usage) -> tuple[Usage, bool]:
    """Two usages of one answer, the second reported later: last, never lower, field by field; and whether one fell."""
    if old is None:
        return new, False
    before, after = structs.astuple(old), structs.astuple(new)
    folded = [a if b is None else b if a is None else max(a, b) for a, b in zip(before, after, strict=True)]
    fell = any(a is not None and b is not None and b < a for a, b in zip(before, after, strict=True))
    return Usage(*folded), fell


def plain(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """`raw` without its array of times, as plain finite JSON; None if it is too large or cannot be written as JSON."""
    try:
        kept = {key: value for key, value in raw.items() if key != _TIMES}
        text = msgspec.json.encode(kept)
        if len(text) > RAW_BYTES_MAX:
            return None
        # `raw` was JSON: all that encoding changes is a number too large for a float, which becomes null.
        return msgspec.json.decode(text, type=dict[str, Any]) if b"null" in text else kept
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None


def timings(raw: Mapping[str, Any]) -> dict[str, float]:
    """SiliconStorm's times, in the unit of the wire: `prefill_time`; count, mean and max of `decode_time_arr`."""
    found: dict[str, float] = {}
    prefill: Any = raw.get("prefill_time")
    if _is_time(prefill):
        found["prefill_time"] = prefill
    times = raw.get(_TIMES)
    if isinstance(times, list) and (good := [time for time in times if _is_time(time)]):
        found |= {
            "decode_time_count": len(good),
            "decode_time_mean": sum(good) / len(good),
            "decode_time_max": max(good),
        }
    return found


# A day in nanoseconds: no unit of the wire makes a token's time longer.
_TIME_MAX = 86_400 * 10**9


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value <= _TIME_MAX
