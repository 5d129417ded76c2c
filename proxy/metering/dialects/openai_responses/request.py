"""Requests of OpenAI's responses: the facts for admission, and the document for the provider.

Invariants: only fields that admission needs are read. The document is forwarded unchanged except for the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from proxy.metering.request import InvalidField, RequestFacts, flag, integer, model_of, prompt_evidence, service_asked
from proxy.metering.usage import TOKENS_MAX, PromptEvidence

RESPONSE_CREATE = "response.create"
# Ids have under 100 characters.
ID_CHARS_MAX = 256
_STRUCTURES = ("tools", "text")
_ATTACHED = frozenset({"input_file", "input_audio"})
# Fields of an item that is no message: the input and the output of a tool.
_CALLED = ("arguments", "input", "output", "code")


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request. Raises InvalidField."""
    return RequestFacts(
        model=named or model_of(document),
        streamed=flag(document, "stream"),
        completion_tokens_max=integer(document, "max_output_tokens", at_most=TOKENS_MAX),
        prompt=prompt_of(document),
        served_as=service_asked(document),
        is_stored=document.get("store") is not False,
        in_background=flag(document, "background"),
        continues=continued(document),
    )


def compact_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request whose answer is not stored. Raises InvalidField."""
    return structs.replace(facts(document, named), is_stored=False)


def kind_of(document: Mapping[str, Any], *others: str) -> str:
    """The type of a client's message over a WebSocket, which is refused if it is RESPONSE_CREATE or one of `others` in
    another spelling. Raises InvalidField."""
    kind = document.get("type")
    if not isinstance(kind, str):
        raise InvalidField("type", "must be a string")
    plain = kind.strip().casefold()
    if plain != kind and plain in (RESPONSE_CREATE, *others):
        raise InvalidField("type", f"must be written '{plain}'")
    return kind


def continued(document: Mapping[str, Any]) -> str | None:
    """The id of the response that the request continues. Raises InvalidField."""
    response_id = document.get("previous_response_id")
    if response_id is None or response_id == "":
        return None
    if not isinstance(response_id, str):
        raise InvalidField("previous_response_id", "must be a string")
    if len(response_id) > ID_CHARS_MAX or not response_id.isprintable():
        raise InvalidField("previous_response_id", f"must be an id of at most {ID_CHARS_MAX} printable characters")
    return response_id


def _items(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of the input; a string is one item. An absent input means a stored conversation."""
    items = document.get("input")
    if items is None:
        return []
    if isinstance(items, str):
        return [{"content": items}]
    if not isinstance(items, list):
        raise InvalidField("input", "must be a string or an array")
    for at, item in enumerate(items):
        if not isinstance(item, dict):
            raise InvalidField(f"input[{at}]", "must be an object")
    return items


def prompt_of(document: Mapping[str, Any]) -> PromptEvidence:
    """The evidence of the prompt. Raises InvalidField."""
    texts: list[str] = []
    kinds: list[object] = []
    structures = [document[name] for name in _STRUCTURES if document.get(name)]
    items = _items(document)
    _read(document.get("instructions"), texts, kinds)
    for item in items:
        for name in ("content", "summary"):
            _read(item.get(name), texts, kinds)
        structures += [item[name] for name in _CALLED if item.get(name)]
    return prompt_evidence(
        texts,
        messages=len(items) + (1 if document.get("instructions") else 0),
        structures=structures,
        images=kinds.count("input_image"),
        attachments=sum(kind in _ATTACHED for kind in kinds),
    )


def _read(content: object, texts: list[str], kinds: list[object]) -> None:
    """Add the texts of `content` to `texts`, and the types of its parts to `kinds`."""
    if isinstance(content, str):
        texts.append(content)
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict):
                kinds.append(part.get("type"))
                if isinstance(text := part.get("text"), str):
                    texts.append(text)
