"""The inputs of completions, embeddings and moderations: a string, strings, or tokens.

Invariant: every form that the SDKs send is counted; any other form is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.metering.dialects.openai.request import read_parts
from proxy.metering.held_text import NO_PROMPT_TEXT
from proxy.metering.request import InvalidField, counted
from proxy.metering.usage import PromptEvidence

# As in the estimator's prior: a token of a prompt counts as this many characters.
_CHARS_PER_TOKEN = 4.4
_KINDS = "a string, or a non-empty array of strings or of tokens"


@dataclass(frozen=True, slots=True)
class Inputs:
    """The number of inputs, and their total contents."""

    count: int
    texts: Sequence[str] = ()
    tokens: int = 0
    images: int = 0
    attachments: int = 0

    def evidence(self, *more: object) -> PromptEvidence:
        """The evidence for an estimate of their tokens; strings in `more` are included."""
        (latin, wide, other, *_), text = counted([*self.texts, *(one for one in more if isinstance(one, str))])
        return PromptEvidence(
            chars_latin=latin + round(self.tokens * _CHARS_PER_TOKEN),
            chars_wide=wide,
            chars_other=other,
            images=self.images,
            attachments=self.attachments,
            text=NO_PROMPT_TEXT if self.tokens else text,
        )


def inputs_of(document: Mapping[str, Any], name: str, *, parts: bool = False) -> Inputs:
    """Read the field `name`. `parts`: it may also be an array of text and image objects. Raises InvalidField."""
    value = document.get(name)
    if isinstance(value, str):
        return Inputs(1, (value,))
    if not isinstance(value, list) or not value:
        raise InvalidField(name, f"must be {_KINDS}")
    first = value[0]
    if isinstance(first, str):
        _require(value, str, name, "must be a string, like the first")
        return Inputs(len(value), value)
    if type(first) is int:
        _require(value, int, name, "must be a token, like the first")
        return Inputs(1, tokens=len(value))
    if isinstance(first, list):
        return Inputs(len(value), tokens=_tokens(value, name))
    if parts and isinstance(first, dict):
        _require(value, dict, name, "must be an object, like the first")
        return _of_parts(value)
    raise InvalidField(f"{name}[0]", f"has an unsupported type: {name} must be {_KINDS}")


def _require(values: list[Any], kind: type, name: str, message: str) -> None:
    for at, value in enumerate(values):
        if type(value) is not kind and not (kind is str and isinstance(value, str)):
            raise InvalidField(f"{name}[{at}]", message)


def _tokens(lists: list[Any], name: str) -> int:
    for at, tokens in enumerate(lists):
        if not isinstance(tokens, list) or not tokens:
            raise InvalidField(f"{name}[{at}]", "must be a non-empty array of tokens, like the first")
        _require(tokens, int, f"{name}[{at}]", "must be a token")
    return sum(map(len, lists))


def _of_parts(parts: list[dict[str, Any]]) -> Inputs:
    texts: list[str] = []
    kinds: list[object] = []
    read_parts(parts, texts, [], kinds)
    images = sum(kind in ("image_url", "input_image", "image") for kind in kinds)
    return Inputs(len(parts), texts, images=images, attachments=len(kinds) - images)
