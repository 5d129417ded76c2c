"""The usageMetadata of generateContent → `Usage`.

Invariants: tokens from the provider's tools (code, URLs, files, search) are in the total and billed as prompt; thoughts
are part of the completion. The total must be prompt + completion. The JSON omits zeros, so that a missing count is
None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from proxy.metering.counts import UsageReader, count
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import ServedAs, Usage, service_of

_reported = UsageReader(
    prompt_tokens="promptTokenCount",
    cached_tokens="cachedContentTokenCount",
    completion_tokens="candidatesTokenCount",
    reasoning_tokens="thoughtsTokenCount",
    total_tokens="totalTokenCount",
)
# Parts by modality, as a name or by its number. Videos and documents cost what text does.
_TEXT, _IMAGE, _AUDIO, _SEEN = "TEXT 1", "IMAGE 2", "AUDIO 4", "VIDEO 3 DOCUMENT 5"
_PARTS = " ".join((
    each("promptTokensDetails", f"{_TEXT} {_IMAGE} {_SEEN} {_AUDIO}"),
    each("promptTokenDetails", f"{_TEXT} {_IMAGE} {_SEEN} {_AUDIO}"),
    each("cacheTokensDetails", f"{_TEXT} {_IMAGE} {_SEEN} {_AUDIO}"),
    each("candidatesTokensDetails", f"{_TEXT} {_IMAGE} {_AUDIO}"),
    "toolUsePromptTokenCount toolUsePromptTokensDetails",
))  # fmt: skip

USAGE = each("usageMetadata", f"{_reported.paths} {_PARTS} serviceTier trafficType")
"""known members of the usage"""
KNOWN = members("candidates error modelVersion responseId createTime", USAGE)
"""the members of an event or an answer that are read, or cost nothing"""


def usage_of(raw: dict[str, Any]) -> Usage | None:
    """The counts in `raw`; None if one of them is invalid."""
    usage = _reported(raw)
    if usage is None:
        return None
    try:
        asked = raw.get("promptTokensDetails")
        prompt = _parts(raw.get("promptTokenDetails") if asked is None else asked)  # so in answers of embeddings
        generated, cached = _parts(raw.get("candidatesTokensDetails")), _parts(raw.get("cacheTokensDetails"))
        return structs.replace(
            usage,
            prompt_tokens=_sum(usage.prompt_tokens, count(raw.get("toolUsePromptTokenCount"))),
            completion_tokens=_sum(usage.completion_tokens, usage.reasoning_tokens),
            audio_prompt_tokens=prompt.get("AUDIO"),
            audio_completion_tokens=generated.get("AUDIO"),
            image_prompt_tokens=prompt.get("IMAGE"),
            image_completion_tokens=generated.get("IMAGE"),
            cached_audio_tokens=cached.get("AUDIO"),
            cached_image_tokens=cached.get("IMAGE"),
        )
    except ValueError:
        return None


def _parts(modalities: object) -> Mapping[str, int | None]:
    """The audio and image tokens of a list by modality, the first of each. Raises ValueError."""
    if modalities is None:
        return _NOTHING
    parts: dict[str, int | None] = {}
    for one in modalities if isinstance(modalities, list) else ():
        name = _PRICED.get(str(one.get("modality"))) if isinstance(one, dict) else None
        if name is not None and name not in parts:
            parts[name] = count(one.get("tokenCount"))
    return parts


_NOTHING: Mapping[str, int | None] = {}
# Modalities with a price of their own, as a name or by its number.
_PRICED = {"AUDIO": "AUDIO", "4": "AUDIO", "IMAGE": "IMAGE", "2": "IMAGE"}


def running(usage: Usage) -> Usage:
    """Running counts without the completion, which is not final."""
    audio = usage.audio_prompt_tokens
    return Usage(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, audio_prompt_tokens=audio)


# Vertex AI's traffic types → the words of the Gemini API. https://cloud.google.com/vertex-ai/generative-ai/docs
_TRAFFIC = {"on_demand": "standard", "on_demand_priority": "priority", "on_demand_flex": "flex"}


def served_as_in(raw: dict[str, Any]) -> ServedAs:
    """The service tier that served: `serviceTier`, or Vertex AI's `trafficType`."""
    tier, traffic = raw.get("serviceTier"), raw.get("trafficType")
    if tier is None and isinstance(traffic, str):
        tier = _TRAFFIC.get(traffic.lower(), traffic)
    return service_of(tier)


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
