"""Checks and merges the counts of usage objects.

Invariants: of two usages of one answer the later one applies, and no count falls below the earlier one. In an ended
answer, no part exceeds its whole (`fitted`), so that the rest of the whole is never negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from proxy.metering.usage import Usage
from proxy.metering.usage_reader import count

# Ten times the largest recorded usage object without its array of times; a larger one is too big for a ledger entry.
RAW_BYTES_MAX = 16 << 10
# One time per token: too long for a ledger entry; `timings` summarises it.
_PREFILL, _TIMES = "prefill_time", "decode_time_arr"
# More tokens than any answer has.
_TIMES_MAX = 1 << 15


def with_total(usage: Usage) -> Usage:
    """`usage` with total = prompt + completion, for providers that report none."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    total = None if prompt is None or completion is None else prompt + completion
    return structs.replace(usage, total_tokens=total)


class _Parts(NamedTuple):
    """Parts of one whole, of which no token is in two."""

    whole: str
    of: Mapping[str, str]
    """field → name of the part in flags"""
    together: str
    """name of the whole in flags"""

    def exceeded(self, name: str) -> str:
        """The flag of a part, or of all together, that exceeds the whole."""
        return f"{name}_exceeds_{self.whole.removesuffix('_tokens')}"


_REASONING = _Parts("completion_tokens", {"reasoning_tokens": "reasoning"}, "reasoning")
# Cached and audio tokens may overlap; tokens read from a cache are not written to it.
_CACHE = _Parts("prompt_tokens", {"cached_tokens": "cached", "cache_write_tokens": "cache_write"}, "cache")
_WHOLES = (
    _REASONING,
    _Parts("prompt_tokens", {"audio_prompt_tokens": "audio", "image_prompt_tokens": "image"}, "media"),
    _CACHE,
    _Parts("cache_write_tokens", {"cache_write_1h_tokens": "cache_write_1h"}, "cache_write_1h"),
    _Parts("completion_tokens", {"audio_completion_tokens": "audio", "image_completion_tokens": "image"}, "media"),
    _Parts(
        "cached_tokens", {"cached_audio_tokens": "cached_audio", "cached_image_tokens": "cached_image"}, "cached_media"
    ),
    _Parts("audio_prompt_tokens", {"cached_audio_tokens": "cached_audio"}, "cached_audio"),
    _Parts("image_prompt_tokens", {"cached_image_tokens": "cached_image"}, "cached_image"),
)
_IN_TOTAL = ("prompt_tokens", "completion_tokens")
_PROMPT_AND_COMPLETION = attrgetter(*_IN_TOTAL)
_EVERY_PART = attrgetter(*{part for parts in _WHOLES for part in parts.of})


def with_audio(usage: Usage, seconds: object, flags: set[str]) -> Usage:
    """`usage` with the reported seconds of audio in the prompt. If audio tokens are not reported, they are total -
    prompt - completion (Mistral). Flags an invalid time."""
    finite = type(seconds) is int or (type(seconds) is float and math.isfinite(seconds))
    audio_ms = count(round(seconds * 1000) if finite else seconds, flags)  # type: ignore[operator]
    if audio_ms is None:
        return usage
    audio, rest = usage.audio_prompt_tokens, _rest(usage)
    audio = rest if audio is None and rest > 0 else audio
    return structs.replace(usage, audio_ms=audio_ms, audio_prompt_tokens=audio, timed_audio_tokens=audio)


def of_medium(usage: Usage, part: str) -> Usage:
    """`usage` of a model that generates only images, or only audio: its completion is this part unless reported."""
    if usage.completion_tokens is None or getattr(usage, part) is not None:
        return usage
    return structs.replace(usage, **{part: usage.completion_tokens})


def with_thoughts(usage: Usage) -> Usage:
    """`usage` with total - prompt - completion as reasoning tokens, if none are reported."""
    rest = _rest(usage)
    if rest <= 0 or usage.reasoning_tokens is not None:
        return usage
    return structs.replace(usage, reasoning_tokens=rest)


# A part that exceeds its whole by more than this factor and number is not included in it: other tokenizers, and prompts
# that a provider adds and does not count, differ by less. Caches have at least 1,024 tokens where they are not included
# in the prompt. https://platform.claude.com/docs/en/build-with-claude/prompt-caching
_BESIDE_FACTOR, _BESIDE_TOKENS = 1.5, 1_000
# Reasoning that exceeds the completion is not included in it if at least this share of the completion was seen, apart
# from some tokens without characters.
_SEEN_SHARE, _UNSEEN_TOKENS = 0.5, 2


