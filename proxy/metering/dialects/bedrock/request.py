"""Requests of Bedrock: what admission needs, and the document for the provider.

Invariants: only what admission needs is read; the model is that of the path. Of several limits of an answer the highest
applies: it bounds all. The body of InvokeModel is the model's own: every field that some family limits an answer by is
read, whatever the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from msgspec import structs

from proxy.metering.dialects.anthropic import request as anthropic
from proxy.metering.request import InvalidField, RequestFacts, integer, json_bytes, messages_of, model_of
from proxy.metering.usage import (
    NO_USAGE,
    NOT_SAID,
    TOKENS_MAX,
    UNITS_MAX,
    PromptEvidence,
    ServedAs,
    Usage,
    service_of,
)
from proxy.metering.wire.text import chars_of

# The most answers that a model gives at once: Cohere's five, AI21's sixteen; 128 is OpenAI's limit.
N_MAX = 128
# The names that a limit of an answer has: Anthropic's, Mistral's and Cohere's; of Claude 2; Llama's; of AI21's first
# models; of those that copy OpenAI; Nova's beside `maxTokens`.
# https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html
_LIMITS = (
    "max_tokens", "max_tokens_to_sample", "max_gen_len", "maxTokens", "max_completion_tokens", "max_new_tokens",
)  # fmt: skip
_SEVERAL = ("num_generations", "numResults", "n")
# What holds a prompt, in the families that are known.
_PROMPTS = (
    "messages", "system", "prompt", "inputText", "message", "chat_history", "preamble", "query", "texts", "documents",
    "inputs", "input", "singleEmbeddingParams", "textToImageParams",
)  # fmt: skip
# Members with text; with what the model reads as JSON; with images, and other media.
_TEXTS = frozenset((*_PROMPTS, "text", "content", "value", "thinking", "title", "snippet"))
_STRUCTURES = frozenset({"json", "toolUse", "tool_calls", "parameter_values"})
_IMAGES = frozenset({"image", "images", "inputImage", "image_url", "inputImages"})
_MEDIA = frozenset({"document", "video", "audio", "source", "file"})
# What only requests for images have: those of Amazon's models, and Stability's.
_OF_IMAGES = ("taskType", "imageGenerationConfig", "aspect_ratio")
# A query of a rerank model has at most so many documents. https://aws.amazon.com/bedrock/pricing/
_DOCUMENTS_PER_QUERY = 100


def as_sent(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """A shallow copy. A model that the body names beside the path is the upstream one."""
    return {**document, "model": upstream_model} if "model" in document else {**document}


def converse_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request for one whole answer. Raises InvalidField."""
    return _converse(document, named, streamed=False)


def converse_stream_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request for a stream. Raises InvalidField."""
    return _converse(document, named, streamed=True)


def invoke_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request for one whole answer. Raises InvalidField."""
    return _invoke(document, named, streamed=False)


def invoke_stream_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request for a stream. Raises InvalidField."""
    return _invoke(document, named, streamed=True)


def count_facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request to count tokens. Raises InvalidField."""
    if not isinstance(document.get("input"), dict):
        raise InvalidField("input", "must be an object")
    return _facts(document, named, completion_tokens_max=0)


def _converse(document: dict[str, Any], named: str | None, *, streamed: bool) -> RequestFacts:
    messages = messages_of(document)
    more = document.get("additionalModelRequestFields")
    limits = [
        *_limits(_object(document, "inferenceConfig"), "inferenceConfig."),
        *(_limits(more, "additionalModelRequestFields.") if isinstance(more, dict) else ()),
    ]
    tier, performance = (_object(document, name) for name in ("serviceTier", "performanceConfig"))
    prompt = _Prompt()
    prompt.read(messages, "messages")
    prompt.read(document.get("system"), "system")
    prompt.structures.append(document.get("toolConfig"))
    return _facts(
        document,
        named,
        streamed=streamed,
        completion_tokens_max=max(limits, default=None),
        prompt=prompt.evidence(len(messages)),
        served_as=service_of(tier.get("type"), performance.get("latency")),
    )


def _invoke(document: dict[str, Any], named: str | None, *, streamed: bool) -> RequestFacts:
    if "anthropic_version" in document and "messages" in document:
        facts = anthropic.facts(document, named)
        return structs.replace(facts, streamed=streamed)
    n = max([count for name in _SEVERAL if (count := integer(document, name, at_most=N_MAX))], default=1)
    limits = [
        *_limits(document, ""),
        *_limits(_object(document, "inferenceConfig"), "inferenceConfig."),
        *_limits(_object(document, "textGenerationConfig"), "textGenerationConfig.", ("maxTokenCount",)),
    ]
    embeds = _embeds(document, named or "")
    asked = NO_USAGE if embeds else _asked(document)
    if embeds or asked is not NO_USAGE:
        limits, n = [0], 1
    return _facts(
        document,
        named,
        streamed=streamed,
        completion_tokens_max=n * max(limits) if limits else None,
        n=n,
        prompt=_prompt(document),
        asked=asked,
    )


def _facts(
    document: dict[str, Any],
    named: str | None,
    *,
    completion_tokens_max: int | None,
    streamed: bool = False,
    n: int = 1,
    prompt: PromptEvidence | None = None,
    served_as: ServedAs = NOT_SAID,
    asked: Usage = NO_USAGE,
) -> RequestFacts:
    return RequestFacts(
        model=named or model_of(document),
        streamed=streamed,
        usage_asked=True,
        completion_tokens_max=completion_tokens_max,
        n=n,
        prompt=prompt or PromptEvidence(),
        served_as=served_as,
        asked=asked,
    )


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidField(name, "must be an object")
    return value or {}


def _limits(holder: Mapping[str, Any], within: str, names: Iterable[str] = _LIMITS) -> list[int]:
    limits = (integer(holder, name, f"{within}{name}", at_most=TOKENS_MAX) for name in names)
    return [limit for limit in limits if limit is not None]


def _embeds(document: Mapping[str, Any], model: str) -> bool:
    """Whether nothing is generated but vectors: so says the request, or the model's name."""
    return "input_type" in document or "singleEmbeddingParams" in document or "embed" in model


def _asked(document: Mapping[str, Any]) -> Usage:
    """What a request is billed by that is not counted in tokens: images, and queries of a rerank model."""
    if any(name in document for name in _OF_IMAGES):
        config = _object(document, "imageGenerationConfig")
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
    prompt.structures.append(document.get("tools"))
    prompt.structures.append(document.get("toolConfig"))
    return prompt.evidence(messages)


class _Prompt:
    """Collects what a prompt consists of."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.structures: list[Any] = []
        self.images = 0
        self.media = 0

    def read(self, value: object, name: str) -> None:
        """The member `name` of a request, or of an object in it."""
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
        latin, wide, other, blanks, marks, *_ = chars_of("".join(self.texts))
        return PromptEvidence(
            messages=messages,
            chars_latin=latin,
            chars_wide=wide,
            chars_other=other,
            blanks=blanks,
            marks=marks,
            tool_chars=sum([json_bytes(value) for value in self.structures if value]),
            images=self.images,
            attachments=self.media,
        )
