"""All supported dialects. Invariant: the list is closed; a request in any other dialect is rejected."""

from __future__ import annotations

from typing import Protocol

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_COUNT_TOKENS, ANTHROPIC_MESSAGES
from proxy.metering.dialects.azure.deployments import AZURE
from proxy.metering.dialects.bedrock.converse import (
    BEDROCK_CONVERSE,
    BEDROCK_CONVERSE_STREAM,
    BEDROCK_COUNT_TOKENS,
)
from proxy.metering.dialects.bedrock.invoke import BEDROCK_INVOKE, BEDROCK_INVOKE_STREAM
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.cohere.embed import COHERE_EMBED
from proxy.metering.dialects.gemini.embed import GEMINI_BATCH_EMBED, GEMINI_COUNT_TOKENS, GEMINI_EMBED
from proxy.metering.dialects.gemini.generate import GEMINI_GENERATE, GEMINI_STREAM
from proxy.metering.dialects.gemini_interactions.interactions import GEMINI_INTERACTIONS
from proxy.metering.dialects.mistral.completions import MISTRAL_AGENTS, MISTRAL_FIM
from proxy.metering.dialects.mistral.ocr import MISTRAL_OCR
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT, OLLAMA_GENERATE
from proxy.metering.dialects.ollama.embed import OLLAMA_EMBED, OLLAMA_EMBEDDINGS
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai.plain import OPENAI_EMBEDDINGS, OPENAI_MODERATIONS, OPENAI_RERANK
from proxy.metering.dialects.openai_media.images import OPENAI_IMAGE_EDITS, OPENAI_IMAGE_VARIATIONS, OPENAI_IMAGES
from proxy.metering.dialects.openai_media.speech import OPENAI_SPEECH
from proxy.metering.dialects.openai_media.transcriptions import OPENAI_TRANSCRIPTIONS, OPENAI_TRANSLATIONS
from proxy.metering.dialects.openai_realtime.session import OPENAI_REALTIME
from proxy.metering.dialects.openai_responses.responses import OPENAI_COMPACT, OPENAI_INPUT_TOKENS, OPENAI_RESPONSES
from proxy.metering.dialects.vertex.publishers import VERTEX

DIALECTS: tuple[Dialect, ...] = (
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    OPENAI_COMPACT,
    OPENAI_INPUT_TOKENS,
    OPENAI_COMPLETIONS,
    OPENAI_EMBEDDINGS,
    OPENAI_MODERATIONS,
    OPENAI_RERANK,
    OPENAI_IMAGES,
    OPENAI_IMAGE_EDITS,
    OPENAI_IMAGE_VARIATIONS,
    OPENAI_SPEECH,
    OPENAI_TRANSCRIPTIONS,
    OPENAI_TRANSLATIONS,
    OPENAI_REALTIME,
    ANTHROPIC_MESSAGES,
    ANTHROPIC_COUNT_TOKENS,
    *AZURE,
    MISTRAL_FIM,
    MISTRAL_AGENTS,
    MISTRAL_OCR,
    COHERE_CHAT,
    COHERE_EMBED,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    GEMINI_GENERATE,
    GEMINI_STREAM,
    GEMINI_COUNT_TOKENS,
    GEMINI_EMBED,
    GEMINI_BATCH_EMBED,
    GEMINI_INTERACTIONS,
    BEDROCK_INVOKE,
    BEDROCK_INVOKE_STREAM,
    BEDROCK_CONVERSE,
    BEDROCK_CONVERSE_STREAM,
    BEDROCK_COUNT_TOKENS,
    *VERTEX,
)

FAMILIES = tuple(dict.fromkeys(dialect.name.partition(".")[0] for dialect in DIALECTS))
"""names of the API families that have dialects"""

DIALECT_NAMES = (*FAMILIES, *(dialect.name for dialect in DIALECTS))
"""the values of a provider's `dialects`: a family, or one dialect"""


class Named(Protocol):
    """A dialect, or another API of a family."""

    @property
    def name(self) -> str: ...


def supports(names: tuple[str, ...], dialect: Named) -> bool:
    """Whether `names`, of families or dialects, include `dialect`."""
    return dialect.name in names or dialect.name.partition(".")[0] in names
