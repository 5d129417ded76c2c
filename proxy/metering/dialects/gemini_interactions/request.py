"""Requests of interactions: the facts for admission, and the document for the provider.

Invariants: only fields that admission needs are read. An agent replaces the model, and is routed by its name. The
document is forwarded unchanged except for that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.metering.request import InvalidField, RequestFacts, flag, integer, model_of, prompt_evidence, service_asked
from proxy.metering.usage import TOKENS_MAX, PromptEvidence

# Fields that the model reads as JSON: of the request, of a step.
_STRUCTURES = ("tools", "response_format")
_CALLED = ("arguments", "result")
_ATTACHED = frozenset({"audio", "video", "document", "file"})
_DEPTH_MAX = 8


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    if flag(document, "background"):
        # Its answer would be fetched by a later request, which is not metered.
        raise InvalidField("background", "is not supported: an answer is metered only in its own request")
    config = document.get("generation_config")
    if config is not None and not isinstance(config, dict):
        raise InvalidField("generation_config", "must be an object")
    limit = "generation_config.max_output_tokens"
    return RequestFacts(
        model=named or model_of(document, _model_field(document)),
        streamed=flag(document, "stream"),
        completion_tokens_max=integer(config or {}, "max_output_tokens", limit, at_most=TOKENS_MAX),
        prompt=_prompt(document),
        served_as=service_asked(document),
    )


def upstream_document(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """A shallow copy with the upstream name of the model or the agent."""
    return {**document, _model_field(document): upstream_model}


def _model_field(document: Mapping[str, Any]) -> str:
    if "agent" not in document:
        return "model"
    if "model" in document:
        raise InvalidField("agent", "must not be combined with model")
    return "agent"


def _prompt(document: Mapping[str, Any]) -> PromptEvidence:
    texts: list[str] = []
    kinds: list[object] = []
    structures = [document[name] for name in _STRUCTURES if document.get(name)]
    asked = document.get("input")
    if asked is not None and not isinstance(asked, str | list | dict):
        raise InvalidField("input", "must be a string, an object or an array")
    for part in (document.get("system_instruction"), asked):
        _read(part, texts, kinds, structures)
    return prompt_evidence(
        texts,
        messages=(len(asked) if isinstance(asked, list) else 1) + bool(document.get("system_instruction")),
        structures=structures,
        images=kinds.count("image"),
        attachments=sum(kind in _ATTACHED for kind in kinds),
    )


def _read(part: object, texts: list[str], kinds: list[object], structures: list[object], depth: int = 0) -> None:
    """Add the texts of steps and their contents, the types of other contents, and calls as JSON."""
    if isinstance(part, str):
        texts.append(part)
    elif isinstance(part, list) and depth < _DEPTH_MAX:
        for one in part:
            _read(one, texts, kinds, structures, depth + 1)
    elif isinstance(part, dict):
        kinds.append(part.get("type"))
        structures += [part[name] for name in _CALLED if part.get(name)]
        for name in ("text", "content", "summary"):
            if depth < _DEPTH_MAX:
                _read(part.get(name), texts, kinds, structures, depth + 1)
