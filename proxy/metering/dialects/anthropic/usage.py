"""The usage object of Anthropic's messages → `Usage`.

Invariants: `input_tokens` excludes cached tokens; prompt is the sum of all three inputs. A step of `iterations` is
billed at the prices of its own model. Steps of the model that served are one usage: the top level and its compactions,
or the sum of the steps where that is more; other steps are other models' usage.

Sources: the SDK's `BetaUsage`, by which the top level has no compactions; the page of the advisor tool, by which it
has no advisor, and no input of later steps (recorded answers have their sum); the pages of refusals and fallback, by
which a model that declines is billed for what it generated, and not if that was nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from proxy.metering.counts import with_total
from proxy.metering.tally import identifier
from proxy.metering.unknown_fields import each
from proxy.metering.usage import OTHER_WORD, ModelUsage, Usage
from proxy.metering.usage_reader import UsageReader, count

_COUNTED = {
    "prompt_tokens": "input_tokens + cache_read_input_tokens + cache_creation_input_tokens",
    "cached_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
    "completion_tokens": "output_tokens",
    "cache_write_1h_tokens": "cache_creation.ephemeral_1h_input_tokens",
}
_WRITTEN, _HOUR = "cache_creation_input_tokens", "ephemeral_1h_input_tokens"
_CACHED = ("cache_read_input_tokens", _WRITTEN)
_LEFT_OUT, _ADVISOR, _FALLBACK = "compaction", "advisor_message", "fallback_message"

# More than a request can name: an advisor, three fallbacks. Further ones are one of no name.
_MODELS_MAX = 8

_step = UsageReader(**_COUNTED)
_top = UsageReader(
    **_COUNTED,
    reasoning_tokens="output_tokens_details.thinking_tokens",
    searches="server_tool_use.web_search_requests",
)
# Parts of counts that are read; fetches of web pages are free. https://platform.claude.com/docs/en/about-claude/pricing
_NOT_BILLED = "cache_creation.ephemeral_5m_input_tokens server_tool_use.web_fetch_requests"
# More than any answer has; a longer list is not read.
_STEPS_MAX = 1024
_STEPS = "iterations.cache_creation.ephemeral_5m_input_tokens iterations.model " + each("iterations", _step.paths)
_STEP_TYPES = f"iterations.type=message|{_LEFT_OUT}|{_ADVISOR}|{_FALLBACK}"
_WORDS = "service_tier speed inference_geo"
_STOP = "stop_reason stop_sequence stop_details"
_MESSAGE = f"id type role model content request_id {_STOP} " + each(
    "usage", f"{_top.paths} {_NOT_BILLED} {_STEPS} {_STEP_TYPES} {_WORDS}"
)

KNOWN = f"index context_management error {_MESSAGE} {each('message', _MESSAGE)} {each('delta', _STOP)}"
"""the members of an event or an answer that are read, or cost nothing"""


class MessageUsage(NamedTuple):
    """The counts of a usage object."""

    usage: Usage
    """usage of the model that served"""
    served_model: str | None = None
    """name of the model that served, if another one was requested"""
    other_models: tuple[ModelUsage, ...] = ()
    longest_prompt_tokens: int | None = None
    """prompt tokens of the longest step; None: there is only one, or steps are not reported"""


def merged(earlier: dict[str, Any], raw: dict[str, Any], flags: set[str]) -> dict[str, Any]:
    """The usage objects of two events of one answer, as one.

    Where the cache is reported only after the input, the input contains it, since some hosts count the prompt before
    they read their cache. Such input becomes the rest, with a flag. Where a later event reports more tokens written to
    the cache without their lifetimes, all are for an hour if the earlier ones were.
    """
    both = earlier | {name: value for name, value in raw.items() if value is not None}
    if not earlier or not (raw.get(_CACHED[0]) or raw.get(_WRITTEN)):
        return both
    began, cached = _number(earlier, "input_tokens"), _number(raw, *_CACHED)
    if began and cached and not _number(earlier, *_CACHED) and raw.get("input_tokens") in (None, began):
        both["input_tokens"] = max(began - cached, 0)
        flags.add("cache_within_input")
    lifetimes, written = earlier.get("cache_creation"), _number(raw, _WRITTEN)
    hour = _number(lifetimes, _HOUR) if isinstance(lifetimes, dict) and raw.get("cache_creation") is None else 0
    if hour and written > _number(earlier, _WRITTEN):
        if hour == _number(earlier, _WRITTEN):
            both["cache_creation"] = {_HOUR: written}
        else:
            flags.add("usage_conflict")
    return both


def _number(raw: Mapping[str, Any], *names: str) -> int:
    """The sum of these counts, as far as they are valid."""
    return sum(number for name in names if (number := count(raw.get(name), set())) is not None)


def usage_of(raw: dict[str, Any], flags: set[str]) -> MessageUsage:
    """The counts in `raw`; flags invalid counts."""
    top = _top(raw, flags)
    iterations = raw.get("iterations")
    listed = isinstance(iterations, list) and len(iterations) <= _STEPS_MAX
    steps = [step for step in iterations or () if isinstance(step, dict)] if listed else []
    if not steps:
        return MessageUsage(with_total(top))
    read = [_step(step, flags) for step in steps]
    served = next((_model(step) for step in steps if step.get("type") == _FALLBACK), None)
    own: list[Usage] = []
    left_out = [top]
    others: dict[str, list[Usage]] = {}
    for step, usage in zip(steps, read, strict=True):
        model = _model(step)
        if model not in others and len(others) >= _MODELS_MAX:
            model = None if model is None else OTHER_WORD
        if step.get("type") == _ADVISOR:
            others.setdefault(model or OTHER_WORD, []).append(usage)
        elif served is not None and model is not None and model != served:
            if usage.completion_tokens:  # a model that declines at once is not billed
                others.setdefault(model, []).append(usage)
        else:
            own.append(usage)
            if step.get("type") == _LEFT_OUT:
                left_out.append(usage)
    prompts = [usage.prompt_tokens or 0 for usage in own]
    return MessageUsage(
        with_total(_joined([_joined(left_out, sum), *([_joined(own, sum)] if own else [])], max)),
        served,
        tuple(ModelUsage(model, with_total(_joined(usages, sum))) for model, usages in others.items()),
        max(prompts) if len(own) > 1 and all(prompts) else None,
    )


def _joined(usages: Sequence[Usage], by: Callable[[list[int]], int]) -> Usage:
    """One usage whose counts are joined by `by`, such as `sum`; the other fields are those of the first usage."""
    counts: dict[str, int] = {}
    for name in _COUNTED:
        if known := [count for one in usages if (count := getattr(one, name)) is not None]:
            counts[name] = by(known)
    return structs.replace(usages[0], **counts)


def _model(step: Mapping[str, Any]) -> str | None:
    name = step.get("model")
    return identifier(name) if isinstance(name, str) else None
