"""The counts of Bedrock → `Usage`.

Invariants: input excludes tokens read from the cache and written to it; the prompt is the sum of the three, and the
total includes all of them. Documented for Converse at
https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html; recorded answers show it for the headers of
InvokeModel, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from proxy.metering.counts import UsageReader, count, with_total
from proxy.metering.dialects.openai import usage as openai
from proxy.metering.unknown_fields import each
from proxy.metering.usage import Usage

_CONVERSE = UsageReader(
    prompt_tokens="inputTokens",
    # Nova reports both.
    cached_tokens="cacheReadInputTokens | cacheReadInputTokenCount",
    cache_write_tokens="cacheWriteInputTokens | cacheWriteInputTokenCount",
    completion_tokens="outputTokens",
    total_tokens="totalTokens",
)
# The metrics of InvokeModel and its headers; Llama's counts; Titan's; what was counted here.
_FLAT = UsageReader(
    prompt_tokens="inputTokenCount | prompt_token_count | inputTextTokenCount",
    cached_tokens="cacheReadInputTokenCount",
    cache_write_tokens="cacheWriteInputTokenCount",
    completion_tokens="outputTokenCount | generation_token_count | totalOutputTextTokenCount | tokenCount",
    images="images",
)
METRICS = "amazon-bedrock-invocationMetrics"
_LATENCIES = "invocationLatency firstByteLatency"
CONVERSE_USAGE = each("usage", f"{_CONVERSE.paths} cacheDetails.ttl=5m|1h cacheDetails.inputTokens")
METRICS_USAGE = each(METRICS, f"{_FLAT.paths} {_LATENCIES}")
FLAT_USAGE = f"{_FLAT.paths} {each('usage', f'{_FLAT.paths} {_LATENCIES}')}"


def converse_usage(raw: dict[str, Any]) -> Usage | None:
    """The counts of Converse, or of Nova; None if one is invalid."""
    usage = _CONVERSE(raw)
    if usage is None:
        return None
    try:
        hour = sum(_written(raw.get("cacheDetails"), "1h")) or None
    except ValueError:
        return None
    return _whole(structs.replace(usage, cache_write_1h_tokens=hour))


def flat_usage(raw: dict[str, Any]) -> Usage | None:
    """The counts of a flat object; None if one is invalid."""
    usage = _FLAT(raw)
    return usage and _whole(usage)


def usage_of(raw: dict[str, Any]) -> Usage | None:
    """The counts of a usage object of any family but Anthropic; None if one is invalid."""
    if "inputTokens" in raw or "outputTokens" in raw:
        return converse_usage(raw)
    if "prompt_tokens" in raw or "completion_tokens" in raw:
        return openai.usage_of(raw)
    return flat_usage(raw)


def _whole(usage: Usage) -> Usage:
    """`usage` with the prompt as the sum of all three inputs, and a total."""
    if usage.prompt_tokens is not None:
        prompt = usage.prompt_tokens + (usage.cached_tokens or 0) + (usage.cache_write_tokens or 0)
        usage = structs.replace(usage, prompt_tokens=prompt)
    return with_total(usage) if usage.total_tokens is None else usage


def _written(details: object, ttl: str) -> Iterator[int]:
    """Tokens written to the cache with this lifetime. Raises ValueError."""
    for one in details if isinstance(details, list) else ():
        if isinstance(one, dict) and one.get("ttl") == ttl:
            yield count(one.get("inputTokens")) or 0
