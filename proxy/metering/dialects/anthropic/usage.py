"""The usage object of Anthropic's messages → `Usage`.

Invariants: `input_tokens` excludes cached tokens; prompt is the sum of all three inputs. `iterations` are steps that
the top level already sums up, except compactions, which are billed like the rest and added here. A step of another
model (an advisor, a fallback) is billed at its own prices, and flagged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import structs

from proxy.metering.counts import UsageReader, with_total
from proxy.metering.unread import each, members
from proxy.metering.usage import Usage

_COUNTED = {
    "prompt_tokens": "input_tokens",
    "cached_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
    "completion_tokens": "output_tokens",
}
_LEFT_OUT = "compaction"

_step = UsageReader(**_COUNTED)
_top = UsageReader(
    **_COUNTED,
    reasoning_tokens="output_tokens_details.thinking_tokens",
    cache_write_1h_tokens="cache_creation.ephemeral_1h_input_tokens",
    searches="server_tool_use.web_search_requests",
)
# Parts of counts that are read; fetches of web pages are free. https://platform.claude.com/docs/en/about-claude/pricing
_NOT_BILLED = "cache_creation.ephemeral_5m_input_tokens server_tool_use.web_fetch_requests"
# Steps are summed up above; those of other models are flagged there.
_STEPS = "iterations.cache_creation iterations.type iterations.model " + each("iterations", _step.paths)
_WORDS = "service_tier speed inference_geo"
_KNOWN = "id type role model stop_reason stop_sequence content " + each(
    "usage", f"{_top.paths} {_NOT_BILLED} {_STEPS} {_WORDS}"
)

KNOWN = members("index context_management error", _KNOWN, each("message", _KNOWN))
"""the members of an event or an answer that are read, or cost nothing"""


def usage_of(raw: dict[str, Any]) -> Usage | None:
    """The counts in `raw`; None if one of them is invalid."""
    usage = _top(raw)
    for step in map(_step, _left_out(raw)):
        if usage is None or step is None:
            return None
        usage = structs.replace(
            usage,
            **{
                name: whole + (getattr(step, name) or 0)
                for name in _COUNTED
                if (whole := getattr(usage, name)) is not None
            },
        )
    if usage is None or usage.prompt_tokens is None:
        return usage
    prompt = usage.prompt_tokens + (usage.cached_tokens or 0) + (usage.cache_write_tokens or 0)
    return with_total(structs.replace(usage, prompt_tokens=prompt))


def oddities(raw: Mapping[str, Any]) -> Iterator[str]:
    """Flags counts of steps that exceed the top level and its compactions."""
    steps = _steps(raw)
    if steps and any(_sum(steps, name) > _sum([raw, *_left_out(raw)], name) for name in _COUNTED.values()):
        yield "iterations_exceed_usage"


def _left_out(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [step for step in _steps(raw) if step.get("type") == _LEFT_OUT]


def _steps(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    iterations = raw.get("iterations")
    return [step for step in iterations if isinstance(step, dict)] if isinstance(iterations, list) else []


def _sum(objects: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(value for one in objects if type(value := one.get(name)) is int)
