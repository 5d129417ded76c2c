"""Requests of Bedrock: what admission needs, and the document for the provider.

Invariants: only what admission needs is read; the model is that of the path. Of several limits of an answer the highest
applies: it bounds all. The body of InvokeModel is the model's own: its family is known by its fields, not by the
model's name, which a profile can hide. What generates text is never taken for what does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from msgspec import structs

from proxy.metering.dialects.anthropic import request as anthropic
from proxy.metering.request import (
    InvalidField,
    RequestFacts,
    integer,
    messages_of,
    model_of,
    object_in,
    prompt_evidence,
)
from proxy.metering.usage import NO_USAGE, TOKENS_MAX, UNITS_MAX, PromptEvidence, Usage, service_of

# The most answers that a model gives at once: Cohere's five, AI21's sixteen; 128 is OpenAI's limit.
N_MAX = 128
# Names of an answer's limit, by the field with the prompt: a field that a model ignores limits nothing. With
# `messages`: Mistral's and those of copies of OpenAI, or Nova's, whose contents have no types; with `inputText`:
# Titan's; else Mistral's, Cohere's, Claude 2's, Llama's, and that of AI21's first models.
# https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html
_OF_MESSAGES = ("max_tokens", "max_completion_tokens")
_OF_NOVA = ("maxTokens", "max_new_tokens")
_OF_TITAN = ("maxTokenCount",)
_OF_PROMPTS = ("max_tokens", "max_tokens_to_sample", "max_gen_len", "maxTokens")
_OF_ANY = (*_OF_MESSAGES, *_OF_NOVA, *_OF_PROMPTS)
_SEVERAL = ("num_generations", "numResults", "n")
# Fields with a prompt, in the known families.
_PROMPTS = (
    "messages", "system", "prompt", "inputText", "message", "chat_history", "preamble", "query", "texts", "documents",
    "inputs", "input", "singleEmbeddingParams", "textToImageParams",
)  # fmt: skip
# Members with text; with JSON that the model reads; with images; with other media.
_TEXTS = frozenset((*_PROMPTS, "text", "content", "value", "thinking", "title", "snippet"))
_STRUCTURES = frozenset({"json", "toolUse", "tool_calls", "parameter_values"})
_IMAGES = frozenset({"image", "images", "inputImage", "image_url", "inputImages"})
_MEDIA = frozenset({"document", "video", "audio", "source", "file"})
# Fields of requests for images only, to Amazon's models and Stability's.
_OF_IMAGES = ("taskType", "imageGenerationConfig", "aspect_ratio")
# Fields of requests for text only.
_CHATS = ("messages", "message")
# Most documents of one query of a rerank model. https://aws.amazon.com/bedrock/pricing/
_DOCUMENTS_PER_QUERY = 100


def count_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request to count tokens. Raises InvalidField."""
    if not isinstance(document.get("input"), dict):
        raise InvalidField("input", "must be an object")
    return RequestFacts(
        model=named or model_of(document), streamed=False, completion_tokens_max=0, prompt=PromptEvidence()
    )


def converse_facts(document: dict[str, Any], named: str | None = None, *, streamed: bool = False) -> RequestFacts:
    """Read a request of Converse. Raises InvalidField."""
    messages = messages_of(document)
    limits = _limits(document, ("maxTokens",), "inferenceConfig")
    if limits and isinstance(document.get("additionalModelRequestFields"), dict):
        limits += _limits(document, _OF_ANY, "additionalModelRequestFields")
    guardrail = object_in(document, "guardrailConfig")
    if guardrail and guardrail.get("trace") not in ("enabled", "enabled_full"):
        raise InvalidField("guardrailConfig.trace", "must be enabled: the cost of a guardrail is read from its trace")
    tier, performance = (object_in(document, name) for name in ("serviceTier", "performanceConfig"))
    prompt = _Prompt()
    prompt.read(messages, "messages")
    prompt.read(document.get("system"), "system")
    prompt.structures.append(document.get("toolConfig"))
    return RequestFacts(
        model=named or model_of(document),
        streamed=streamed,
        completion_tokens_max=max(limits, default=None),
        prompt=prompt.evidence(len(messages)),
        served_as=service_of(tier.get("type"), performance.get("latency")),
    )


