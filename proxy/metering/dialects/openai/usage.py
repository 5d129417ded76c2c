"""The usage object of chat/completions → `Usage`.

Invariant: counts are those reported, never clamped and never added up.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.counts import UsageReader, with_audio
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import Usage

_reported = UsageReader(
    prompt_tokens="prompt_tokens",
    # OpenAI; DeepSeek; Moonshot; Mistral
    cached_tokens=("prompt_tokens_details.cached_tokens | prompt_cache_hit_tokens | cached_tokens | num_cached_tokens"),
    completion_tokens="completion_tokens",
    reasoning_tokens="completion_tokens_details.reasoning_tokens | reasoning_tokens",
    total_tokens="total_tokens",
    # OpenRouter and Bedrock; vLLM; gateways to Anthropic
    cache_write_tokens=(
        "prompt_tokens_details.cache_write_tokens | prompt_tokens_details.created_cache_tokens"
        " | cache_creation_input_tokens"
    ),
    cache_write_1h_tokens="cache_creation.ephemeral_1h_input_tokens",
    audio_prompt_tokens="prompt_tokens_details.audio_tokens",
    audio_completion_tokens="completion_tokens_details.audio_tokens",
    image_prompt_tokens="prompt_tokens_details.image_tokens",
    image_completion_tokens="completion_tokens_details.image_tokens",
    # OpenRouter; Perplexity; xAI
    searches="server_tool_use_details.web_search_requests | num_search_queries | num_sources_used",
)

# Parts of counts that are read, billed like the rest of them.
_PARTS = """
prompt_tokens_details.text_tokens prompt_tokens_details.video_tokens
completion_tokens_details.text_tokens completion_tokens_details.accepted_prediction_tokens
completion_tokens_details.rejected_prediction_tokens prompt_cache_miss_tokens cache_creation.ephemeral_5m_input_tokens
cache_read_input_tokens server_tool_use_details.tool_calls_requested server_tool_use_details.tool_calls_executed
"""
# Times and speeds: of Groq, Cerebras, mistral.rs, gpustack, llama.cpp.
_TIMES = """
queue_time prompt_time completion_time total_time total_time_sec total_prompt_time_sec total_completion_time_sec
avg_tok_per_sec avg_prompt_tok_per_sec avg_compl_tok_per_sec tokens_per_second prompt_tokens_per_second
time_to_first_token_ms time_per_output_token_ms draft_tokens draft_tokens_acceptance prefill_time decode_time_arr
"""
# Stated costs, in money: of OpenRouter, Avian, Vercel, Perplexity, xAI, Pydantic.
_STATED = "cost cost_details cost_in_usd_ticks market_cost pydantic_ai_gateway"
# Mistral's, of audio in the prompt.
_SECONDS = "prompt_audio_seconds"
_USAGE = " ".join((_reported.paths, _PARTS, _TIMES, _STATED, _SECONDS, "service_tier"))

KNOWN = members(
    "id object model system_fingerprint service_tier obfuscation choices created error raw_status_code moderation",
    "time_info timings latency_checkpoint prompt_filter_results stream_options venice_parameters x_groq.seed",
    "cost copilot_usage",
    each("usage", _USAGE),
    each("x_groq.usage", _USAGE),
)
"""the members of a chunk or an answer that are read, or cost nothing"""


def usage_of(raw: dict[str, Any]) -> Usage | None:
    """The counts in `raw`; None if one of them is invalid."""
    usage = _reported(raw)
    if usage is None or _SECONDS not in raw:
        return usage
    try:
        return with_audio(usage, raw[_SECONDS])
    except ValueError:
        return None
