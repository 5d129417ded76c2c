"""The usageMetadata of generateContent → `Usage`.

Invariants: tokens from the provider's tools (code, URLs, files, search) are in the total and billed as prompt; thoughts
are part of the completion. The total must be prompt + completion. The JSON omits zeros, so that a missing count is
None.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from proxy.metering.unknown_fields import each
from proxy.metering.usage import ServedAs, Usage, service_of
from proxy.metering.usage_reader import UsageReader

# Modalities with a price of their own, as a name or by its number. Embeddings name the prompt's details otherwise.
_AUDIO_TOKENS, _IMAGE_TOKENS = "[modality=AUDIO/4].tokenCount", "[modality=IMAGE/2].tokenCount"

usage_of = UsageReader(
    prompt_tokens="promptTokenCount + toolUsePromptTokenCount",
    cached_tokens="cachedContentTokenCount",
    completion_tokens="candidatesTokenCount + thoughtsTokenCount",
    reasoning_tokens="thoughtsTokenCount",
    total_tokens="totalTokenCount",
    audio_prompt_tokens=f"promptTokensDetails{_AUDIO_TOKENS} | promptTokenDetails{_AUDIO_TOKENS}",
    audio_completion_tokens=f"candidatesTokensDetails{_AUDIO_TOKENS}",
    image_prompt_tokens=f"promptTokensDetails{_IMAGE_TOKENS} | promptTokenDetails{_IMAGE_TOKENS}",
    image_completion_tokens=f"candidatesTokensDetails{_IMAGE_TOKENS}",
    cached_audio_tokens=f"cacheTokensDetails{_AUDIO_TOKENS}",
    cached_image_tokens=f"cacheTokensDetails{_IMAGE_TOKENS}",
)
# Parts by modality, as a name or by its number. Videos and documents cost what text does.
_MADE = "TEXT 1 IMAGE 2 AUDIO 4"
_SEEN = f"{_MADE} VIDEO 3 DOCUMENT 5"
_PARTS = f"""
{each("promptTokensDetails", _SEEN)} {each("promptTokenDetails", _SEEN)} {each("cacheTokensDetails", _SEEN)}
{each("candidatesTokensDetails", _MADE)} toolUsePromptTokensDetails
"""

USAGE = each("usageMetadata", f"{usage_of.paths} {_PARTS} serviceTier trafficType")
"""known members of the usage"""


_OF_COMPLETION = ("completion_tokens", "reasoning_tokens", "audio_completion_tokens", "image_completion_tokens")


def running(usage: Usage) -> Usage:
    """Running counts without those of the completion, which is not final, and without the total."""
    return structs.replace(usage, total_tokens=None, **dict.fromkeys(_OF_COMPLETION))


# Vertex AI's traffic types → the words of the Gemini API. https://cloud.google.com/vertex-ai/generative-ai/docs
_TRAFFIC = {"on_demand": "standard", "on_demand_priority": "priority", "on_demand_flex": "flex"}


def served_as_in(raw: dict[str, Any]) -> ServedAs:
    """The service tier that served: `serviceTier`, or Vertex AI's `trafficType`."""
    tier, traffic = raw.get("serviceTier"), raw.get("trafficType")
    if tier is None and isinstance(traffic, str):
        tier = _TRAFFIC.get(traffic.lower(), traffic)
    return service_of(tier)
