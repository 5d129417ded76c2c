"""The usage object of chat/completions → `Usage`, by one rule.

Rule: prompt = `prompt_tokens`; completion = `completion_tokens`; total = `total_tokens`; cached =
`prompt_tokens_details.cached_tokens`, else `prompt_cache_hit_tokens` (DeepSeek), else `cached_tokens` (Moonshot);
reasoning = `completion_tokens_details.reasoning_tokens`, else `reasoning_tokens`; cache write =
`prompt_tokens_details.cache_write_tokens` (OpenRouter, Bedrock), else `cache_creation_input_tokens` (gateways to
Anthropic), for an hour `cache_creation.ephemeral_1h_input_tokens`; audio = `audio_tokens` of either details; searches =
`server_tool_use_details.web_search_requests` (OpenRouter), else `num_search_queries` (Perplexity), else
`num_sources_used` (xAI). Numbers are taken as reported: never clamped, never altered, never added up, but for one case:
where the total is prompt + completion + reasoning, reasoning was counted beside the completion (xAI), and is added to
it. A usage with one impossible count is not used at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import structs

from proxy.metering.usage import TOKENS_MAX, UNITS_MAX, Usage

# Ten times the largest recorded one without its array of times; what is larger has no place in a ledger entry.
RAW_BYTES_MAX = 16 << 10
# One time for each token: summarised in `timings`, too long for a ledger entry.
_TIMES = "decode_time_arr"
_EMPTY: Mapping[str, Any] = {}


def usage_of(raw: Mapping[str, Any]) -> Usage | None:
    """The counts in `raw`, None where it says nothing; None altogether if one of them cannot be a count."""
    prompt_details, completion_details = (
        _object(raw, "prompt_tokens_details"),
        _object(raw, "completion_tokens_details"),
    )
    try:
        usage = Usage(
            prompt_tokens=count(raw.get("prompt_tokens")),
            cached_tokens=_first(
                prompt_details.get("cached_tokens"), raw.get("prompt_cache_hit_tokens"), raw.get("cached_tokens")
            ),
            completion_tokens=count(raw.get("completion_tokens")),
            reasoning_tokens=_first(completion_details.get("reasoning_tokens"), raw.get("reasoning_tokens")),
            total_tokens=count(raw.get("total_tokens")),
            cache_write_tokens=_first(prompt_details.get("cache_write_tokens"), raw.get("cache_creation_input_tokens")),
            cache_write_1h_tokens=count(_object(raw, "cache_creation").get("ephemeral_1h_input_tokens")),
            audio_prompt_tokens=count(prompt_details.get("audio_tokens")),
            audio_completion_tokens=count(completion_details.get("audio_tokens")),
            searches=_first(
                _object(raw, "server_tool_use_details").get("web_search_requests"),
                raw.get("num_search_queries"),
                raw.get("num_sources_used"),
                most=UNITS_MAX,
            ),
        )
    except ValueError:
        return None
    return _with_reasoning(usage) if usage.reasoning_tokens else usage


def _with_reasoning(usage: Usage) -> Usage:
    """Reasoning is part of the completion; what the total says tells whether it was counted so."""
    prompt, completion, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
    if prompt is None or completion is None or total != prompt + completion + (usage.reasoning_tokens or 0):
        return usage
    return structs.replace(usage, completion_tokens=total - prompt)


def _object(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else _EMPTY


def _first(*values: object, most: int = TOKENS_MAX) -> int | None:
    for value in values:
        if value is not None:
            return count(value, most)
    return None


def count(value: object, most: int = TOKENS_MAX) -> int | None:
    """An exact integer, or a float that is one (9.0 → 9). Raises ValueError for anything else but None."""
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("not a count")
    return value


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
    before, after = msgspec.structs.astuple(old), msgspec.structs.astuple(new)
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
