"""The usage object of chat/completions → `Usage`.

Invariant: counts are those reported, never clamped and never added up, with one exception. Where the total is prompt +
completion + reasoning, the provider (xAI) counts reasoning beside the completion; it is then added to the completion.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from proxy.metering.counts import usage_reader
from proxy.metering.usage import Usage

_reported = usage_reader(
    prompt_tokens="prompt_tokens",
    # OpenAI; DeepSeek; Moonshot
    cached_tokens="prompt_tokens_details.cached_tokens | prompt_cache_hit_tokens | cached_tokens",
    completion_tokens="completion_tokens",
    reasoning_tokens="completion_tokens_details.reasoning_tokens | reasoning_tokens",
    total_tokens="total_tokens",
    # OpenRouter and Bedrock; gateways to Anthropic
    cache_write_tokens="prompt_tokens_details.cache_write_tokens | cache_creation_input_tokens",
    cache_write_1h_tokens="cache_creation.ephemeral_1h_input_tokens",
    audio_prompt_tokens="prompt_tokens_details.audio_tokens",
    audio_completion_tokens="completion_tokens_details.audio_tokens",
    # OpenRouter; Perplexity; xAI
    searches="server_tool_use_details.web_search_requests | num_search_queries | num_sources_used",
)


def usage_of(raw: dict[str, Any]) -> Usage | None:
    """The counts in `raw`; None if one of them is invalid."""
    usage = _reported(raw)
    if usage is None or not usage.reasoning_tokens:
        return usage
    prompt, completion, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
    if prompt is None or completion is None or total != prompt + completion + usage.reasoning_tokens:
        return usage
    return structs.replace(usage, completion_tokens=total - prompt)
