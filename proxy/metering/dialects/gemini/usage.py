"""The usageMetadata of generateContent → `Usage`.

Invariants: tokens from the provider's tools (code, URLs, files, search) are in the total and billed as prompt; thoughts
are part of the completion. The total must be prompt + completion. The JSON omits zeros, so that a missing count is
None.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from proxy.metering.counts import count, usage_reader
from proxy.metering.unread import each, members, read_by
from proxy.metering.usage import Usage

_SOURCES = {
    "prompt_tokens": "promptTokenCount",
    "cached_tokens": "cachedContentTokenCount",
    "completion_tokens": "candidatesTokenCount",
    "reasoning_tokens": "thoughtsTokenCount",
    "total_tokens": "totalTokenCount",
}
_reported = usage_reader(**_SOURCES)
# Parts by modality, as a name or by its number. Videos and documents cost what text does; cached audio has a price of
# its own, which is not read yet.
_TEXT, _IMAGE, _AUDIO, _SEEN = "TEXT 1", "IMAGE 2", "AUDIO 4", "VIDEO 3 DOCUMENT 5"
_PARTS = " ".join((
    each("promptTokensDetails", f"{_TEXT} {_IMAGE} {_SEEN} {_AUDIO}"),
    each("promptTokenDetails", f"{_TEXT} {_IMAGE} {_SEEN} {_AUDIO}"),
    each("cacheTokensDetails", f"{_TEXT} {_IMAGE} {_SEEN}"),
    each("candidatesTokensDetails", f"{_TEXT} {_IMAGE} {_AUDIO}"),
    "toolUsePromptTokenCount toolUsePromptTokensDetails",
))  # fmt: skip

KNOWN = members(
    "candidates error modelVersion responseId createTime",
    each("usageMetadata", f"{read_by(_SOURCES)} {_PARTS} serviceTier trafficType"),
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
            prompt_tokens=_sum(usage.prompt_tokens, count(raw.get("toolUsePromptTokenCount"))),
            completion_tokens=_sum(usage.completion_tokens, usage.reasoning_tokens),
            audio_prompt_tokens=_part(raw.get("promptTokensDetails"), _AUDIO),
            audio_completion_tokens=_part(raw.get("candidatesTokensDetails"), _AUDIO),
            image_prompt_tokens=_part(raw.get("promptTokensDetails"), _IMAGE),
            image_completion_tokens=_part(raw.get("candidatesTokensDetails"), _IMAGE),
        )
    except ValueError:
        return None


def _part(modalities: object, modality: str) -> int | None:
    """The tokens of one modality, `NAME NUMBER`, in a list by modality. Raises ValueError."""
    for one in modalities if isinstance(modalities, list) else ():
        if isinstance(one, dict) and str(one.get("modality")) in modality.split():
            return count(one.get("tokenCount"))
    return None


def running(usage: Usage) -> Usage:
    """Running counts without those of the completion, which are not final."""
    audio = usage.audio_prompt_tokens
    return Usage(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, audio_prompt_tokens=audio)


# Vertex AI's traffic types → the words of the Gemini API. https://cloud.google.com/vertex-ai/generative-ai/docs
_TRAFFIC = {"on_demand": "standard", "on_demand_priority": "priority", "on_demand_flex": "flex"}


def tier_of(raw: dict[str, Any]) -> str | None:
    """The service tier that served: `serviceTier`, or Vertex AI's `trafficType`."""
    tier, traffic = raw.get("serviceTier"), raw.get("trafficType")
    if isinstance(tier, str) or not isinstance(traffic, str):
        return tier if isinstance(tier, str) else None
    return _TRAFFIC.get(traffic.lower(), traffic)


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
