"""The usage object of interactions → `Usage`.

Invariants: as in generateContent, tokens from the provider's tools are in the total and billed as prompt, and thoughts
are part of the completion. `raw_prompt_token` repeats both together with unbilled tokens.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from proxy.metering.counts import UsageReader, count
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import UNITS_MAX, Usage

_reported = UsageReader(
    prompt_tokens="total_input_tokens",
    cached_tokens="total_cached_tokens",
    completion_tokens="total_output_tokens",
    reasoning_tokens="total_thought_tokens",
    total_tokens="total_tokens",
)
# Parts by modality. Videos and documents cost what text does; cached audio has a price of its own, which is not read.
_SEEN = "text image video document"
_PARTS = " ".join((
    each("input_tokens_by_modality", f"{_SEEN} audio"),
    each("output_tokens_by_modality", f"{_SEEN} audio"),
    each("cached_tokens_by_modality", _SEEN),
    "total_tool_use_tokens tool_use_tokens_by_modality initial_input_tokens raw_prompt_token",
    "grounding_tool_count.count grounding_tool_count.type=google_search",
))  # fmt: skip
_ANSWER = """
id model agent object status created updated role service_tier input steps outputs output_text output_image output_audio
output_video error errors tools generation_config agent_config response_format system_instruction continuation_token
previous_interaction_id environment environment_id labels safety_settings store background stream
"""
_KNOWN = f"{_ANSWER} {each('usage', f'{_reported.paths} {_PARTS}')}"

KNOWN = members(
    "event_type event_id index step delta step_usage metadata interaction_id", _KNOWN, each("interaction", _KNOWN)
)
"""the members of an event or an answer that are read, or cost nothing"""


def usage_of(raw: dict[str, Any]) -> Usage | None:
    """The counts in `raw`; None if one of them is invalid."""
    usage = _reported(raw)
    if usage is None:
        return None
    try:
        return structs.replace(
            usage,
            prompt_tokens=_sum(usage.prompt_tokens, count(raw.get("total_tool_use_tokens"))),
            completion_tokens=_sum(usage.completion_tokens, usage.reasoning_tokens),
            audio_prompt_tokens=_part(raw.get("input_tokens_by_modality"), "audio"),
            audio_completion_tokens=_part(raw.get("output_tokens_by_modality"), "audio"),
            image_prompt_tokens=_part(raw.get("input_tokens_by_modality"), "image"),
            image_completion_tokens=_part(raw.get("output_tokens_by_modality"), "image"),
            searches=_searches(raw.get("grounding_tool_count")),
        )
    except ValueError:
        return None


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _part(parts: object, modality: str) -> int | None:
    same = (part for part in _objects(parts) if str(part.get("modality")).lower() == modality)
    return next((count(part.get("tokens")) for part in same), None)


def _searches(counts: object) -> int | None:
    searches = (entry for entry in _objects(counts) if entry.get("type") == "google_search")
    return next((count(entry.get("count"), UNITS_MAX) for entry in searches), None)


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
