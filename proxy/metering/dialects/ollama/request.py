"""Requests of Ollama's chat and generate: the facts for admission, and the document for the provider.

Invariants: only fields that admission needs are read. The document is forwarded unchanged except for the model's name.
A request without a prompt, which would only load or unload a model, is rejected: loading is up to the operator.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from proxy.metering.dialects.openai.request import prompt_of
from proxy.metering.request import InvalidField, RequestFacts, flag, messages_of, model_of, prompt_evidence
from proxy.metering.usage import TOKENS_MAX, PromptEvidence

# Further fields that the model reads; `context` of an earlier answer is a list of tokens.
_CHAT_AS_JSON = ("format",)
_GENERATE_AS_JSON = ("context", "format")
_TEXTS = ("system", "prompt", "suffix")


def chat_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request of chat. Raises InvalidField."""
    messages = messages_of(document)
    images = sum(_images(message) for message in messages)
    return _facts(document, named, structs.replace(prompt_of(messages, document, _CHAT_AS_JSON), images=images))


def generate_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request of generate. Raises InvalidField."""
    for name in _TEXTS:
        if document.get(name) is not None and not isinstance(document[name], str):
            raise InvalidField(name, "must be a string")
    if not document.get("prompt"):
        raise InvalidField("prompt", "must be a non-empty string")
    texts = [text for name in _TEXTS if (text := document.get(name))]
    prompt = prompt_evidence(
        texts,
        messages=2 if document.get("system") else 1,
        structures=[value for name in _GENERATE_AS_JSON if (value := document.get(name))],
        images=_images(document),
    )
    return _facts(document, named, prompt)


def _facts(document: dict[str, Any], named: str | None, prompt: PromptEvidence) -> RequestFacts:
    return RequestFacts(
        model=named or model_of(document),
        streamed=document.get("stream") is None or flag(document, "stream"),
        completion_tokens_max=_limit(document),
        prompt=prompt,
    )


def _limit(document: dict[str, Any]) -> int | None:
    """The limit of the answer; in Ollama, 0 and less mean no limit."""
    options = document.get("options")
    if options is not None and not isinstance(options, dict):
        raise InvalidField("options", "must be an object")
    limit = (options or {}).get("num_predict")
    if limit is None:
        return None
    if type(limit) is not int or limit > TOKENS_MAX:
        raise InvalidField("options.num_predict", f"must be an integer up to {TOKENS_MAX}")
    return limit if limit > 0 else None


def _images(holder: dict[str, Any]) -> int:
    images = holder.get("images")
    return len(images) if isinstance(images, list) else 0
