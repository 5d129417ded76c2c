"""The shapes of OpenAI's responses on the wire: one event of a stream, or one whole answer."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.metering.wire.json_reader import reader

LAST = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
"""types of last events"""


class Text(msgspec.Struct, gc=False):
    """A part of a message, or of a summary."""

    text: str | None = None
    refusal: str | None = None
    transcript: str | None = None


class Item(msgspec.Struct, gc=False):
    """One item of the output: a message, reasoning or a tool call."""

    type: str | None = None
    name: str | None = None
    content: list[Text] | None = None
    summary: list[Text] | None = None
    arguments: Any = None
    input: str | None = None
    code: str | None = None
    container_id: str | None = None
    """container in which the provider runs the code"""
    status: str | None = None
    action: Any = None
    """action of a search call: search, or open a page"""


class Tool(msgspec.Struct, gc=False):
    """A tool that the request offered, as the answer repeats it."""

    type: str | None = None
    model: str | None = None
    """model of the tool"""


class Incomplete(msgspec.Struct, gc=False):
    """The reason for an incomplete answer."""

    reason: str | None = None


class Response(msgspec.Struct, gc=False):
    """An answer; in an event, the answer so far."""

    id: str | None = None
    status: str | None = None
    output: list[Item] | None = None
    usage: dict[str, Any] | None = None
    incomplete_details: Incomplete | None = None
    service_tier: str | None = None
    tool_usage: dict[str, Any] | None = None
    """usage of OpenAI's own tools, not included in `usage`"""
    tools: list[Tool] | None = None
    error: Any = None
    background: bool | None = None
    """background response"""


class ResponsesEvent(msgspec.Struct, gc=False):
    """One event of a stream."""

    type: str | None = None
    output_index: int | None = None
    delta: Any = None
    item: Item | None = None
    response: Response | None = None
    error: Any = None


event_of = reader(ResponsesEvent)
response_of = reader(Response)
