"""Reads, checks and merges the counts of usage objects.

Invariants: a count is an exact integer within bounds, never clamped. A usage with one invalid count is dropped. Of two
usages of one answer the later one applies, and no count falls below the earlier one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.usage import TOKENS_MAX, UNITS_MAX, Usage

# Ten times the largest recorded usage object without its array of times; a larger one is too big for a ledger entry.
RAW_BYTES_MAX = 16 << 10
# One time per token: too long for a ledger entry; `timings` summarises it.
_TIMES = "decode_time_arr"
# Their limit is UNITS_MAX, not TOKENS_MAX.
_UNITS = frozenset({"images", "searches", "file_searches", "pages", "annotated_pages"})


class UsageReader:
    """Reads a usage object: a count is None if not reported; the result is None if one count is invalid."""

    __slots__ = ("_places", "paths")

    def __init__(self, **sources: str) -> None:
        """Each field of `Usage` = the paths of its count, separated by `|`; the first one that is neither absent nor
        null applies. `a.b` is `b` in the object `a`."""
        self.paths = " ".join(sources.values()).replace("|", " ")
        """all of them, with blanks between"""
        self._places: list[tuple[str, str, str, int]] = []
        for field, alternatives in sources.items():
            assert field in Usage.__struct_fields__, field
            for place in alternatives.split("|"):
                holder, _, name = place.strip().rpartition(".")
                self._places.append((holder, name, field, UNITS_MAX if field in _UNITS else TOKENS_MAX))

    def __call__(self, raw: dict[str, Any]) -> Usage | None:
        counts: dict[str, int | None] = {}
        for holder, name, field, most in self._places:
            within = raw.get(holder) if holder else raw
            if type(within) is not dict or (value := within.get(name)) is None or field in counts:
                continue
            if type(value) is not int or not 0 <= value <= most:
                try:
                    value = count(value, most)
                except ValueError:
                    return None
            counts[field] = value
        return Usage(**counts)


def count(value: object, most: int = TOKENS_MAX) -> int | None:
    """An exact integer, also from a float such as 9.0; None stays None. Raises ValueError for anything else."""
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("not a count")
    return value


def with_total(usage: Usage) -> Usage:
    """`usage` with total = prompt + completion, for providers that report none."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    total = None if prompt is None or completion is None else prompt + completion
    return structs.replace(usage, total_tokens=total)


# Flag → (fields, the field that their sum must not exceed). Cached and audio tokens may overlap; tokens read from a
# cache are not written to it.
_PARTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "cached_exceeds_prompt": (("cached_tokens",), "prompt_tokens"),
    "cache_write_exceeds_prompt": (("cache_write_tokens",), "prompt_tokens"),
    "cache_exceeds_prompt": (("cached_tokens", "cache_write_tokens"), "prompt_tokens"),
    "cache_write_1h_exceeds_cache_write": (("cache_write_1h_tokens",), "cache_write_tokens"),
    "audio_exceeds_prompt": (("audio_prompt_tokens",), "prompt_tokens"),
    "reasoning_exceeds_completion": (("reasoning_tokens",), "completion_tokens"),
    "audio_exceeds_completion": (("audio_completion_tokens",), "completion_tokens"),
    "image_exceeds_prompt": (("image_prompt_tokens",), "prompt_tokens"),
    "cached_audio_exceeds_cached": (("cached_audio_tokens",), "cached_tokens"),
    "cached_audio_exceeds_audio": (("cached_audio_tokens",), "audio_prompt_tokens"),
    "cached_image_exceeds_cached": (("cached_image_tokens",), "cached_tokens"),
    "cached_image_exceeds_image": (("cached_image_tokens",), "image_prompt_tokens"),
    "image_exceeds_completion": (("image_completion_tokens",), "completion_tokens"),
}
_ALL_PARTS = attrgetter(*{part for parts, _ in _PARTS.values() for part in parts})


def violations(usage: Usage) -> Iterator[str]:
    """Flags of the identities that `usage` violates. Some providers always do: it is flagged, not corrected."""
    if any(_ALL_PARTS(usage)):  # most answers have none
        for flag, (parts, name) in _PARTS.items():
            whole, counts = getattr(usage, name), [getattr(usage, part) for part in parts]
            if whole is not None and None not in counts and sum(counts) > whole:
                yield flag
    prompt, completion, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
    if total is not None and prompt is not None and completion is not None and total != prompt + completion:
        yield "total_mismatch"


def later(old: Usage | None, new: Usage) -> tuple[Usage, bool]:
    """Merge two usages of one answer per field: the later count, never lower. Also returns whether a count fell."""
    if old is None:
        return new, False
    before, after = structs.astuple(old), structs.astuple(new)
    folded = [a if b is None else b if a is None else max(a, b) for a, b in zip(before, after, strict=True)]
    fell = any(a is not None and b is not None and b < a for a, b in zip(before, after, strict=True))
    return Usage(*folded), fell


def plain(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """`raw` without its array of times, as plain finite JSON; None if it is too large or not serialisable."""
    try:
        kept = {key: value for key, value in raw.items() if key != _TIMES}
        text = msgspec.json.encode(kept)
        if len(text) > RAW_BYTES_MAX:
            return None
        # `raw` was JSON: encoding only changes numbers too large for a float, to null.
        return msgspec.json.decode(text, type=dict[str, Any]) if b"null" in text else kept
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None


def timings(raw: Mapping[str, Any]) -> dict[str, float]:
    """SiliconStorm's times, in their original unit: `prefill_time`; count, mean and max of `decode_time_arr`."""
    summary: dict[str, float] = {}
    prefill: Any = raw.get("prefill_time")
    if _is_time(prefill):
        summary["prefill_time"] = prefill
    times = raw.get(_TIMES)
    if isinstance(times, list) and (good := [time for time in times if _is_time(time)]):
        summary |= {
            "decode_time_count": len(good),
            "decode_time_mean": sum(good) / len(good),
            "decode_time_max": max(good),
        }
    return summary


# A day in nanoseconds: an upper bound in every unit.
_TIME_MAX = 86_400 * 10**9


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value <= _TIME_MAX
