"""The dialects of embedContent and batchEmbedContents, and of countTokens, which Google does not bill.

Invariants: no vector is decoded. The body may repeat the model of the path: it is rewritten there, too. Usage: prompt =
`promptTokenCount`, which only newer models report; else it is estimated. Nothing is generated. The answer of
countTokens is a result, not usage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE, paths_of
from proxy.metering.dialects.gemini.request import count_facts, embedded, embedded_batch, naming_model
from proxy.metering.dialects.gemini.usage import USAGE, usage_of
from proxy.metering.plain import CountTally, PlainAnswer, PlainTally, plain_dialect, prompt_in
from proxy.metering.unknown_fields import members
from proxy.metering.wire.json_reader import reader


class _GeminiEmbedding(PlainAnswer):
    usage: dict[str, Any] | None = msgspec.field(default=None, name="usageMetadata")


class EmbeddingTally(PlainTally):
    """The usage of one answer."""

    __slots__ = ()

    known = members("embedding embeddings error", USAGE)
    answer_of = staticmethod(reader(_GeminiEmbedding))
    usage_of = prompt_in(usage_of)


class GeminiCountTally(CountTally):
    """An answer of countTokens."""

    __slots__ = ()

    known = members(
        "error totalTokens totalBillableCharacters cachedContentTokenCount promptTokensDetails cacheTokensDetails"
    )


GEMINI_COUNT_TOKENS = replace(
    GEMINI_GENERATE,
    name="gemini.count_tokens",
    operation="count_tokens",
    facts=count_facts,
    tally=GeminiCountTally,
    free=True,
    paths=paths_of("countTokens"),
    upstream_document=naming_model,
)

GEMINI_EMBED = plain_dialect(
    GEMINI_GENERATE,
    name="gemini.embed",
    operation="embeddings",
    prompt=embedded,
    tally=EmbeddingTally,
    paths=paths_of("embedContent"),
    upstream_document=naming_model,
)

GEMINI_BATCH_EMBED = plain_dialect(
    GEMINI_EMBED,
    name="gemini.batch_embed",
    prompt=embedded_batch,
    tally=EmbeddingTally,
    paths=paths_of("batchEmbedContents"),
)
