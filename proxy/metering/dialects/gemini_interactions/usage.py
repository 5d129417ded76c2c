"""The usage object of interactions → `Usage`.

Invariants: as in generateContent, tokens from the provider's tools are in the total and billed as prompt, and thoughts
are part of the completion. `raw_prompt_token` repeats both together with unbilled tokens.
"""

from __future__ import annotations

from proxy.metering.unknown_fields import each, members
from proxy.metering.usage_reader import UsageReader

_AUDIO, _IMAGE = "[modality=audio].tokens", "[modality=image].tokens"

usage_of = UsageReader(
    prompt_tokens="total_input_tokens + total_tool_use_tokens",
    cached_tokens="total_cached_tokens",
    completion_tokens="total_output_tokens + total_thought_tokens",
    reasoning_tokens="total_thought_tokens",
    total_tokens="total_tokens",
    audio_prompt_tokens=f"input_tokens_by_modality{_AUDIO}",
    audio_completion_tokens=f"output_tokens_by_modality{_AUDIO}",
    image_prompt_tokens=f"input_tokens_by_modality{_IMAGE}",
    image_completion_tokens=f"output_tokens_by_modality{_IMAGE}",
    searches="grounding_tool_count[type=google_search].count",
)
# Parts by modality. Videos and documents cost what text does; cached audio has a price of its own, which is not read.
_SEEN = "text image video document"
_PARTS = " ".join((
    each("input_tokens_by_modality", f"{_SEEN} audio"),
    each("output_tokens_by_modality", f"{_SEEN} audio"),
    each("cached_tokens_by_modality", _SEEN),
    "tool_use_tokens_by_modality initial_input_tokens raw_prompt_token",
    "grounding_tool_count.count grounding_tool_count.type=google_search",
))  # fmt: skip
_ANSWER = """
id model agent object status created updated role service_tier input steps outputs output_text output_image output_audio
output_video error errors tools generation_config agent_config response_format system_instruction continuation_token
previous_interaction_id environment environment_id labels safety_settings store background stream
"""
_KNOWN = f"{_ANSWER} {each('usage', f'{usage_of.paths} {_PARTS}')}"

KNOWN = members(
    "event_type event_id index step delta step_usage metadata interaction_id", _KNOWN, each("interaction", _KNOWN)
)
"""the members of an event or an answer that are read, or cost nothing"""
