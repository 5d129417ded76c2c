"""Recorded answers of the smaller routes, and the usage that each must be read as."""

from __future__ import annotations

import json
from typing import Any

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.bedrock.converse import BEDROCK_CONVERSE
from proxy.metering.dialects.bedrock.invoke import BEDROCK_INVOKE
from proxy.metering.dialects.cohere.embed import COHERE_EMBED
from proxy.metering.dialects.gemini.embed import GEMINI_BATCH_EMBED, GEMINI_COUNT_TOKENS, GEMINI_EMBED
from proxy.metering.dialects.gemini_interactions.interactions import GEMINI_INTERACTIONS
from proxy.metering.dialects.ollama.embed import OLLAMA_EMBED
from proxy.metering.dialects.openai_responses.responses import OPENAI_INPUT_TOKENS
from proxy.metering.dialects.vertex.publishers import VERTEX_PREDICT
from proxy.metering.usage import Usage
from tests.metering.corpus.corpus import records_named

# The name that the corpus has for each, and the end of its paths. Cohere's first version of embed has the same shapes.
FURTHER: tuple[tuple[Dialect, str, str], ...] = (
    (GEMINI_INTERACTIONS, "google.interactions", "interactions"),
    (GEMINI_EMBED, "google.embeddings", ":embedContent"),
    (GEMINI_BATCH_EMBED, "google.embeddings", ":batchEmbedContents"),
    (GEMINI_COUNT_TOKENS, "google.count_tokens", ":countTokens"),
    (COHERE_EMBED, "cohere.embed", "embed"),
    (OLLAMA_EMBED, "ollama.embeddings", "embed"),
    (OPENAI_INPUT_TOKENS, "openai.responses.get", "input_tokens"),
    (BEDROCK_CONVERSE, "bedrock.converse", "/converse"),
    (BEDROCK_INVOKE, "bedrock.invoke", "/invoke"),
    (VERTEX_PREDICT, "google.predict", ":predict"),
)
_COUNTING = (GEMINI_COUNT_TOKENS, OPENAI_INPUT_TOKENS)


def further_records(name: str, path: str) -> list[dict[str, Any]]:
    """The records of one of them."""
    return [record for record in records_named(name) if record["path"].partition("?")[0].endswith(path)]


def further_usage(dialect: Dialect, record: dict[str, Any]) -> Usage | None:
    """What the truth says: counting costs nothing, and the tokens of Google's tools and thoughts stand beside."""
    if dialect in _COUNTING:
        return Usage(0, None, 0, None, 0)
    if dialect is VERTEX_PREDICT and record["status"] == 200:
        told = [one["embeddings"]["statistics"] for one in json.loads(record["body"])["predictions"]]
        tokens = sum(one["token_count"] for one in told)
        return Usage(tokens, None, 0, None, tokens)
    if record["truth"] is None:
        return _of_head(record["response_headers"])
    raw, prompt, completion = (record["truth"][name] for name in ("usage_raw", "prompt_tokens", "completion_tokens"))
    if dialect is GEMINI_INTERACTIONS:
        return Usage(
            prompt + raw["total_tool_use_tokens"], raw["total_cached_tokens"], completion + raw["total_thought_tokens"],
            raw["total_thought_tokens"], raw["total_tokens"],
        )  # fmt: skip
    if dialect is BEDROCK_CONVERSE:
        read, written = raw.get("cacheReadInputTokens"), raw.get("cacheWriteInputTokens")
        return Usage(prompt + (read or 0) + (written or 0), read, completion, None, raw["totalTokens"], written)
    if dialect is BEDROCK_INVOKE:
        read, written = (record["truth"][name] for name in ("cached_tokens", "cache_creation_tokens"))
        return Usage(prompt, read, completion, None, prompt + completion, written)
    images = 0 if dialect is COHERE_EMBED and "image_tokens" in record["body"] else None
    return Usage(prompt, None, 0, None, prompt, image_prompt_tokens=images)


def counting_headers(record: dict[str, Any]) -> dict[str, str]:
    """Those of Bedrock, which counts in the head what a body does not."""
    return {name: value for name, value in record["response_headers"].items() if name.endswith("-token-count")}


def _of_head(headers: dict[str, str]) -> Usage | None:
    counts = [headers.get(f"x-amzn-bedrock-{kind}-token-count") for kind in ("input", "output")]
    if None in counts:
        return None
    prompt, completion = map(int, filter(None, counts))
    return Usage(prompt, None, completion, None, prompt + completion)
