"""The usageMetadata of generateContent → `Usage`.

Invariants: tokens from the provider's tools (code, URLs, files, search) are in the total and billed as prompt; thoughts
are part of the completion. The total must be prompt + completion. The JSON omits zeros, so that a missing count is
None.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from proxy.metering.counts import count, usage_reader
from proxy.metering.usage import Usage

_reported = usage_reader(
    prompt_tokens="promptTokenCount",
    cached_tokens="cachedContentTokenCount",
    completion_tokens="candidatesTokenCount",
    reasoning_tokens="thoughtsTokenCount",
    total_tokens="totalTokenCount",
)


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
            audio_prompt_tokens=_audio(raw.get("promptTokensDetails")),
            audio_completion_tokens=_audio(raw.get("candidatesTokensDetails")),
        )
    except ValueError:
        return None


def _audio(modalities: object) -> int | None:
    """The audio tokens of a list by modality. Raises ValueError."""
    for one in modalities if isinstance(modalities, list) else ():
        if isinstance(one, dict) and one.get("modality") == "AUDIO":
            return count(one.get("tokenCount"))
    return None


def running(usage: Usage) -> Usage:
    """Running counts without those of the completion, which are not final."""
    audio = usage.audio_prompt_tokens
    return Usage(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, audio_prompt_tokens=audio)


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