def fitted(usage: Usage, seen_tokens: float) -> tuple[Usage, Sequence[str]]:
    """The counts with each part within its whole, and flags of parts that did not fit.

    A part that exceeds its whole is added to the whole if the total includes it, or if it is far larger; for reasoning,
    if the visible output fills the completion. Otherwise the part is dropped: the whole is billed as plain tokens.
    `seen_tokens`: tokens of the visible output without reasoning; a guess is enough.
    """
    flags: list[str] = []
    if any(_EVERY_PART(usage)):  # most answers have none
        for parts in _WHOLES:
            usage = _fit(usage, parts, seen_tokens, flags)
    if _rest(usage):
        flags.append("total_mismatch")
    return usage, flags


def _fit(usage: Usage, parts: _Parts, seen_tokens: float, flags: list[str]) -> Usage:
    whole = getattr(usage, parts.whole)
    counts = {field: count for field in parts.of if (count := getattr(usage, field))}
    if whole is None or not counts:
        return usage
    in_total, size = parts.whole in _IN_TOTAL, sum(counts.values())
    for beside in ([*counts], *([field] for field in counts)) if in_total else ():
        if _rest(usage) == sum(counts[field] for field in beside):
            return _add(usage, parts, beside, flags)
    if size <= whole:
        return usage
    if parts is _REASONING:
        if seen_tokens + _UNSEEN_TOKENS >= whole * _SEEN_SHARE:
            return _add(usage, parts, [*counts], flags)
        flags.append("reasoning_exceeds_completion")  # counted by another tokenizer: the completion is reasoning
        return usage
    if in_total and size > whole * _BESIDE_FACTOR + _BESIDE_TOKENS:
        return _add(usage, parts, [*counts], flags)
    wrong = [field for field in counts if counts[field] > whole] or [*counts]
    flags.append(parts.exceeded(parts.of[wrong[0]] if len(wrong) == 1 else parts.together))
    return structs.replace(usage, **dict.fromkeys(wrong))


def _add(usage: Usage, parts: _Parts, fields: Sequence[str], flags: list[str]) -> Usage:
    """`usage` with these parts added to their whole, and to a total that had the whole alone."""
    flags.extend(f"{parts.of[field]}_added" for field in fields)
    added = sum(getattr(usage, field) for field in fields)
    whole = structs.replace(usage, **{parts.whole: getattr(usage, parts.whole) + added})
    return with_total(whole) if _rest(usage) == 0 and None not in _PROMPT_AND_COMPLETION(usage) else whole


def _rest(usage: Usage) -> int:
    """total - prompt - completion; 0 if one of them is not reported."""
    prompt, completion, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
    return 0 if total is None or prompt is None or completion is None else total - prompt - completion


# Flag → (fields, the field that their sum must not exceed).
_IDENTITIES: Mapping[str, tuple[tuple[str, ...], str]] = {
    **{parts.exceeded(name): ((part,), parts.whole) for parts in _WHOLES for part, name in parts.of.items()},
    _CACHE.exceeded(_CACHE.together): (tuple(_CACHE.of), _CACHE.whole),
}


def violations(usage: Usage) -> Iterator[str]:
    """Flags of the identities that the counts of an entry violate: older versions flagged them, and corrected none."""
    if any(_EVERY_PART(usage)):  # most answers have none
        for flag, (parts, name) in _IDENTITIES.items():
            whole, counts = getattr(usage, name), [getattr(usage, part) for part in parts]
            if whole is not None and None not in counts and sum(counts) > whole:
                yield flag
    if _rest(usage):
        yield "total_mismatch"


_HOUR = Usage.__struct_fields__.index("cache_write_1h_tokens")


def later(old: Usage, new: Usage) -> tuple[Usage, bool]:
    """Merge two usages of one answer per field: the later count, never lower, except for the lifetime of cache writes.
    Also returns whether a count fell."""
    folded, fell = list(structs.astuple(new)), False
    for at, before in enumerate(structs.astuple(old)):
        if before is not None:
            after = folded[at]
            fell = fell or (after is not None and after < before)
            if after is None or after < before:
                folded[at] = before
    if new.cache_write_1h_tokens is not None:  # written for five minutes after all
        folded[_HOUR] = new.cache_write_1h_tokens
    return Usage(*folded), fell


def plain(raw: dict[str, Any]) -> dict[str, Any] | None:
    """`raw` without its array of times, as plain finite JSON; None if it is too large or not serialisable."""
    try:
        kept = {key: value for key, value in raw.items() if key != _TIMES} if _TIMES in raw else raw
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
    if _PREFILL not in raw and _TIMES not in raw:  # most
        return summary
    prefill: Any = raw.get(_PREFILL)
    if _is_time(prefill):
        summary[_PREFILL] = prefill
    times = raw.get(_TIMES)
    if isinstance(times, list) and len(times) <= _TIMES_MAX and (good := [time for time in times if _is_time(time)]):
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
