"""Every wire language that is spoken here. Law: a closed list; what is not on it is refused."""

from __future__ import annotations

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.anthropic_messages import ANTHROPIC_COUNT_TOKENS, ANTHROPIC_MESSAGES
from proxy.metering.dialects.azure_openai import AZURE
from proxy.metering.dialects.cohere_chat import COHERE_CHAT
from proxy.metering.dialects.gemini_generate import GEMINI_GENERATE, GEMINI_STREAM
from proxy.metering.dialects.mistral_fim import MISTRAL_FIM
from proxy.metering.dialects.ollama import OLLAMA_CHAT, OLLAMA_GENERATE
from proxy.metering.dialects.openai_chat import OPENAI_CHAT
from proxy.metering.dialects.openai_completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai_embeddings import OPENAI_EMBEDDINGS
from proxy.metering.dialects.openai_images import OPENAI_IMAGES
from proxy.metering.dialects.openai_moderations import OPENAI_MODERATIONS
from proxy.metering.dialects.openai_rerank import OPENAI_RERANK
from proxy.metering.dialects.openai_responses import OPENAI_RESPONSES
from proxy.metering.dialects.openai_speech import OPENAI_SPEECH
from proxy.metering.dialects.openai_transcriptions import OPENAI_TRANSCRIPTIONS

DIALECTS: tuple[Dialect, ...] = (
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    OPENAI_COMPLETIONS,
    OPENAI_EMBEDDINGS,
    OPENAI_MODERATIONS,
    OPENAI_RERANK,
    OPENAI_IMAGES,
    OPENAI_SPEECH,
    OPENAI_TRANSCRIPTIONS,
    ANTHROPIC_MESSAGES,
    ANTHROPIC_COUNT_TOKENS,
    *AZURE,
    MISTRAL_FIM,
    COHERE_CHAT,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    GEMINI_GENERATE,
    GEMINI_STREAM,
)

FAMILIES = tuple(dict.fromkeys(dialect.name.partition(".")[0] for dialect in DIALECTS))
"""What all dialects of one API are called together."""

WORDS = (*FAMILIES, *(dialect.name for dialect in DIALECTS))
"""What can be said of a provider: that it speaks a family, or one dialect."""


def speaks(words: tuple[str, ...], dialect: Dialect) -> bool:
    """Whether one of `words` means `dialect`."""
    return dialect.name in words or dialect.name.partition(".")[0] in words
