"""The usageMetadata of generateContent → `Usage`, by one rule.

Rule: prompt = `promptTokenCount` + `toolUsePromptTokenCount`, what the provider's own tools (code, URLs, files, search)
put before the model, which is in the total and billed as a prompt; cached = `cachedContentTokenCount`, part of the
prompt; completion = `candidatesTokenCount` + `thoughtsTokenCount`, of which reasoning = `thoughtsTokenCount`; total =
`totalTokenCount`, which must be prompt + completion; audio = what the details of both list as AUDIO. Numbers are taken
as reported, never clamped. A usage with one impossible count is not used at all. A zero is left out of the JSON and
cannot be told from what was never said: None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proxy.metering.dialects.openai.usage import count, violations
from proxy.metering.usage import Usage


def usage_of(raw: Mapping[str, Any]) -> Usage | None:
    """The counts in `raw`, None where it says nothing; None altogether if one of them cannot be a count."""
    try:
        thoughts = count(raw.get("thoughtsTokenCount"))
        return Usage(
            prompt_tokens=_sum(count(raw.get("promptTokenCount")), count(raw.get("toolUsePromptTokenCount"))),
            cached_tokens=count(raw.get("cachedContentTokenCount")),
            completion_tokens=_sum(count(raw.get("candidatesTokenCount")), thoughts),
            reasoning_tokens=thoughts,
            total_tokens=count(raw.get("totalTokenCount")),
            audio_prompt_tokens=_audio(raw.get("promptTokensDetails")),
            audio_completion_tokens=_audio(raw.get("candidatesTokensDetails")),
        )
    except ValueError:
        return None


def _audio(modalities: object) -> int | None:
    """Of tokens that are listed by modality, those of audio. Raises ValueError."""
    listed = [one for one in modalities if isinstance(one, dict)] if isinstance(modalities, list) else []
    return next((count(one.get("tokenCount")) for one in listed if one.get("modality") == "AUDIO"), None)


def running(usage: Usage) -> Usage:
    """What is left of counts that are not final: what was generated may be more by the end, the prompt hardly is."""
    heard = usage.audio_prompt_tokens
    return Usage(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, audio_prompt_tokens=heard)


def oddities(raw: Mapping[str, Any], usage: Usage) -> Iterator[str]:
    """The identities that `usage`, made of `raw`, breaks; and whether tools of the provider's are in its prompt."""
    yield from violations(usage)
    if raw.get("toolUsePromptTokenCount"):
        yield "tool_prompt"


def _sum(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
