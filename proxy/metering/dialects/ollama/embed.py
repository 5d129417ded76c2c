"""The dialects of Ollama's embed and its older embeddings.

Invariants: no vector is decoded. Usage: prompt = `prompt_eval_count`; embeddings reports nothing, and is estimated.
Nothing is generated.
"""

from __future__ import annotations

from typing import Any

from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT
from proxy.metering.dialects.openai.inputs import Inputs, inputs_of
from proxy.metering.plain import PlainAnswer, PlainTally, plain_dialect, prompt_in
from proxy.metering.request import InvalidField
from proxy.metering.unknown_fields import members
from proxy.metering.usage import PromptEvidence
from proxy.metering.usage_reader import UsageReader
from proxy.metering.wire.json_reader import reader

_FIELDS = ("prompt_eval_count", "total_duration", "load_duration")


class _OllamaEmbedding(PlainAnswer):
    """An answer, whose own members are the usage and the times."""

    prompt_eval_count: Any = None
    total_duration: Any = None
    load_duration: Any = None

    @property
    def raw(self) -> dict[str, Any] | None:
        """The usage and the times."""
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None} or None


class OllamaEmbedTally(PlainTally):
    """The usage of one answer."""

    __slots__ = ()

    known = members("model embeddings embedding", *_FIELDS)
    answer_of = staticmethod(reader(_OllamaEmbedding))
    usage_of = prompt_in(UsageReader(prompt_tokens="prompt_eval_count"))


def _prompt(document: dict[str, Any]) -> PromptEvidence:
    prompt = document.get("prompt")
    if not isinstance(prompt, str):
        raise InvalidField("prompt", "must be a string")
    return Inputs(1, (prompt,)).evidence()


OLLAMA_EMBED = plain_dialect(
    OLLAMA_CHAT,
    name="ollama.embed",
    paths=("/api/embed",),
    operation="embeddings",
    prompt=lambda document: inputs_of(document, "input").evidence(),
    tally=OllamaEmbedTally,
)

OLLAMA_EMBEDDINGS = plain_dialect(
    OLLAMA_EMBED,
    name="ollama.embeddings",
    paths=("/api/embeddings",),
    prompt=_prompt,
    tally=OllamaEmbedTally,
)
