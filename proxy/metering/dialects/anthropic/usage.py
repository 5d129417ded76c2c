"""The usage object of Anthropic's messages → `Usage`, by one rule.

Rule: prompt = `input_tokens` + `cache_read_input_tokens` + `cache_creation_input_tokens` (the first alone is what was
in no cache); cached = `cache_read_input_tokens`; completion = `output_tokens`, thinking included; reasoning =
`output_tokens_details.thinking_tokens`; total = prompt + completion, for none is sent; written to caches =
`cache_creation_input_tokens`, of it for an hour `cache_creation.ephemeral_1h_input_tokens`; searches =
`server_tool_use.web_search_requests`. `iterations` are steps that the
top level adds up already, and are not added again; but for the steps that it leaves out: a compaction, billed like the
rest, is added to each count; a step of another model (an advisor, a fallback) is billed at prices of its own, and
flagged. A usage with one impossible count is not used at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import structs

from proxy.metering.dialects.openai.usage import count
from proxy.metering.usage import UNITS_MAX, Usage

_INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_COUNTED = (*_INPUTS, "output_tokens")
_LEFT_OUT = "compaction"


def usage_of(raw: Mapping[str, Any]) -> Usage | None:
    """The counts in `raw`, None where it says nothing; None altogether if one of them cannot be a count."""
    try:
        uncached, read, written, completion = (_counted(raw, name) for name in _COUNTED)
        usage = Usage(
            prompt_tokens=None if uncached is None else uncached + (read or 0) + (written or 0),
            cached_tokens=read,
            completion_tokens=completion,
            reasoning_tokens=count(_object(raw, "output_tokens_details").get("thinking_tokens")),
            cache_write_tokens=written,
            cache_write_1h_tokens=count(_object(raw, "cache_creation").get("ephemeral_1h_input_tokens")),
            searches=count(_object(raw, "server_tool_use").get("web_search_requests"), UNITS_MAX),
        )
    except ValueError:
        return None
    return with_total(usage)


def with_total(usage: Usage) -> Usage:
    """The same, its total the sum of both sides."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    total = None if prompt is None or completion is None else prompt + completion
    return structs.replace(usage, total_tokens=total)


def oddities(raw: Mapping[str, Any]) -> Iterator[str]:
    """What neither the top level nor its compactions hold."""
    steps = _steps(raw)
    if steps and any(_sum(steps, name) > _sum([raw, *_left_out(raw)], name) for name in _COUNTED):
        yield "iterations_exceed_usage"


def _object(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


def _counted(raw: Mapping[str, Any], name: str) -> int | None:
    """The top level's count, and those of the steps it leaves out. Raises ValueError."""
    first = count(raw.get(name))
    return None if first is None else first + sum(count(step.get(name)) or 0 for step in _left_out(raw))


def _left_out(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [step for step in _steps(raw) if step.get("type") == _LEFT_OUT]


def _steps(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    iterations = raw.get("iterations")
    return [step for step in iterations if isinstance(step, dict)] if isinstance(iterations, list) else []


def _sum(objects: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(value for one in objects if type(value := one.get(name)) is int)
