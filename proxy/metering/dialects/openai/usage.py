"""The usage object of chat/completions → `Usage`.

Invariant: counts are those reported, never clamped and never added up.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.counts import with_audio
from proxy.metering.unknown_fields import each
from proxy.metering.usage import Usage
from proxy.metering.usage_reader import OPENAI_COUNTS, UsageReader

# xAI's searches in chat: in responses, sources are not billed.
_reported = UsageReader(**{**OPENAI_COUNTS, "searches": f"{OPENAI_COUNTS['searches']} | num_sources_used"})
# Parts of counts that are read, billed like the rest of them.
_PARTS = """
prompt_tokens_details.text_tokens prompt_tokens_details.video_tokens
completion_tokens_details.text_tokens completion_tokens_details.accepted_prediction_tokens
completion_tokens_details.rejected_prediction_tokens prompt_cache_miss_tokens cache_creation.ephemeral_5m_input_tokens
server_tool_use_details.tool_calls_requested server_tool_use_details.tool_calls_executed
"""
# Times and speeds: of Groq, Cerebras, mistral.rs, gpustack, llama.cpp.
_TIMES = """
queue_time prompt_time completion_time total_time total_time_sec total_prompt_time_sec total_completion_time_sec
avg_tok_per_sec avg_prompt_tok_per_sec avg_compl_tok_per_sec tokens_per_second prompt_tokens_per_second
time_to_first_token_ms time_per_output_token_ms draft_tokens draft_tokens_acceptance prefill_time decode_time_arr
"""
# Stated costs, in money: of OpenRouter, Avian, Vercel, Perplexity, xAI, Pydantic.
_STATED = "cost cost_details cost_in_usd_ticks market_cost pydantic_ai_gateway is_byok"
# Mistral's, of audio in the prompt.
_SECONDS = "prompt_audio_seconds"
_USAGE = " ".join((_reported.paths, _PARTS, _TIMES, _STATED, _SECONDS, "service_tier"))

_CHOICE = """
index delta message text finish_reason native_finish_reason stop_reason matched_stop logprobs error err_msg seed
content_filter_results token_ids prompt_token_ids prompt_logprobs
"""

KNOWN = f"""
id object model provider system_fingerprint service_tier obfuscation p request_id generationId created error
raw_status_code moderation time_info timings latency_checkpoint prompt_filter_results stream_options venice_parameters
x_groq.id x_groq.seed cost copilot_usage
{each("choices", _CHOICE)} {each("usage", _USAGE)} {each("x_groq.usage", _USAGE)}
"""
"""the members of a chunk or an answer that are read, or cost nothing"""


def usage_of(raw: dict[str, Any], flags: set[str]) -> Usage:
    """The counts in `raw`; flags invalid counts."""
    usage = _reported(raw, flags)
    return with_audio(usage, raw[_SECONDS], flags) if _SECONDS in raw else usage
