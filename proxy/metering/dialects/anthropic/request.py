"""Requests of Anthropic's messages: the facts for admission, and the document for the provider.

Invariants: only fields that admission needs are read. The document is forwarded unchanged except for the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.metering.request import RequestFacts, flag, integer, messages_of, model_of, prompt_evidence, service_asked
from proxy.metering.usage import TOKENS_MAX, PromptEvidence

# Fields of a block with text; fields of the request that the model reads as JSON.
_TEXT_FIELDS = ("text", "thinking")
_STRUCTURES = ("tools", "output_config", "output_format")


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    return RequestFacts(
        model=named or model_of(document),
        streamed=flag(document, "stream"),
        completion_tokens_max=integer(document, "max_tokens", at_least=0, at_most=TOKENS_MAX),
        prompt=_prompt(messages_of(document), document),
        served_as=service_asked(document),
    )


def _prompt(messages: list[dict[str, Any]], document: Mapping[str, Any]) -> PromptEvidence:
    prompt = _PromptCounter()
    prompt.read(document.get("system"))
    for message in messages:
        prompt.read(message.get("content"))
    prompt.structures += [document[name] for name in _STRUCTURES if document.get(name)]
    return prompt_evidence(
        prompt.texts,
        messages=len(messages) + (1 if document.get("system") else 0),
        structures=prompt.structures,
        images=prompt.images,
        attachments=prompt.attachments,
    )


class _PromptCounter:
    """Collects the contents of a prompt's blocks."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.structures: list[Any] = []
        self.images = 0
        self.attachments = 0

    def read(self, content: object) -> None:
        """Read a text, or a list of blocks."""
        if isinstance(content, str):
            self.texts.append(content)
        elif isinstance(content, list):
            for block in content:
                if isinstance(block, dict):
                    self._block(block)

    def _block(self, block: dict[str, Any]) -> None:
        kind = block.get("type")
        if kind == "image":
            self.images += 1
        elif kind == "document":
            self._document(block.get("source"))
        elif isinstance(block.get("input"), dict):
            self.structures.append(block["input"])
        else:
            self.texts += [text for name in _TEXT_FIELDS if isinstance(text := block.get(name), str)]
            self.read(block.get("content"))

    def _document(self, source: object) -> None:
        if isinstance(source, dict) and source.get("type") == "text":
            self.read(source.get("data"))
        elif isinstance(source, dict) and source.get("type") == "content":
            self.read(source.get("content"))
        else:
            self.attachments += 1
