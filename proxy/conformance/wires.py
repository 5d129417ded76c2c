"""The provider APIs of the suite: paths, headers and bodies of requests, and the text of answers. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from proxy.conformance.answers import (
    PROMPT,
    Names,
    Scripted,
    answer,
    chat_json,
    embeddings,
    generated,
    message,
    response,
)
from proxy.conformance.bedrock import converse_json, payloads
from proxy.demo.shapes import Json

_BEARER: Mapping[str, str] = MappingProxyType({"Authorization": "Bearer {key}"})
# Fields with the text of an answer, in all APIs. Ids, roles and the like are not among them.
_TEXT_FIELDS = frozenset({"arguments", "content", "delta", "partial_json", "reasoning_content", "text", "thinking"})


@dataclass(frozen=True, slots=True)
class Wire:
    """One API."""

    name: str
    prefix: str
    """prefix of the model names, which selects the gateway's provider"""
    path: str
    """path of a request; {model}: the model name, {escaped}: the model name with escaped slashes"""
    body: Callable[[str, bool], Json]
    """(model, streamed) → the body of a request"""
    headers: Mapping[str, str]
    """headers of a request; {key}: the key"""
    whole: Callable[[Names], Scripted]
    """makes an answer that is not streamed"""
    stream_path: str | None = None
    """path of a streamed request; None: `path`"""

    def request(self, model: str, *, streams: bool, include_usage: bool | None) -> Json:
        """The body of a request. `include_usage`: the value in `stream_options`; None: absent."""
        options = {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
        return self.body(model, streams) | options

    def target(self, model: str, *, streams: bool) -> str:
        """The path, below the gateway's address."""
        path = self.stream_path if streams and self.stream_path is not None else self.path
        return path.replace("{model}", model).replace("{escaped}", quote(model, safe=""))

    def credentials(self, key: str) -> dict[str, str]:
        """The headers of a request."""
        return {name: value.replace("{key}", key) for name, value in self.headers.items()}


def _chat(model: str, streams: bool) -> Json:
    return {"model": model, "stream": streams, "messages": [{"role": "user", "content": PROMPT}]}


def _responses(model: str, streams: bool) -> Json:
    return {"model": model, "stream": streams, "input": PROMPT}


def _embeddings(model: str, _: bool) -> Json:
    return {"model": model, "input": PROMPT}


def _gemini(_: str, __: bool) -> Json:
    return {"contents": [{"role": "user", "parts": [{"text": PROMPT}]}]}


def _anthropic(model: str, streams: bool) -> Json:
    return _chat(model, streams) | {"max_tokens": 4096}


def _versioned(version: str) -> Callable[[str, bool], Json]:
    """The body of an Anthropic message whose path names the model; it has the API's version in place of the model."""
    messages = [{"role": "user", "content": PROMPT}]
    return lambda _, __: {"anthropic_version": version, "max_tokens": 4096, "messages": messages}


def _converse(_: str, __: bool) -> Json:
    return {"messages": [{"role": "user", "content": [{"text": PROMPT}]}]}


def _completion(names: Names) -> Scripted:
    return chat_json(answer(names))


CHAT = Wire("chat", "conformance-openai", "/v1/chat/completions", _chat, _BEARER, _completion)
RESPONSES = Wire("responses", "conformance-openai", "/v1/responses", _responses, _BEARER, response)
EMBEDDINGS = Wire("embeddings", "conformance-openai", "/v1/embeddings", _embeddings, _BEARER, embeddings)
ANTHROPIC = Wire(
    "anthropic",
    "conformance-anthropic",
    "/v1/messages",
    _anthropic,
    MappingProxyType({"x-api-key": "{key}", "anthropic-version": "2023-06-01"}),
    message,
)
GEMINI = Wire(
    "gemini",
    "conformance-gemini",
    "/v1beta/models/{model}:generateContent",
    _gemini,
    MappingProxyType({"x-goog-api-key": "{key}"}),
    generated,
    "/v1beta/models/{model}:streamGenerateContent?alt=sse",
)
# The client's project and location, which differ from the gateway's.
_PUBLISHERS = "/v1/projects/the-mill/locations/us-east5/publishers"
BEDROCK = Wire(
    "bedrock",
    "conformance-bedrock",
    "/model/{escaped}/converse",
    _converse,
    _BEARER,
    converse_json,
    "/model/{escaped}/converse-stream",
)
BEDROCK_INVOKE = Wire(
    "bedrock-invoke",
    "conformance-bedrock",
    "/model/{escaped}/invoke",
    _versioned("bedrock-2023-05-31"),
    _BEARER,
    message,
    "/model/{escaped}/invoke-with-response-stream",
)
VERTEX = Wire(
    "vertex",
    "conformance-vertex",
    f"{_PUBLISHERS}/google/models/{{model}}:generateContent",
    _gemini,
    _BEARER,
    generated,
    f"{_PUBLISHERS}/google/models/{{model}}:streamGenerateContent?alt=sse",
)
VERTEX_ANTHROPIC = Wire(
    "vertex-anthropic",
    "conformance-vertex",
    f"{_PUBLISHERS}/anthropic/models/{{model}}:rawPredict",
    _versioned("vertex-2023-10-16"),
    _BEARER,
    message,
    f"{_PUBLISHERS}/anthropic/models/{{model}}:streamRawPredict",
)


def documents(body: bytes) -> list[Json]:
    """The JSON objects of an answer: of a stream's events, or the answer itself. Other contents are left out."""
    if body[:1] == b"\0":  # the first byte of the length of a message in a binary stream
        return [document for document in map(_unwrapped, payloads(body)) if isinstance(document, dict)]
    text = body.decode("utf-8", "replace")
    lines = [text] if text.lstrip().startswith("{") else [line[5:] for line in _lines(text) if line[:5] == "data:"]
    return [document for document in map(_parsed, lines) if isinstance(document, dict)]


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _unwrapped(payload: bytes) -> Any:
    """The document, or the document that it contains in base64."""
    document = _parsed(payload)
    inner = document.get("bytes") if isinstance(document, dict) else None
    try:
        return document if inner is None else _parsed(base64.b64decode(inner))
    except (TypeError, binascii.Error):
        return None


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def answer_text(body: bytes) -> str:
    """The whole text of an answer, in order, however it is cut into events. A stream of the responses API repeats the
    text at its end; only its deltas count."""
    found = documents(body)
    deltas = [document["delta"] for document in found if isinstance(document.get("delta"), str)]
    return "".join(deltas or (text for document in found for text in _texts(document)))


def _texts(value: Any, name: str = "") -> Iterator[str]:
    match value:
        case str() if name in _TEXT_FIELDS:
            yield value
        case dict():
            for key in sorted(value):
                yield from _texts(value[key], key)
        case list():
            for inner in value:
                yield from _texts(inner, name)


def shows_usage(body: bytes) -> bool:
    """True if a chat stream contains usage."""
    return any(document.get("usage") for document in documents(body))
