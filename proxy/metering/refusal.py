"""The shape of errors in a dialect. Invariant: the dialect defines the shape, the gateway the message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Refusal(Protocol):
    """An error response to a client: the fields that shapes need."""

    status: int
    """HTTP status"""
    message: str
    """message to the client; it names the field, too: most SDKs show nothing else"""
    kind: str
    """`type` of the error at OpenAI"""
    param: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The error format that the SDKs of a dialect expect."""

    prefix: str
    """errors of paths with this prefix have this shape, also of unknown paths"""
    body: Callable[[Refusal], dict[str, Any]]
    """the JSON body of an error response"""
    event_body: Callable[[Refusal], dict[str, Any]]
    """the document of an error event in a running stream"""
    event_name: str = ""
    """the name of an error event; empty: none"""
    headers: Callable[[Refusal], tuple[tuple[str, str], ...]] = lambda refusal: ()
    """further headers of an error response"""
    event_names: Mapping[int, str] = field(default_factory=dict, hash=False)
    """HTTP status → name of the error event, where that is not `event_name`"""


def _openai(refusal: Refusal) -> dict[str, Any]:
    fields = {"message": refusal.message, "type": refusal.kind, "param": refusal.param, "code": refusal.code}
    return {"error": fields}


# Also the shape of errors outside any dialect: unknown paths, malformed HTTP.
OPENAI_ERRORS = ErrorShape("", _openai, _openai)
