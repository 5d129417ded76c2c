"""Requests of chat/completions: the facts for admission, and the document for the provider.

Invariants: only fields that admission needs are read. The document is forwarded unchanged except for the fields named
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.metering.request import (
    RequestFacts,
    counted,
    flag,
    integer,
    json_bytes,
    messages_of,
    model_of,
    object_in,
    output_limit,
    service_asked,
)
from proxy.metering.usage import PromptEvidence

# OpenAI's own limit.
N_MAX = 128
# Fields of a message with text, and with calls; fields of the request that the model reads as JSON.
_TEXT_FIELDS = frozenset({"content", "refusal", "name", "reasoning_content", "reasoning", "tool_plan", "thinking"})
_CALLS = frozenset({"tool_calls", "function_call"})
_TOOLS = ("tools", "functions")
_RESULTS = ("tool", "function")


def facts(document: dict[str, Any], named: str | None = None) -> RequestFacts:
    """Read a request; the model is optional if `named` in the path. Raises InvalidField."""
    n = (integer(document, "n", at_most=N_MAX) or 1) if "n" in document else 1
    limit = output_limit(document, "max_tokens", "max_completion_tokens")
    streamed, asked = usage_asked(document)
    return RequestFacts(
        model=named or model_of(document),
        streamed=streamed,
        usage_asked=asked,
        completion_tokens_max=None if limit is None else n * limit,
        n=n,
        prompt=prompt_of(messages_of(document), document),
        served_as=service_asked(document),
    )


def upstream_document(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """A shallow copy for the provider with the upstream model; with `inject_usage`, a stream has `include_usage`."""
    sent = {**document, "model": upstream_model}
    if inject_usage and document.get("stream") is True:
        sent["stream_options"] = {**(document.get("stream_options") or {}), "include_usage": True}
    return sent


def usage_asked(document: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a stream is requested, and whether with usage. Raises InvalidField."""
    streamed = flag(document, "stream")
    if "stream_options" not in document:
        return streamed, False
    asked = flag(object_in(document, "stream_options"), "include_usage", "stream_options.include_usage")
    return streamed, streamed and asked


def prompt_of(
    messages: list[dict[str, Any]], document: Mapping[str, Any], read_as_json: tuple[str, ...] = ()
) -> PromptEvidence:
    """The evidence of the prompt, in every dialect with such messages. `read_as_json`: further fields that models read
    as JSON, as they read tools and the response format."""
    texts: list[str] = []
    kinds: list[object] = []
    calls: list[object] = []
    structures = [document[name] for name in read_as_json if name in document]
    for message in messages:
        for name, value in message.items():
            if name in _CALLS:
                calls.append(value)
            elif name not in _TEXT_FIELDS:
                continue
            elif isinstance(value, str):
                texts.append(value)
            elif isinstance(value, list):
                read_parts(value, texts, structures, kinds)
    (latin, wide, other, blanks, marks, *_), text = counted(texts)
    images = sum(kind in ("image_url", "input_image", "image") for kind in kinds) if kinds else 0
    tools = [value for name in _TOOLS if name in document and (value := document[name])]
    call_chars = _json_chars(calls) if calls else 0
    schema_chars = json_bytes(schema) if (schema := document.get("response_format")) else 0
    return PromptEvidence(
        messages=len(messages),
        chars_latin=latin,
        chars_wide=wide,
        chars_other=other,
        tool_chars=call_chars + schema_chars + (_json_chars([*tools, *structures]) if tools or structures else 0),
        images=images,
        attachments=len(kinds) - images,
        blanks=blanks,
        marks=marks,
        tools=sum([len(value) for value in tools if isinstance(value, list)]) if tools else 0,
        calls=sum([len(value) if isinstance(value, list) else 1 for value in calls if value]) if calls else 0,
        results=sum([message["role"] in _RESULTS for message in messages if "role" in message]),
        call_chars=call_chars,
        schema_chars=schema_chars,
        text=text,
    )


def read_parts(parts: list[Any], texts: list[str], structures: list[Any], kinds: list[object]) -> None:
    """Add texts of a message's parts to `texts`, documents to `structures`, the types of other parts to `kinds`."""
    for part in parts:
        text = part.get("text", part.get("thinking")) if isinstance(part, dict) else part
        if isinstance(text, str):
            texts.append(text)
        elif isinstance(text, list):  # Mistral's thinking
            texts += [inner["text"] for inner in text if isinstance(inner, dict) and isinstance(inner.get("text"), str)]
        elif isinstance(part, dict) and isinstance(part.get("document"), dict):  # Cohere's
            structures.append(part["document"])
        elif isinstance(part, dict):
            kinds.append(part.get("type"))


def _json_chars(values: list[Any]) -> int:
    return sum([json_bytes(value) for value in values if value])
