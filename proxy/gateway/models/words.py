"""The words of providers for the uses of a model. Both directions use these tables: reading a provider's list, and
writing the list for an SDK."""

from __future__ import annotations

from collections.abc import Mapping

Words = Mapping[str, str]
"""dialect → the family's word for it"""

# Google's word for streams is the same; `streamGenerateContent` is in no list of theirs.
GEMINI: Words = {"gemini.generate": "generateContent", "gemini.stream": "generateContent"}
COHERE: Words = {"cohere.chat": "chat", "openai.rerank": "rerank"}
MISTRAL: Words = {"openai.chat": "completion_chat", "mistral.fim": "completion_fim"}
OLLAMA: Words = {"ollama.chat": "completion", "ollama.generate": "completion"}
