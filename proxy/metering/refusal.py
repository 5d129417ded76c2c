"""How a wire language says "no". Law: the shape is the language's, the words are the gateway's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Refusal(Protocol):
    """An expected "no" on its way to a client, as far as its shape needs it."""

    status: int
    """HTTP"""
    message: str
    kind: str
    """OpenAI's `type`"""
    param: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """What a language's SDK reads an error from."""

    prefix: str
    """paths that begin so are refused in this shape, also those that lead nowhere"""
    answer: Callable[[Refusal], dict[str, Any]]
    """the JSON body of an answer that is an error"""
    said: Callable[[Refusal], dict[str, Any]]
    """the document of the event that tells it in a stream which has already begun"""
    event: str = ""
    """that event's name, where the language names its events"""


def message_with_field(refusal: Refusal) -> str:
    """The message after the field that it is about: for shapes that have no place for the field."""
    return refusal.message if refusal.param is None else f"{refusal.param}: {refusal.message}"


def _openai(refusal: Refusal) -> dict[str, Any]:
    fields = {"message": refusal.message, "type": refusal.kind, "param": refusal.param, "code": refusal.code}
    return {"error": fields}


# Beside chat: what is no language's own (a path that leads nowhere, what is not HTTP) is said so, too.
OPENAI_ERRORS = ErrorShape("", _openai, _openai)
