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
    texts: list[str] = []
    kinds: list[str] = []
    structures = [document[name] for name in _STRUCTURES if document.get(name)]
    system = document.get("system")
    for content in (system, *(message.get("content") for message in messages)):
        _read(content, texts, structures, kinds)
    return prompt_evidence(
        texts,
        messages=len(messages) + bool(system),
        structures=structures,
        images=kinds.count("image"),
        attachments=kinds.count("document"),
    )


def _read(content: object, texts: list[str], structures: list[Any], kinds: list[str]) -> None:
    """Add the texts of a text or a list of blocks, inputs of tools as JSON, and the types of images and documents."""
    if isinstance(content, str):
        texts.append(content)
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            continue
        kind, source = block.get("type"), block.get("source")
        if kind == "document" and isinstance(source, dict) and source.get("type") in ("text", "content"):
            _read(source.get("data" if source["type"] == "text" else "content"), texts, structures, kinds)
        elif kind in ("image", "document"):
            kinds.append(kind)
        elif isinstance(block.get("input"), dict):
            structures.append(block["input"])
        else:
            texts += [text for name in _TEXT_FIELDS if isinstance(text := block.get(name), str)]
            _read(block.get("content"), texts, structures, kinds)
