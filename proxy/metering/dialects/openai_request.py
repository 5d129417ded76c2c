"""The request side of chat/completions: what the body says, and the body that goes up.

Law: types are exact (`true` is not 1, "5" is not 5, 1.0 is no integer), and every refusal names its field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.metering.text import chars_of
from proxy.metering.usage import TOKENS_MAX, PromptEvidence

# The longest names in use (routers, fine-tuned models, inference profiles) are under 150 characters.
MODEL_CHARS_MAX = 256
# OpenAI's own limit.
N_MAX = 128
# Where a message has text that the model reads, and where calls; what of the request is read as JSON.
_SPOKEN = frozenset({"content", "refusal", "name", "reasoning_content", "reasoning"})
_CALLS = frozenset({"tool_calls", "function_call"})
_STRUCTURES = ("tools", "functions", "response_format")


class InvalidField(Exception):  # noqa: N818 - it is the name of a value of the API: a 400 with `param`
    """A field of the request is wrong. `param` is its path in OpenAI's spelling; the client may see `message`."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param
        self.message = message


class RequestFacts(msgspec.Struct, frozen=True, gc=False):
    """What admission needs to know of a request. Tokens: integers."""

    model: str
    streamed: bool
    usage_asked: bool
    """the client itself asked for the usage event"""
    completion_tokens_max: int | None
    """n × the limit of each answer, or None if the request sets no limit"""
    n: int
    prompt: PromptEvidence


def facts(document: dict[str, Any]) -> RequestFacts:
    """Reads a request. Raises InvalidField."""
    n = _integer(document, "n", at_most=N_MAX) or 1
    # Which of the two a provider obeys differs: the larger one bounds both.
    limits = [_integer(document, name, at_most=TOKENS_MAX) for name in ("max_tokens", "max_completion_tokens")]
    limit = max([limit for limit in limits if limit is not None], default=None)
    streamed = _flag(document, "stream", "stream")
    asked = _flag(_stream_options(document), "include_usage", "stream_options.include_usage")
    return RequestFacts(
        model=_model(document),
        streamed=streamed,
        usage_asked=streamed and asked,
        completion_tokens_max=None if limit is None else n * limit,
        n=n,
        prompt=_prompt(_messages(document), document),
    )


def upstream_document(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """A shallow copy for the provider: its model name, and for a stream `include_usage` beside its siblings."""
    sent = {**document, "model": upstream_model}
    if inject_usage and document.get("stream") is True:
        sent["stream_options"] = {**(document.get("stream_options") or {}), "include_usage": True}
    return sent


def _model(document: Mapping[str, Any]) -> str:
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidField("model", "must be a non-empty string")
    if len(model) > MODEL_CHARS_MAX:
        raise InvalidField("model", f"must not be longer than {MODEL_CHARS_MAX} characters")
    if not model.isprintable():  # it is kept in the ledger and shown on terminals; a lone surrogate fits neither
        raise InvalidField("model", "must have printable characters only")
    return model


def _flag(document: Mapping[str, Any], name: str, param: str) -> bool:
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidField(param, "must be a boolean")
    return bool(value)


def _stream_options(document: Mapping[str, Any]) -> Mapping[str, Any]:
    options = document.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidField("stream_options", "must be an object")
    return options or {}


def _integer(document: Mapping[str, Any], name: str, *, at_most: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= at_most:
        raise InvalidField(name, f"must be an integer from 1 to {at_most}")
    return value


def _messages(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidField("messages", "must be a non-empty array")
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidField(f"messages[{at}]", "must be an object")
    return messages


def _prompt(messages: list[dict[str, Any]], document: Mapping[str, Any]) -> PromptEvidence:
    texts: list[str] = []
    kinds: list[object] = []
    structures = [document[name] for name in _STRUCTURES if name in document]
    for message in messages:
        for name, value in message.items():
            if name in _CALLS:
                structures.append(value)
            elif name not in _SPOKEN:
                continue
            elif isinstance(value, str):
                texts.append(value)
            elif isinstance(value, list):
                _read_parts(value, texts, kinds)
    latin, wide, other = chars_of("".join(texts))
    images = sum(kind in ("image_url", "input_image", "image") for kind in kinds) if kinds else 0
    return PromptEvidence(
        messages=len(messages),
        chars_latin=latin,
        chars_wide=wide,
        chars_other=other,
        tool_chars=sum([_json_bytes(value) for value in structures if value]),
        images=images,
        attachments=len(kinds) - images,
    )


def _read_parts(parts: list[Any], texts: list[str], kinds: list[object]) -> None:
    """Add the texts of a message's parts to `texts`, and the types of those that are not text to `kinds`."""
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            texts.append(text)
        elif isinstance(part, dict):
            kinds.append(part.get("type"))


def _json_bytes(value: object) -> int:
    try:
        return len(msgspec.json.encode(value))
    except (msgspec.MsgspecError, ValueError, OverflowError):  # lone surrogates, integers over 64 bits
        return len(json.dumps(value))
