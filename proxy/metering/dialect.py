"""A wire language as a route sees it. Law: what cannot be metered is not a dialect, and cannot be a route."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from proxy.metering.dialects import openai_request
from proxy.metering.dialects.openai_request import RequestFacts
from proxy.metering.meter import JsonMeter, StreamMeter


class Rewrite(Protocol):
    """Makes the document that goes up from the client's."""

    def __call__(self, document: dict[str, Any], *, upstream_model: str, inject_usage: bool) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One endpoint's language: where it is asked, what a request says, how answers are metered."""

    name: str
    path: str
    """the client's path; also the entry's `endpoint`"""
    upstream_path: str
    """what is appended to a provider's base URL"""
    facts: Callable[[dict[str, Any]], RequestFacts]
    """raises InvalidField"""
    upstream_document: Rewrite
    stream_meter: Callable[[bool | None], StreamMeter]
    plain_meter: Callable[[], JsonMeter]


OPENAI_CHAT = Dialect(
    name="openai.chat",
    path="/v1/chat/completions",
    upstream_path="/chat/completions",
    facts=openai_request.facts,
    upstream_document=openai_request.upstream_document,
    stream_meter=StreamMeter,
    plain_meter=JsonMeter,
)
