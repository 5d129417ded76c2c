"""The parts of a request that admission needs, and checks of its fields, shared by all dialects.

Invariants: types are exact (`true` is not 1, "5" is not 5, 1.0 is no integer). Every error names its field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from proxy.metering.held_text import PromptText
from proxy.metering.usage import NO_USAGE, NOT_SAID, TOKENS_MAX, PromptEvidence, ServedAs, Usage, service_of
from proxy.metering.wire.long_string import Chars, json_pieces
from proxy.metering.wire.text import STEP_CHARS, chars_of, total

# The longest names in use (routers, fine-tuned models, inference profiles) are under 150 characters.
MODEL_CHARS_MAX = 256


class InvalidField(Exception):  # noqa: N818 - named after its API error: a 400 with `param`
    """A field of the request is invalid. `param`: its path as the client wrote it. Its text names the field, and is
    safe for the client."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"{param}: {why}")
        self.param = param


class RequestFacts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The parts of a request that admission needs."""

    model: str
    streamed: bool
    usage_asked: bool = True
    """the client gets the usage event: requested, or sent always"""
    completion_tokens_max: int | None
    """n × the limit per answer; None: no limit"""
    n: int = 1
    prompt: PromptEvidence
    asked: Usage = NO_USAGE
    """usage that follows from the request (characters to speak, images to generate and their likely tokens): reserved,
    and used if the answer reports nothing"""
    served_as: ServedAs = NOT_SAID
    """the requested terms of service: reserved for, not billed by"""
    is_stored: bool = False
    """the provider stores the answer, which is fetched by its id"""
    in_background: bool = False
    """the request may be answered before the answer is generated"""
    continues: str | None = None
    """the id of the stored answer that the request continues"""
    context_tokens: int | None = None
    """tokens of the conversation that the provider keeps, beside `prompt`; None: `prompt` is the whole prompt"""
    doubts: tuple[str, ...] = ()
    """flags of an entry that is estimated from `asked`"""
    echoes: bool = False
    """the answer repeats the prompt: more text than the limit allows"""


class Upload(msgspec.Struct, frozen=True, gc=False):
    """A file in a request. Its content is never shown."""

    filename: str
    content_type: str
    """empty: not given"""
    content: bytes

    def __repr__(self) -> str:
        return f"Upload({len(self.content)} bytes)"


def uploads_in(document: Mapping[str, Any]) -> int:
    """The number of files in a document; JSON has none."""
    several = (value if isinstance(value, list) else (value,) for value in document.values())
    return sum([isinstance(one, Upload) for values in several for one in values])


def model_of(document: Mapping[str, Any], field: str = "model") -> str:
    """The model's name. Raises InvalidField."""
    model = document.get(field)
    if not isinstance(model, str) or not model:
        raise InvalidField(field, "must be a non-empty string")
    if len(model) > MODEL_CHARS_MAX:
        raise InvalidField(field, f"must not be longer than {MODEL_CHARS_MAX} characters")
    if not model.isprintable():  # it goes to the ledger and to terminals, which reject lone surrogates
        raise InvalidField(field, "must have printable characters only")
    return model


def service_asked(document: Mapping[str, Any]) -> ServedAs:
    """The terms of service that a request of OpenAI, Anthropic or Google has."""
    if _ASKED.isdisjoint(document):
        return NOT_SAID
    tier, speed, geography = (document.get(name) for name in ("service_tier", "speed", "inference_geo"))
    tier = document.get("serviceTier") if tier is None else tier
    if isinstance(tier, str):
        tier = _TIERS.get(tier.lower(), tier.lower().removeprefix("service_tier_"))
    return service_of(tier, speed, geography)


_ASKED = frozenset({"service_tier", "speed", "inference_geo", "serviceTier"})
# OpenAI calls priority processing "fast", too.
_TIERS = {"fast": "priority", "standard_only": "standard"}


