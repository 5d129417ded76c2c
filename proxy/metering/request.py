"""What a request says, whatever its language: what admission needs of it, and how a field is refused.

Law: types are exact (`true` is not 1, "5" is not 5, 1.0 is no integer), and every refusal names its field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.metering.usage import NO_USAGE, PromptEvidence, Usage

# The longest names in use (routers, fine-tuned models, inference profiles) are under 150 characters.
MODEL_CHARS_MAX = 256


class InvalidField(Exception):  # noqa: N818 - it is the name of a value of the API: a 400 with `param`
    """A field of the request is wrong. `param` is its path in the client's spelling; the client may see `message`."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param
        self.message = message


class RequestFacts(msgspec.Struct, frozen=True, gc=False):
    """What admission needs to know of a request. Tokens: integers."""

    model: str
    streamed: bool
    usage_asked: bool
    """the client itself asked for the usage event; where a language always says its usage, this says nothing"""
    completion_tokens_max: int | None
    """n × the limit of each answer, or None if the request sets no limit"""
    n: int
    prompt: PromptEvidence
    asked: Usage = NO_USAGE
    """what the request itself tells of what it will come to (characters to speak, images to make and the tokens they
    are likely to be): held, and where the answer does not say, taken for what it was"""


class Upload(msgspec.Struct, frozen=True, gc=False):
    """A file in a request. What is in it shows nowhere."""

    filename: str
    content_type: str
    """empty: it has none"""
    content: bytes

    def __repr__(self) -> str:
        return f"Upload({len(self.content)} bytes)"


def model_of(document: Mapping[str, Any]) -> str:
    """The model's name. Raises InvalidField."""
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidField("model", "must be a non-empty string")
    if len(model) > MODEL_CHARS_MAX:
        raise InvalidField("model", f"must not be longer than {MODEL_CHARS_MAX} characters")
    if not model.isprintable():  # it is kept in the ledger and shown on terminals; a lone surrogate fits neither
        raise InvalidField("model", "must have printable characters only")
    return model


def with_model(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """The document for the provider: a shallow copy with its model name."""
    return {**document, "model": upstream_model}


def flag(document: Mapping[str, Any], name: str, param: str | None = None) -> bool:
    """True or false; absent and null are false. `param`: its path, where that is not its name. Raises InvalidField."""
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidField(param or name, "must be a boolean")
    return bool(value)


def integer(
    document: Mapping[str, Any], name: str, param: str | None = None, *, at_most: int, at_least: int = 1
) -> int | None:
    """A whole number; None where it is absent or null. `param`: its path, where that is not its name. Raises
    InvalidField."""
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int or not at_least <= value <= at_most:
        raise InvalidField(param or name, f"must be an integer from {at_least} to {at_most}")
    return value


def messages_of(document: Mapping[str, Any], name: str = "messages") -> list[dict[str, Any]]:
    """A non-empty array of objects. Raises InvalidField."""
    messages = document.get(name)
    if not isinstance(messages, list) or not messages:
        raise InvalidField(name, "must be a non-empty array")
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidField(f"{name}[{at}]", "must be an object")
    return messages


def json_bytes(value: object) -> int:
    """The length of `value` as compact JSON."""
    try:
        return len(msgspec.json.encode(value))
    except (msgspec.MsgspecError, ValueError, OverflowError):  # lone surrogates, integers over 64 bits
        return len(json.dumps(value))
