"""The dialect of Cohere's embed, version 2.

Invariants: no vector is decoded. Usage: prompt = `billed_units.input_tokens` + `billed_units.image_tokens`, which have
prices of their own. Nothing is generated. Images of models that bill by the image (`billed_units.images`) have no unit
here, and are named as unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.openai.inputs import Inputs
from proxy.metering.dialects.openai.request import read_parts
from proxy.metering.plain import PlainTally, plain_dialect, prompt_in
from proxy.metering.request import InvalidField, messages_of
from proxy.metering.unknown_fields import each, members
from proxy.metering.usage import PromptEvidence
from proxy.metering.usage_reader import UsageReader

_reported = UsageReader(
    prompt_tokens="billed_units.input_tokens + billed_units.image_tokens",
    image_prompt_tokens="billed_units.image_tokens",
)
# The three fields with input.
_FORMS = ("texts", "images", "inputs")


class EmbedTally(PlainTally):
    """The usage of one answer."""

    __slots__ = ()

    known = members(
        "id texts images embeddings response_type message", each("meta", f"{_reported.paths} api_version warnings")
    )
    usage_of = prompt_in(_reported)


def _prompt(document: dict[str, Any]) -> PromptEvidence:
    given = [name for name in _FORMS if document.get(name) is not None]
    if len(given) != 1:
        raise InvalidField(given[1] if given else "texts", "must be given, and only one of texts, images and inputs")
    inputs = _of_objects(document) if given == ["inputs"] else _of_strings(document, given[0])
    return inputs.evidence()


def _of_strings(document: Mapping[str, Any], name: str) -> Inputs:
    values = document[name]
    if not isinstance(values, list) or not values:
        raise InvalidField(name, "must be a non-empty array of strings")
    for at, value in enumerate(values):
        if not isinstance(value, str):
            raise InvalidField(f"{name}[{at}]", "must be a string")
    if name == "images":
        return Inputs(len(values), images=len(values))
    return Inputs(len(values), values)


def _of_objects(document: Mapping[str, Any]) -> Inputs:
    texts: list[str] = []
    kinds: list[object] = []
    inputs = messages_of(document, "inputs")
    for at, one in enumerate(inputs):
        if not isinstance(content := one.get("content"), list):
            raise InvalidField(f"inputs[{at}].content", "must be an array")
        read_parts(content, texts, [], kinds)
    images = sum(kind in ("image_url", "image") for kind in kinds)
    return Inputs(len(inputs), texts, images=images, attachments=len(kinds) - images)


COHERE_EMBED = plain_dialect(
    COHERE_CHAT,
    name="cohere.embed",
    paths=("/v2/embed",),
    operation="embeddings",
    prompt=_prompt,
    tally=EmbedTally,
)