def with_model(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """The provider's document: a shallow copy with the upstream model."""
    return {**document, "model": upstream_model}


def with_model_if_named(document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]:
    """The provider's document where the path names the model: a shallow copy, also with the upstream model if named."""
    return {**document, "model": upstream_model} if "model" in document else {**document}


def object_in(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object that is this member; empty if it is absent or null. Raises InvalidField."""
    value = document.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidField(name, "must be an object")
    return value or {}


def flag(document: Mapping[str, Any], name: str, param: str | None = None) -> bool:
    """A boolean; absent and null are False. `param`: its path, if not `name`. Raises InvalidField."""
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidField(param or name, "must be a boolean")
    return bool(value)


COST_MEMBER = "usage"
"""the member of a request that asks for the cost in the answer, as at OpenRouter; no other API has one of this name"""


def cost_asked(document: Mapping[str, Any]) -> bool:
    """Whether the client requests the cost: `usage: {"include": true}`. Raises InvalidField."""
    options = document.get(COST_MEMBER)
    if options is not None and not isinstance(options, dict):
        raise InvalidField(COST_MEMBER, "must be an object")
    return flag(options or {}, "include", f"{COST_MEMBER}.include")


def integer(
    document: Mapping[str, Any], name: str, param: str | None = None, *, at_most: int, at_least: int = 1
) -> int | None:
    """An integer; None if absent or null. `param`: its path, if not `name`. Raises InvalidField."""
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int or not at_least <= value <= at_most:
        raise InvalidField(param or name, f"must be an integer from {at_least} to {at_most}")
    return value


def output_limit(document: Mapping[str, Any], *names: str, at_least: int = 1) -> int | None:
    """The highest of these limits of an answer; None: no limit, which llama.cpp and its clients write as -1. Providers
    differ in which of several limits they apply: the highest one bounds all. Raises InvalidField."""
    limits = [
        _UNLIMITED if type(value) is int and value == _NO_LIMIT
        else integer(document, name, at_least=at_least, at_most=TOKENS_MAX) or 0
        for name in names
        if name in document and (value := document[name]) is not None
    ]  # fmt: skip
    return None if not limits or _UNLIMITED in limits else max(limits)


_NO_LIMIT, _UNLIMITED = -1, TOKENS_MAX + 1


def messages_of(document: Mapping[str, Any], name: str = "messages") -> list[dict[str, Any]]:
    """A non-empty array of objects. Raises InvalidField."""
    messages = document.get(name)
    if not isinstance(messages, list) or not messages:
        raise InvalidField(name, "must be a non-empty array")
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidField(f"{name}[{at}]", "must be an object")
    return messages


def prompt_evidence(
    texts: Sequence[str], *, messages: int, structures: Sequence[object] = (), images: int = 0, attachments: int = 0
) -> PromptEvidence:
    """The counters of a prompt of `texts`. `structures`: the JSON values that the model reads."""
    (latin, wide, other, blanks, marks, *_), text = counted(texts)
    return PromptEvidence(
        messages=messages,
        chars_latin=latin,
        chars_wide=wide,
        chars_other=other,
        blanks=blanks,
        marks=marks,
        tool_chars=sum([json_bytes(value) for value in structures]),
        images=images,
        attachments=attachments,
        text=text,
    )


def counted(texts: Sequence[str]) -> tuple[Chars, PromptText]:
    """The characters of all texts together, and the texts themselves, kept for the tokenizer."""
    size = sum(map(len, texts))
    if size <= STEP_CHARS:
        text = "".join(texts)
        if len(text) == size:  # else there are long strings
            return chars_of(text), PromptText(text)
    return total(map(chars_of, texts)), PromptText(parts=texts)


def json_bytes(value: object) -> int:
    """The length of `value` as compact JSON."""
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, msgspec.MsgspecError, ValueError, OverflowError):  # long strings, lone surrogates
        return sum(map(len, json_pieces(value)))
