"""The counts of Bedrock → `Usage`.

Invariants: input excludes tokens read from the cache and written to it; the prompt is the sum of the three, and the
total includes all of them. Documented for Converse at
https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html; recorded answers show it for the headers of
InvokeModel, too.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.counts import with_total
from proxy.metering.dialects.openai import usage as openai
from proxy.metering.unknown_fields import each
from proxy.metering.usage import Usage
from proxy.metering.usage_reader import UsageReader

_CONVERSE = UsageReader(
    prompt_tokens=(
        "inputTokens + cacheReadInputTokens | cacheReadInputTokenCount"
        " + cacheWriteInputTokens | cacheWriteInputTokenCount"
    ),
    # Nova reports both.
    cached_tokens="cacheReadInputTokens | cacheReadInputTokenCount",
    cache_write_tokens="cacheWriteInputTokens | cacheWriteInputTokenCount",
    cache_write_1h_tokens="cacheDetails[ttl=1h].inputTokens",
    completion_tokens="outputTokens",
    total_tokens="totalTokens",
)
# The metrics of InvokeModel and its headers; Llama's counts; Titan's; what was counted here.
_FLAT = UsageReader(
    prompt_tokens=(
        "inputTokenCount | prompt_token_count | inputTextTokenCount + cacheReadInputTokenCount"
        " + cacheWriteInputTokenCount"
    ),
    cached_tokens="cacheReadInputTokenCount",
    cache_write_tokens="cacheWriteInputTokenCount",
    completion_tokens="outputTokenCount | generation_token_count | totalOutputTextTokenCount, tokenCount",
    images="images",
)
METRICS = "amazon-bedrock-invocationMetrics"
_LATENCIES = "invocationLatency firstByteLatency"
CONVERSE_USAGE = each("usage", f"{_CONVERSE.paths} cacheDetails.ttl=5m|1h cacheDetails.inputTokens")
METRICS_USAGE = each(METRICS, f"{_FLAT.paths} {_LATENCIES}")
FLAT_USAGE = f"{_FLAT.paths} {each('usage', f'{_FLAT.paths} {_LATENCIES}')}"


def converse_usage(raw: dict[str, Any], flags: set[str]) -> Usage:
    """The counts of Converse, or of Nova; flags invalid counts."""
    return _whole(_CONVERSE(raw, flags))


def flat_usage(raw: dict[str, Any], flags: set[str]) -> Usage:
    """The counts of a flat object; flags invalid counts."""
    return _whole(_FLAT(raw, flags))


def usage_of(raw: dict[str, Any], flags: set[str]) -> Usage:
    """The counts of a usage object of any family but Anthropic; flags invalid counts."""
    if "inputTokens" in raw or "outputTokens" in raw:
        return converse_usage(raw, flags)
    if "prompt_tokens" in raw or "completion_tokens" in raw:
        return openai.usage_of(raw, flags)
    return flat_usage(raw, flags)


def _whole(usage: Usage) -> Usage:
    return with_total(usage) if usage.total_tokens is None else usage