def invoke_facts(document: dict[str, Any], named: str | None = None, *, streamed: bool = False) -> RequestFacts:
    """Read a request of InvokeModel. Raises InvalidField."""
    if "anthropic_version" in document and "messages" in document:
        return structs.replace(anthropic.facts(document, named), streamed=streamed)
    n = max([count for name in _SEVERAL if (count := integer(document, name, at_most=N_MAX))], default=1)
    limits = _invoke_limits(document)
    embeds = _embeds(document, named or "")
    asked = NO_USAGE if embeds else _asked(document)
    if embeds or asked is not NO_USAGE:
        limits, n = [0], 1
    return RequestFacts(
        model=named or model_of(document),
        streamed=streamed,
        completion_tokens_max=n * max(limits) if limits else None,
        n=n,
        prompt=_prompt(document),
        asked=asked,
    )


def _limits(document: Mapping[str, Any], names: Iterable[str], within: str = "") -> list[int]:
    """The limits with these names, in the document or in an object of it."""
    holder, before = (object_in(document, within), f"{within}.") if within else (document, "")
    limits = (integer(holder, name, f"{before}{name}", at_most=TOKENS_MAX) for name in names)
    return [limit for limit in limits if limit is not None]


def _invoke_limits(document: Mapping[str, Any]) -> list[int]:
    if (messages := document.get("messages")) is not None:
        return _limits(document, _OF_NOVA, "inferenceConfig") if _is_nova(messages) else _limits(document, _OF_MESSAGES)
    if "inputText" in document:
        return _limits(document, _OF_TITAN, "textGenerationConfig")
    return _limits(document, _OF_PROMPTS)


def _is_nova(messages: object) -> bool:
    """Whether the messages are Nova's: each content is an array of objects without a `type`."""
    listed = messages if isinstance(messages, list) else []
    contents = [one.get("content") if isinstance(one, dict) else None for one in listed]
    return bool(contents) and all(
        isinstance(content, list) and all(isinstance(block, dict) and "type" not in block for block in content)
        for content in contents
    )


def _embeds(document: Mapping[str, Any], model: str) -> bool:
    """Whether the model only makes vectors, by the request or by the model's name."""
    says_so = "input_type" in document or "singleEmbeddingParams" in document
    return (says_so and not any(name in document for name in (*_CHATS, "prompt"))) or "embed" in model


def _asked(document: Mapping[str, Any]) -> Usage:
    """Usage that follows from the request and is not counted in tokens: images, and queries of a rerank model."""
    if any(name in document for name in _CHATS):
        return NO_USAGE
    if any(name in document for name in _OF_IMAGES):
        config = object_in(document, "imageGenerationConfig")
        count = integer(config, "numberOfImages", "imageGenerationConfig.numberOfImages", at_most=UNITS_MAX)
        return Usage(images=count or 1)
    documents = document.get("documents")
    if "query" in document and isinstance(documents, list):
        return Usage(searches=max(1, ceil(len(documents) / _DOCUMENTS_PER_QUERY)))
    return NO_USAGE


def _prompt(document: Mapping[str, Any]) -> PromptEvidence:
    prompt = _Prompt()
    messages = 0
    for name in _PROMPTS:
        if (value := document.get(name)) is not None:
            prompt.read(value, name)
            messages += len(value) if isinstance(value, list) else 1
    prompt.structures += [document.get("tools"), document.get("toolConfig")]
    return prompt.evidence(messages)


class _Prompt:
    """Collects the contents of a prompt."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.structures: list[Any] = []
        self.images = 0
        self.media = 0

    def read(self, value: object, name: str) -> None:
        """Read the member `name` of a request, or of an object in it."""
        if isinstance(value, str):
            if name in _TEXTS:
                self.texts.append(value)
        elif isinstance(value, list):
            for one in value:
                self.read(one, name)
        elif isinstance(value, dict):
            for inner, one in value.items():
                if inner in _STRUCTURES:
                    self.structures.append(one)
                elif inner in _IMAGES:
                    self.images += len(one) if isinstance(one, list) else 1
                elif inner in _MEDIA:
                    self.media += 1
                else:
                    self.read(one, inner)

    def evidence(self, messages: int) -> PromptEvidence:
        return prompt_evidence(
            self.texts,
            messages=messages,
            structures=[value for value in self.structures if value],
            images=self.images,
            attachments=self.media,
        )
